//! The PostgreSQL back end: the conformance suite that every back end passes, and what only PostgreSQL has.
//!
//! Run beside a server: `target/debug/with-servers cargo test -p hooksaga-postgres`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod adapter;
mod connecting;
mod counting;
mod encryption;
mod failing_writes;
mod hosts;
mod logins;
mod migrating;
mod notifying;
mod outbox;
mod own_columns;
mod plans;
mod poolers;
mod prepared;
mod resuming_scans;
mod scheduling;
mod slow_queries;

hooksaga_conformance::conformance_suite!(crate::adapter::fresh);
hooksaga_conformance::server_suite!(crate::adapter::fresh);
