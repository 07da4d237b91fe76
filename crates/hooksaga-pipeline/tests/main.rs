//! The pipeline's tests over real sockets and a real database.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod delivery;
mod faults;
mod scenarios;
mod support;
