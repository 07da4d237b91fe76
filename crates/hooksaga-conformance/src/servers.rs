//! Cases that the tests of both database servers share.

use hooksaga_store::{
    StoreError,
    migration::{MigrationReport, MovedIds},
};

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
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("TLS"), "{error}");
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
