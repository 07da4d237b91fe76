//! The HTTP API on a real SQLite database: every route, every status, every limit at its edge.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod batch;
mod dead_letters;
mod deliveries;
mod documents;
mod events;
mod hostile_input;
mod keys;
mod lists;
mod outages;
mod probes;
mod routes;
mod serving;
mod subscriptions;
mod support;
