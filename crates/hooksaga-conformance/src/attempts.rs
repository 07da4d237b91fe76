//! What is stored about an attempt: when and where it was sent, and when the endpoint asked for the next one.

use super::{
    TestDatabase,
    fixture::{
        ALL, MUCH_LATER, TOKEN, TYPE, URL, append_many, apply, claim, failed, leased, only, route,
        schedule_and_mark, verified,
    },
    rows::{db_now, job_row, saga_row},
};
use hooksaga_saga::{ErrorCode, RetryPolicy, SagaStatus, Timestamp};
use hooksaga_store::JobReport;
use std::time::Duration;

pub async fn an_attempt_says_when_it_was_sent_and_where(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let started_at = Timestamp::from_micros(1_754_000_000_123_457);
    let retry_at = Timestamp::MAX;
    let callback_url = format!("https://receiver.example/{}", "x".repeat(475));
    assert_eq!(callback_url.len(), 500, "the longest there is");
    let report = JobReport {
        started_at: Some(started_at),
        callback_url: Some(callback_url.clone()),
        retry_at: Some(retry_at),
        ..failed(lease, ErrorCode::http(503))
    };
    assert_eq!(stores.worker.report(&[report]).await.unwrap(), [lease.job_id]);
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.started_at, row.retry_at), (Some(started_at), Some(retry_at)));
    assert_eq!(row.callback_url.as_ref(), Some(&callback_url));
    let attempt = only(stores.reader.delivery(&ALL, fixed.saga_id).await.unwrap().unwrap().attempts);
    assert_eq!((attempt.started_at, attempt.callback_url), (Some(started_at), Some(callback_url)));
    assert_eq!(attempt.retry_at, Some(retry_at));
}

pub async fn an_attempt_that_was_not_sent_has_neither_start_nor_url(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    stores.worker.report(&[failed(lease, ErrorCode::LEASE_EXHAUSTED)]).await.unwrap();
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.started_at, row.callback_url, row.retry_at), (None, None, None));
    let attempt = only(stores.reader.delivery(&ALL, fixed.saga_id).await.unwrap().unwrap().attempts);
    assert_eq!((attempt.started_at, attempt.callback_url, attempt.retry_at), (None, None, None));
}

pub async fn the_time_that_an_endpoint_asked_for_reaches_the_decision(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    append_many(&stores, 3).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let asked = [Some(Timestamp::from_micros(1_754_000_000_123_457)), None, Some(Timestamp::MAX)];
    let reports: Vec<_> = claim(&stores, TOKEN)
        .await
        .jobs
        .iter()
        .zip(asked)
        .map(|(job, retry_at)| JobReport { retry_at, ..failed(job.as_ref(), ErrorCode::http(429)) })
        .collect();
    stores.worker.report(&reports).await.unwrap();
    let applied = apply(&stores, MUCH_LATER).await;
    for report in reports {
        let result = applied.results.iter().find(|result| result.job_id == report.lease.job_id).unwrap();
        assert_eq!(result.result.retry_at, report.retry_at);
    }
}

pub async fn a_retry_is_not_before_the_time_that_the_endpoint_asked_for(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let retry_at = db_now(db).await.after(Duration::from_secs(20));
    let report = JobReport { retry_at: Some(retry_at), ..failed(lease, ErrorCode::http(503)) };
    stores.worker.report(&[report]).await.unwrap();
    let policy = RetryPolicy { base_delay: Duration::from_millis(1), max_delay: Duration::from_secs(60) };
    let result = only(apply(&stores, policy).await.results);
    assert_eq!((result.status, result.next_attempt_at), (SagaStatus::PendingRetry, retry_at));
    assert_eq!(saga_row(db, fixed.saga_id).await.next_attempt_at, retry_at);
}
