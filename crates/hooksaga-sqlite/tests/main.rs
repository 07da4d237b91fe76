//! The tests of the embedded back end: the conformance suite that every back end runs, and what only
//! SQLite has.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod adapter;
mod files;
mod folder;
mod keys;
mod panicking_decision;
mod roles;
mod schema_page;

hooksaga_conformance::conformance_suite!(crate::adapter::fresh);

/// An event of this type, for the default tenant.
fn event(event_type: &str) -> hooksaga_store::NewEvent {
    hooksaga_store::NewEvent {
        tenant: "default".parse().unwrap(),
        event_type: event_type.parse().unwrap(),
        payload: "{}".into(),
        external_id: None,
        correlation_id: "c".parse().unwrap(),
    }
}
