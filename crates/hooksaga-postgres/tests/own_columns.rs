//! The columns that only this back end has: guarded like all others, and nobody's to change.

use crate::adapter::{fresh, superuser, value};
use tokio_postgres::error::SqlState;

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_event_and_attempt_never_change() {
    let db = fresh().await;
    let client = superuser(&db.url).await;
    let job = "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
               VALUES (1, 1, 1, 1, now(), now())";
    client.batch_execute(job).await.unwrap();
    for change in ["event_id = event_id + 1", "attempt = attempt + 1"] {
        let refused = client.batch_execute(&format!("UPDATE webhook_delivery_jobs SET {change}")).await;
        let code = refused.unwrap_err().code().cloned();
        assert_eq!(code, Some(SqlState::RESTRICT_VIOLATION), "{change}");
    }
}

/// What a row is created with is checked when it is created.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_not_born_out_of_range() {
    let db = fresh().await;
    let client = superuser(&db.url).await;
    for born in [
        "webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit) VALUES (1, 1, -1, 5)",
        "webhook_delivery_sagas (event_id, subscription_id, max_retry_limit) VALUES (1, 1, 0)",
        "webhook_delivery_sagas (event_id, subscription_id, max_retry_limit) VALUES (1, 1, 101)",
        "webhook_delivery_jobs (saga_id, subscription_id, event_id, attempt, attempt_at, lease_until)
             VALUES (1, 1, 1, 0, now(), now())",
    ] {
        let refused = client.batch_execute(&format!("INSERT INTO {born}")).await;
        let code = refused.unwrap_err().code().cloned();
        assert_eq!(code, Some(SqlState::RESTRICT_VIOLATION), "{born}");
    }
}

/// The table of roles in the conformance suite speaks of the columns that all back ends have.
#[tokio::test(flavor = "multi_thread")]
async fn no_component_may_update_a_column_that_only_this_back_end_has() {
    let db = fresh().await;
    let own = "(table_name, column_name) IN (('webhook_delivery_jobs', 'event_id'), \
               ('webhook_delivery_jobs', 'attempt'), ('finished_jobs', 'seq'), ('finished_jobs', 'saga_id'), \
               ('finished_jobs', 'attempt_at'), ('finished_jobs', 'duration_ms'), ('finished_jobs', 'error_code'), \
               ('finished_jobs', 'retry_at'))";
    let granted = |right: &str| {
        format!(
            "SELECT count(*) FROM information_schema.column_privileges \
             WHERE {own} AND privilege_type = '{right}' AND grantee <> current_user AND grantee <> grantor"
        )
    };
    assert_eq!(value(&db.url, &granted("UPDATE")).await, "0");
    assert_ne!(value(&db.url, &granted("SELECT")).await, "0", "the question is the right one");
}
