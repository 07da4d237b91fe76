//! The conformance suite: what every back end promises, as one list of cases that all of them run.
//!
//! A back end's tests implement [`TestDatabase`] and call [`conformance_suite!`]
//! once. No back end can leave a case out: the macro lists all of them, and a test of this crate checks that
//! the list is complete.
//!
//! A case is `pub async fn promise_in_words(db: &dyn TestDatabase)`. It gets a fresh, empty, migrated
//! database, works through the product's own handles, and reads rows with portable SQL.
#![expect(clippy::unwrap_used, reason = "a case that cannot go on should panic")]

mod bulk_fixtures;
mod cases;
mod dialect;
mod fixture;
mod old_history;
mod role_table;
mod rows;
mod suite;
mod tables;

pub mod admission;
pub mod attempts;
pub mod audit;
pub mod caretaker;
pub mod catching_up;
pub mod clock;
pub mod compatibility;
pub mod contention;
pub mod dead_letters;
pub mod deletion;
pub mod delivery_items;
pub mod denials;
pub mod endpoint_care;
pub mod guards;
pub mod health;
pub mod ingest;
pub mod keys;
pub mod leases;
pub mod letter_heads;
pub mod list_index;
pub mod locked_tables;
pub mod old_records;
pub mod outbox;
pub mod parking;
pub mod payloads;
pub mod plans;
pub mod rate_limits;
pub mod reading;
pub mod redrives;
pub mod requeue_steps;
pub mod resend;
pub mod results;
pub mod retention;
pub mod rewrapping;
pub mod route_steps;
pub mod routing;
pub mod scheduling;
pub mod servers;
pub mod slow_lists;
pub mod statistics;
pub mod subscriptions;
pub mod tenants;
pub mod times;
pub mod topics;
pub mod transitions;
pub mod unmatched;
pub mod verification;
pub mod wakeups;

pub use dialect::Dialect;
pub use fixture::asked;

use async_trait::async_trait;
use hooksaga_store::{Rewrap, Role, StoreResult, Stores};
use std::{future::Future, pin::Pin, time::Duration};

/// One fresh, empty, migrated database, and ways to read and change it from outside the product.
#[async_trait]
pub trait TestDatabase: Send + Sync {
    /// The product's own handles.
    fn stores(&self) -> Stores;

    /// Runs one SQL statement as that role and returns how many rows changed. It may be a SELECT: then its rows are read
    /// and discarded, and the result means nothing. A missing right must be returned as
    /// [`Denied`](hooksaga_store::StoreError::Denied), a refusal by a trigger or constraint as
    /// [`Refused`](hooksaga_store::StoreError::Refused).
    async fn execute_as(&self, role: Role, sql: &str) -> StoreResult<u64> {
        self.execute_in(Some(role), sql).await
    }

    /// The same as the owner of the schema, who has every right: for set-up, and for changes that every role is refused.
    async fn execute_as_owner(&self, sql: &str) -> StoreResult<u64> {
        self.execute_in(None, sql).await
    }

    /// The same in a session of this role, or of the owner.
    async fn execute_in(&self, role: Option<Role>, sql: &str) -> StoreResult<u64>;

    /// Runs a query as the owner. Returns every column as text (numbers in decimal).
    async fn query_text(&self, sql: &str) -> StoreResult<Vec<Vec<Option<String>>>>;

    /// The plans of the product's own statements for that step, with typical parameters, as the database
    /// explains them to the role that runs them (PostgreSQL: EXPLAIN's text; SQLite: EXPLAIN QUERY PLAN's
    /// `detail`, a line each; MySQL: a line per table of a plan, "Table scan on NAME using KEY", "Full index scan on …"
    /// or "Lookup (…) on …"), one after the other. Nothing is changed.
    async fn explain(&self, statement: HotStatement) -> StoreResult<String>;

    /// Encrypts everything with another key, as `hooksaga keys rewrap` does, while the handles are open.
    async fn rewrap(&self, rewrap: Rewrap<'_>) -> StoreResult<u64>;

    /// The few differences in how literals are written.
    fn dialect(&self) -> Dialect;

    /// The handles of another process on the same database, with pools of its own (SQLite, which has one
    /// process: the same database again).
    async fn second_instance(&self) -> Stores;
}

/// A step whose statements run all the time: none of them may scan a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotStatement {
    Append,
    Route,
    Waiting,
    CreateJobs,
    Load,
    MarkInProgress,
    Claim,
    HandBack,
    Park,
    Report,
    Apply,
    ResetExpired,
    Bury,
    Redrive,
    TakeChecks,
    Care,
    IndexLists,
    Remove,
    Gauges,
}

impl HotStatement {
    pub const ALL: &'static [Self] = &[
        Self::Append,
        Self::Route,
        Self::Waiting,
        Self::CreateJobs,
        Self::Load,
        Self::MarkInProgress,
        Self::Claim,
        Self::HandBack,
        Self::Park,
        Self::Report,
        Self::Apply,
        Self::ResetExpired,
        Self::Bury,
        Self::Redrive,
        Self::TakeChecks,
        Self::Care,
        Self::IndexLists,
        Self::Remove,
        Self::Gauges,
    ];
}

/// Runs one case, and ends it if it hangs. Cases need not be `Send`: a test drives its own future.
pub async fn run(case: Pin<Box<dyn Future<Output = ()> + '_>>) {
    const LIMIT: Duration = Duration::from_secs(300);
    assert!(tokio::time::timeout(LIMIT, case).await.is_ok(), "the case did not end within {LIMIT:?}");
}
