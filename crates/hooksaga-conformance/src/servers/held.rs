//! Beside a transaction that stays open, because its process is frozen in the middle of it.

use super::ServerDatabase;
use crate::fixture::{
    AT_ONCE, MANY, TYPE, URL, allot, append_many, apply, claim, create_jobs, deliver_round, failed, route,
    schedule_and_mark, verified,
};
use hooksaga_saga::{ErrorCode, SubscriptionId};
use hooksaga_store::{LeaseToken, Stores};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longer than a component waits for a lock, and less than twice as long.
const SOON: Duration = Duration::from_millis(3500);
/// What was passed over is tried again within this time.
const AGAIN: Duration = Duration::from_secs(12);

/// Whose results a pass applied, in order.
async fn round(stores: &Stores, code: Option<ErrorCode>) -> Vec<SubscriptionId> {
    let applied = timeout(SOON, deliver_round(stores, code, AT_ONCE)).await.expect("it waits for somebody");
    let mut of: Vec<_> = applied.results.iter().map(|result| result.subscription_id).collect();
    of.sort_unstable();
    of
}

/// Whoever applies results counts the failures of endpoints in the same transaction, and may freeze there.
pub async fn an_endpoint_whose_failures_somebody_counts_delays_no_other(db: &dyn ServerDatabase) {
    let stores = db.stores();
    let held = verified(&stores, TYPE, URL).await;
    let other = verified(&stores, TYPE, "https://other.example/hook").await;
    append_many(&stores, 1).await;
    route(&stores).await;
    let error = || Some(ErrorCode::http(500));
    assert_eq!(round(&stores, error()).await, [held, other], "both have failed");
    let count =
        format!("UPDATE endpoint_failures SET failures = failures + 1 WHERE subscription_id = {held}");
    let commit = db.begin(&[count]).await;
    assert_eq!(round(&stores, error()).await, [other]);

    let began = Instant::now();
    append_many(&stores, 1).await;
    route(&stores).await;
    assert_eq!(round(&stores, None).await, [other, other], "the retry, and the new one");
    assert!(began.elapsed() < Duration::from_secs(1), "it waits again: {:?}", began.elapsed());

    commit.await;
    let began = Instant::now();
    let mut late = 0;
    while late < 2 {
        late += apply(&stores, AT_ONCE).await.results.len();
        assert!(began.elapsed() < AGAIN, "what was passed over is forgotten");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let failures = format!("SELECT failures FROM endpoint_failures WHERE subscription_id = {held}");
    // The last of them was delivered.
    assert_eq!(db.query_text(&failures).await.unwrap(), [[Some("0".to_owned())]]);
}

/// On MySQL and MariaDB the job of a retry may wait for the job of another saga whose result is being written.
pub async fn a_result_that_somebody_writes_delays_no_first_attempt(db: &dyn ServerDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    append_many(&stores, 2).await;
    let first = route(&stores).await[0];
    schedule_and_mark(&stores).await;
    let mut jobs = claim(&stores, LeaseToken(7)).await.jobs;
    jobs.sort_unstable_by_key(|job| job.held.saga_id);
    stores.worker.report(&[failed(jobs[0].as_ref(), ErrorCode::http(500))]).await.unwrap();
    assert_eq!(apply(&stores, AT_ONCE).await.results[0].saga_id, first);
    let write = format!(
        "UPDATE webhook_delivery_jobs SET status = 'Completed', lease_token = NULL WHERE id = {}",
        jobs[1].job_id
    );
    let commit = db.begin(&[write]).await;
    append_many(&stores, 1).await;
    let new = route(&stores).await[0];
    let allotted = allot(&stores, MANY).await;
    let created = timeout(SOON, create_jobs(&stores, &allotted)).await.expect("it waits for somebody");
    assert!(created.iter().any(|saga| saga.saga_id == new), "{created:?}");

    let began = Instant::now();
    append_many(&stores, 1).await;
    let newer = route(&stores).await[0];
    let created = create_jobs(&stores, &allotted).await;
    assert!(created.iter().any(|saga| saga.saga_id == newer), "{created:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "it waits again: {:?}", began.elapsed());

    commit.await;
    let (sql, began) =
        (format!("SELECT COUNT(*) FROM webhook_delivery_jobs WHERE saga_id = {first}"), Instant::now());
    while db.query_text(&sql).await.unwrap() != [[Some("2".to_owned())]] {
        create_jobs(&stores, &allotted).await;
        assert!(began.elapsed() < AGAIN, "the retry is forgotten");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
