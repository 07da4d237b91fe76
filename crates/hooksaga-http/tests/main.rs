//! The HTTP API on a real SQLite database: every route, every status, every limit at its edge.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod audit;
mod batch;
mod dashboard;
mod dead_letters;
mod deliveries;
mod documents;
mod egress;
mod endpoint_care;
mod events;
mod every_route;
mod health;
mod hostile_input;
mod https;
mod keys;
mod listener;
mod lists;
mod outages;
mod portal_sessions;
mod probes;
mod redrives;
mod resend;
mod routes;
mod serving;
mod subscriptions;
mod support;
mod tenants;
mod topics;
