//! Tests of what this crate itself does. The traits are tested through their back ends, by
//! hooksaga-conformance.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod errors;
mod migration;
mod names;
