//! Direct access to the database for the tests: raw SQL as a role or as the owner, and
//! the plans of the hot statements.

use crate::{
    authorizer::CurrentRole,
    error::store_error,
    roles::hot,
    session::{self, Purpose, configure, connect},
};
use hooksaga_conformance::HotStatement;
use hooksaga_store::{Role, StoreResult};
use rusqlite::{Connection, hooks::AuthContext, types::ValueRef};
use std::path::Path;

/// Whether the product would run this statement as this role.
pub fn belongs_to(sql: &str, role: Role) -> bool {
    session::belongs_to(sql, role)
}

/// The statements of a hot step, and who runs them.
pub fn hot(step: HotStatement) -> (Role, &'static [&'static str]) {
    match step {
        HotStatement::Append => (Role::EventIngestWriter, hot::APPEND),
        HotStatement::Route => (Role::RouterWorker, hot::ROUTE),
        HotStatement::Waiting => (Role::SagaOrchestrator, hot::WAITING),
        HotStatement::CreateJobs => (Role::SagaOrchestrator, hot::CREATE_JOBS),
        HotStatement::Load => (Role::SagaOrchestrator, hot::LOAD),
        HotStatement::MarkInProgress => (Role::SagaOrchestrator, hot::MARK_IN_PROGRESS),
        HotStatement::Claim => (Role::JobWorker, hot::CLAIM),
        HotStatement::HandBack => (Role::JobWorker, hot::HAND_BACK),
        HotStatement::Park => (Role::JobWorker, hot::PARK),
        HotStatement::Report => (Role::JobWorker, hot::REPORT),
        HotStatement::Apply => (Role::SagaOrchestrator, hot::APPLY),
        HotStatement::ResetExpired => (Role::LeaseCleaner, hot::RESET_EXPIRED),
        HotStatement::Bury => (Role::DeadLetterOperator, hot::BURY),
        HotStatement::Redrive => (Role::DeadLetterOperator, hot::REDRIVE),
        HotStatement::TakeChecks => (Role::SubscriptionVerifier, hot::TAKE_CHECKS),
        HotStatement::Care => (Role::EndpointCaretaker, hot::CARE),
        HotStatement::IndexLists => (Role::ListIndexer, hot::INDEX_LISTS),
        HotStatement::Remove => (Role::HistoryJanitor, hot::REMOVE),
        HotStatement::Gauges => (Role::ApiReader, hot::GAUGES),
    }
}

/// A connection of its own, settings as in the product; without a role it is the schema's owner's.
pub struct RawConnection(Connection);

impl RawConnection {
    pub fn open(path: &Path, role: Option<Role>) -> StoreResult<Self> {
        let mut connection = connect(path)?;
        configure(&connection, Purpose::Write)?;
        if let Some(role) = role {
            let current = CurrentRole::default();
            current.set(role);
            connection
                .authorizer(Some(move |context: AuthContext<'_>| current.authorize(context)))
                .map_err(|error| store_error(&error))?;
        }
        Ok(Self(connection))
    }

    /// Runs one statement, reads what rows it has; how many rows it changed itself, its triggers aside. (Anything for a
    /// query.)
    pub fn execute(&self, sql: &str) -> StoreResult<u64> {
        self.query(sql)?;
        Ok(self.0.changes())
    }

    /// Every column of every row as text. A call may have returned a moment before its commit: its commits are waited
    /// for.
    pub fn query(&self, sql: &str) -> StoreResult<Vec<Vec<Option<String>>>> {
        if self.0.is_autocommit() {
            // Where it is refused, the role may not write either.
            let _ = self.0.execute_batch("BEGIN IMMEDIATE; COMMIT");
        }
        let read = || -> rusqlite::Result<_> {
            let mut statement = self.0.prepare(sql)?;
            let columns = statement.column_count();
            let rows = statement.raw_query();
            rows.mapped(|row| (0..columns).map(|index| row.get_ref(index).map(text)).collect()).collect()
        };
        read().map_err(|error| store_error(&error))
    }

    /// The plans of statements, a line per step. Parameters that are not bound count as null, which does
    /// not change a plan.
    pub fn explain(&self, statements: &[&str]) -> StoreResult<String> {
        let mut plan = String::new();
        for sql in statements {
            for row in self.query(&format!("EXPLAIN QUERY PLAN {sql}"))? {
                plan.push_str(row.last().and_then(Option::as_deref).unwrap_or_default());
                plan.push('\n');
            }
        }
        Ok(plan)
    }
}

fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}
