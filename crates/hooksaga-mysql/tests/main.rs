//! The MySQL and MariaDB back end: the conformance suite that every back end passes, and the tests of what only it has.
//!
//! Run beside a server: `target/debug/with-servers cargo test -p hooksaga-mysql`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod adapter;
mod connecting;
mod dead_connections;
mod encryption;
mod frozen_clients;
mod galera;
mod giving_up;
mod hosts;
mod migrating;
mod outbox;
mod slow_queries;

hooksaga_conformance::conformance_suite!(crate::adapter::fresh);
hooksaga_conformance::server_suite!(crate::adapter::fresh);
