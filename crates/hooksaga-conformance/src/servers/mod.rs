//! Tests that both database servers share and SQLite cannot have: cases, which [`server_suite!`](crate::server_suite) lists, and
//! checks that the servers' other tests use.

pub mod letters;
pub mod schema;

use crate::TestDatabase;
use async_trait::async_trait;
use hooksaga_store::{
    RoleMode, ServerOptions, StoreError, StoreResult,
    migration::{MigrationReport, MovedIds},
};
use std::pin::Pin;

/// Commits a transaction that is open, once it is awaited.
pub type Committing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A test database on a server.
#[async_trait]
pub trait ServerDatabase: TestDatabase {
    /// What `hooksaga migrate` does.
    async fn migrate(&self) -> StoreResult<MigrationReport>;

    /// Opens it as another process would, by its URL with these parameters.
    async fn connect(&self, parameters: &str) -> StoreResult<()>;

    /// What a migration after a restore does for lists: how many rows were wrong.
    async fn repair_lists(&self) -> StoreResult<u64>;

    /// Runs statements in a transaction of the schema's owner, and leaves it open.
    async fn begin(&self, statements: &[String]) -> Committing;
}

/// Options for a URL, with a switch of roles.
pub fn options(url: &str) -> ServerOptions {
    ServerOptions { roles: RoleMode::Switch, max_connections_per_role: 8, ..ServerOptions::login(url) }
}

/// Implements [`ServerDatabase`] for a type with a `url` and a method `begin`, by the functions of its back end's crate.
#[macro_export]
macro_rules! server_database {
    ($database:ty, $back_end:ident) => {
        #[::async_trait::async_trait]
        impl $crate::servers::ServerDatabase for $database {
            async fn migrate(
                &self,
            ) -> ::hooksaga_store::StoreResult<::hooksaga_store::migration::MigrationReport> {
                $back_end::migrate($crate::servers::options(&self.url)).await
            }

            async fn connect(&self, parameters: &str) -> ::hooksaga_store::StoreResult<()> {
                let options = $crate::servers::options(&format!("{}{parameters}", self.url));
                $back_end::connect(options).await.map(drop)
            }

            async fn repair_lists(&self) -> ::hooksaga_store::StoreResult<u64> {
                $back_end::repair_lists($crate::servers::options(&self.url)).await
            }

            async fn begin(&self, statements: &[String]) -> $crate::servers::Committing {
                self.begin(statements).await
            }
        }
    };
}

/// Makes one test per case that only servers have, as [`conformance_suite!`](crate::conformance_suite) does; `$fresh` makes a
/// [`ServerDatabase`].
#[macro_export]
macro_rules! server_suite {
    ($fresh:path) => {
        $crate::conformance_cases! { servers, [$crate::servers], $fresh;
            letters {
                who_sends_again_waits_for_a_letter_that_is_being_stored,
                no_letter_is_stored_while_its_saga_is_sent_again,
                lists_are_repaired_after_a_restore,
            }
            schema {
                migrating_again_changes_nothing,
                an_older_schema_is_not_opened,
                a_newer_schema_is_left_alone,
                a_schema_of_an_unreleased_version_is_left_alone,
                encryption_that_the_server_does_not_offer_can_be_demanded,
            }
        }
    };
}

/// The error of an operation that must fail.
pub fn failure<T>(result: Result<T, StoreError>) -> StoreError {
    match result {
        Ok(_) => panic!("this should not have worked"),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "more than a line: {error}");
            error
        }
    }
}

/// A database without a schema says how to get one.
pub fn says_how_to_migrate(error: &StoreError) {
    assert!(matches!(error, StoreError::Schema(_)), "{error:?}");
    assert!(error.to_string().contains("run `hooksaga migrate`"), "{error}");
}

/// Where TLS is required, a server without TLS is an error of the set-up.
pub fn says_that_tls_is_missing(error: &StoreError) {
    advises(error, "TLS");
}

/// A second migration finds nothing to do.
pub fn changed_nothing(report: &MigrationReport) {
    assert_eq!((&report.applied, report.version), (&Vec::new(), 2));
    assert!(report.roles.contains("there already"), "{}", report.roles);
}

/// The ids of every table continue behind any that can have been used, and so does that of the next event.
pub fn ids_went_on(moved: &[MovedIds], event_before: i64, event_after: i64) {
    let of = |table: &str| moved.iter().find(|moved| moved.table == table).map(|moved| moved.after);
    for table in
        ["events", "subscriptions", "webhook_delivery_sagas", "webhook_delivery_jobs", "dead_letters"]
    {
        assert!(of(table).is_some_and(|after| after > 1_000_000_000), "{moved:?}");
    }
    assert!(event_after > event_before + 1_000_000_000 && Some(event_after) > of("events"), "{event_after}");
}

/// An error of the set-up that says what to do.
pub fn advises(error: &StoreError, advice: &str) {
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains(advice), "{advice} in: {error}");
}
