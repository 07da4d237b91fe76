//! Times are the database's, and exact to the microsecond from end to end.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, MANY, TOKEN, allot, apply, claim, create_jobs_and_die, failed, leased, only,
        pending_saga, schedule, schedule_and_mark, up_to,
    },
    rows::{changes, db_now, job_row, jobs_of, saga_row},
};
use hooksaga_saga::{Applied, ErrorCode, Saga, SagaId, SagaStatus, Timestamp};
use hooksaga_store::{Decide, FinishedJob};
use std::{sync::Arc, time::Duration};

/// Fails the held attempt and makes `next` the time of the next one.
async fn retry_at(db: &dyn TestDatabase, next: Timestamp) {
    let decide: Decide = Arc::new(move |job: &FinishedJob, _: Timestamp| Applied::Changed {
        saga: Saga {
            status: SagaStatus::PendingRetry,
            attempt_count: job.saga.attempt_count + 1,
            next_attempt_at: next,
            final_error_code: Some(ErrorCode::TIMEOUT),
            ..job.saga.clone()
        },
        promoted: false,
    });
    let result = only(db.stores().orchestrator.apply(MANY, &decide).await.unwrap().results);
    assert!(result.changed);
    assert_eq!(result.next_attempt_at, next);
}

/// Every place that stores the attempt's time stores the same microsecond.
async fn same_everywhere(db: &dyn TestDatabase, saga: SagaId, at: Timestamp) {
    let stores = db.stores();
    assert_eq!(saga_row(db, saga).await.next_attempt_at, at);
    let shown = stores.reader.delivery(&ALL, saga).await.unwrap().expect("it is there");
    assert_eq!(shown.delivery.next_attempt_at, at);
    let scheduled = only(schedule_and_mark(&stores).await);
    assert_eq!(scheduled.attempt_at, at);
    assert_eq!(
        saga_row(db, saga).await.status,
        SagaStatus::InProgress,
        "the time survives the round trip unchanged"
    );
    let job = only(claim(&stores, TOKEN).await.jobs);
    assert_eq!(job.held.attempt_at, at);
    assert_eq!(job_row(db, job.job_id).await.attempt_at, at);
    let shown = stores.reader.delivery(&ALL, saga).await.unwrap().expect("it is there");
    assert_eq!(shown.attempts.last().map(|attempt| attempt.attempt_at), Some(at));
    stores.worker.report(&[failed(job.as_ref(), ErrorCode::TIMEOUT)]).await.unwrap();
}

pub async fn an_attempts_time_is_the_same_microsecond_everywhere(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    same_everywhere(db, saga, saga_row(db, saga).await.next_attempt_at).await;
    // The next attempts are one microsecond after the last ones: they are due, and differ only in that.
    for _ in 0..2 {
        let last = job_row(db, *jobs_of(db, saga).await.last().unwrap()).await.attempt_at;
        let next = Timestamp::from_micros(last.as_micros() + 1);
        retry_at(db, next).await;
        same_everywhere(db, saga, next).await;
    }
    assert_eq!(apply(&stores, AT_ONCE).await.results.len(), 1, "the third is recognised by its time");
    assert_eq!(saga_row(db, saga).await.status, SagaStatus::DeadLettered);
}

pub async fn odd_microseconds_and_the_latest_time_are_stored_exactly(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    stores.worker.report(&[failed(lease, ErrorCode::TIMEOUT)]).await.unwrap();
    let odd = Timestamp::from_micros(4_102_444_799_999_999);
    retry_at(db, odd).await;
    assert_eq!(saga_row(db, fixed.saga_id).await.next_attempt_at, odd);
    let d = db.dialect();
    let begin = format!(
        "UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE id = {} AND next_attempt_at = {}",
        fixed.saga_id,
        d.time(odd)
    );
    changes(db, &begin, 1).await;
    let job = only(jobs_of(db, fixed.saga_id).await);
    let end = format!(
        "UPDATE webhook_delivery_sagas SET status = 'PendingRetry', attempt_count = attempt_count + 1, \
         next_attempt_at = {} WHERE id = {}",
        d.time(Timestamp::MAX),
        fixed.saga_id
    );
    changes(db, &end, 1).await;
    let shown = stores.reader.delivery(&ALL, fixed.saga_id).await.unwrap().expect("it is there");
    assert_eq!(shown.delivery.next_attempt_at, Timestamp::MAX);
    assert_eq!(shown.attempts[0].job_id, job);
    assert_eq!(schedule(&stores).await, []);
}

pub async fn a_lease_ends_exactly_when_it_was_to_end(db: &dyn TestDatabase) {
    let stores = db.stores();
    pending_saga(&stores).await;
    schedule_and_mark(&stores).await;
    let batch = stores
        .worker
        .claim(&up_to(MANY), TOKEN.lasting(Duration::from_secs(60 * 60 * 24 * 3650)))
        .await
        .unwrap();
    let job = only(batch.jobs);
    assert_eq!(job_row(db, job.job_id).await.lease_until, job.until);
    assert_eq!(job.until.since(batch.now), Duration::from_secs(60 * 60 * 24 * 3650));
}

pub async fn time_never_runs_backwards_between_calls(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let mut last = saga_row(db, saga).await.created_at;
    for _ in 0..20 {
        let now = create_jobs_and_die(&stores, &allot(&stores, MANY).await).await.now;
        assert!(now >= last, "{now:?} after {last:?}");
        last = now;
        let now = stores.worker.claim(&up_to(1), TOKEN.lasting(Duration::ZERO)).await.unwrap().now;
        assert!(now >= last, "{now:?} after {last:?}");
        last = now;
        let now = apply(&stores, AT_ONCE).await.now;
        assert!(now >= last, "{now:?} after {last:?}");
        last = now;
    }
    let now = db_now(db).await;
    assert!(now.after(Duration::from_millis(2)) >= last, "all of them are the database's clock");
    assert!(now.since(last) < Duration::from_secs(60));
}
