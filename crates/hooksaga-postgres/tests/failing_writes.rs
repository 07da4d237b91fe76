//! Errors are named as what they are: a time limit is not an outage, and neither is a database that takes no writes.

use crate::adapter::{event, failure, fresh, options, superuser};
use hooksaga_postgres::connect;
use hooksaga_store::{RouteLimits, StoreError};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_or_a_statement_that_takes_too_long_is_a_timeout() {
    let db = fresh().await;
    let holder = superuser(&db.url).await;
    for (limit, part) in [("lock_timeout", "lock timeout"), ("statement_timeout", "statement timeout")] {
        let url = format!("{}?options=-c%20{limit}%3D200ms", db.url);
        let stores = connect(options(&url)).await.unwrap().stores();
        holder.batch_execute("BEGIN; LOCK TABLE unrouted_events").await.unwrap();
        let limits = RouteLimits { events: 1, sagas: 1 };
        let error = failure(stores.router.route(limits, 5).await);
        assert!(matches!(error, StoreError::TimedOut(_)), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
        holder.batch_execute("ROLLBACK").await.unwrap();
        stores.router.route(limits, 5).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_database_takes_no_writes() {
    let db = fresh().await;
    let url = format!("{}?options=-c%20default_transaction_read_only%3Don", db.url);
    let stores = connect(options(&url)).await.unwrap().stores();
    let error = failure(stores.ingest.append(&[event(None, "c")]).await);
    assert!(matches!(error, StoreError::Unwritable(_)), "{error:?}");
    assert!(error.is_transient() && error.to_string().contains("read-only"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_no_writes() {
    let db = fresh().await;
    // As the server says it when a file cannot be extended.
    for (code, text, is_full) in [
        ("53100", "could not extend file: No space left on device", true),
        ("XX000", "could not extend file: Disk quota exceeded", true),
        ("XX000", "could not extend file: File too large", true),
        ("XX000", "cache lookup failed", false),
    ] {
        let sql = format!("DO $$ BEGIN RAISE EXCEPTION '{text}' USING ERRCODE = '{code}'; END $$");
        let error = superuser(&db.url).await.batch_execute(&sql).await.unwrap_err();
        let error = hooksaga_postgres::store_error(&error);
        assert_eq!(matches!(error, StoreError::Unwritable(_)), is_full, "{error:?}");
    }
}
