//! A clock that was ahead strands nothing: an attempt that is further ahead than any retry can be counts as due.

use super::{
    TestDatabase,
    fixture::{
        ALL, DEFAULT_LIMIT, LEASE, MANY, TOKEN, TYPE, URL, append_many, claim, create, leased,
        new_subscription, only, pending_saga, route, schedule, schedule_and_mark, set_active, up_to,
    },
    rows::{db_now, job_row, saga_row},
};
use hooksaga_saga::{FurthestAttempt, JobId, JobStatus, SagaId, SagaStatus, Timestamp};
use hooksaga_store::{CheckOutcome, StepLimits};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const BEYOND: FurthestAttempt = FurthestAttempt { first: MINUTE, retry: HOUR };

/// A saga like that one, written by a clock that was this far ahead.
async fn saga_ahead(
    db: &dyn TestDatabase,
    like: SagaId,
    generation: u32,
    ahead: Duration,
) -> (SagaId, Timestamp) {
    let at = db_now(db).await.after(ahead);
    let time = db.dialect().time(at);
    let insert = format!(
        "INSERT INTO webhook_delivery_sagas
             (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at,
              created_at, updated_at)
         SELECT event_id, subscription_id, {generation}, 'Pending', 0, max_retry_limit, {time}, {time}, {time}
         FROM webhook_delivery_sagas WHERE id = {like}"
    );
    assert_eq!(db.execute_as_owner(&insert).await.unwrap(), 1);
    let sql = format!("SELECT max(id) FROM webhook_delivery_sagas WHERE generation = {generation}");
    let id = db.query_text(&sql).await.unwrap()[0][0].clone().expect("it was inserted");
    (SagaId(id.parse().unwrap()), at)
}

/// A saga like that one, which failed once and is tried again this much later.
async fn retry_ahead(db: &dyn TestDatabase, like: SagaId, generation: u32, ahead: Duration) -> SagaId {
    let (saga, _) = saga_ahead(db, like, generation, Duration::ZERO).await;
    let time = db.dialect().time(db_now(db).await.after(ahead));
    for change in [
        "status = 'InProgress'".to_owned(),
        format!("status = 'PendingRetry', attempt_count = 1, next_attempt_at = {time}"),
    ] {
        let sql = format!("UPDATE webhook_delivery_sagas SET {change} WHERE id = {saga}");
        assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    }
    saga
}

async fn put_job(db: &dyn TestDatabase, job: JobId, at: Timestamp) {
    let time = db.dialect().time(at);
    let sql = format!("UPDATE webhook_delivery_jobs SET lease_until = {time} WHERE id = {job}");
    assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
}

pub async fn a_saga_that_lies_too_far_ahead_is_due_under_the_key_it_has(db: &dyn TestDatabase) {
    let stores = db.stores();
    let first = pending_saga(&stores).await.saga_id;
    let (stranded, at) = saga_ahead(db, first, 7, 2 * HOUR).await;
    let planned = retry_ahead(db, first, 8, 30 * MINUTE).await;
    let far = retry_ahead(db, first, 9, 2 * HOUR).await;
    assert_eq!(only(schedule_and_mark(&stores).await).saga_id, first, "the clock says that it is not due");

    let step = stores.orchestrator.schedule_stranded(None, BEYOND).await.unwrap();
    assert_eq!((step.sagas, step.resume_after), (2, None));
    assert_eq!(saga_row(db, far).await.status, SagaStatus::InProgress);
    let saga = saga_row(db, stranded).await;
    assert_eq!((saga.status, saga.next_attempt_at), (SagaStatus::InProgress, at), "the key is not touched");
    assert_eq!(
        saga_row(db, planned).await.status,
        SagaStatus::PendingRetry,
        "a retry in half an hour is none"
    );
    let step = stores.orchestrator.schedule_stranded(None, BEYOND).await.unwrap();
    assert_eq!(step.sagas, 0, "again is nothing");
    let jobs = claim(&stores, TOKEN).await.jobs;
    let job = jobs.iter().find(|job| job.held.saga_id == stranded).expect("it can be claimed at once");
    assert_eq!(job.held.attempt_at, at);
}

pub async fn a_first_attempt_is_never_planned_so_it_is_due_when_it_lies_minutes_ahead(db: &dyn TestDatabase) {
    let stores = db.stores();
    let first = pending_saga(&stores).await.saga_id;
    schedule_and_mark(&stores).await;
    for generation in 10..13 {
        retry_ahead(db, first, generation, 5 * MINUTE).await;
    }
    let (stranded, at) = saga_ahead(db, first, 7, 10 * MINUTE).await;
    let (soon, _) = saga_ahead(db, first, 8, MINUTE / 2).await;
    assert_eq!(stores.orchestrator.schedule_stranded(None, BEYOND).await.unwrap().sagas, 1);
    let saga = saga_row(db, stranded).await;
    assert_eq!((saga.status, saga.next_attempt_at), (SagaStatus::InProgress, at));
    assert_eq!(saga_row(db, soon).await.status, SagaStatus::Pending, "clocks are adjusted by little");
    assert_eq!(stores.orchestrator.schedule_stranded(None, BEYOND).await.unwrap().sagas, 0);
}

pub async fn a_stranded_saga_of_a_deleted_subscription_comes_to_its_end(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = pending_saga(&stores).await;
    schedule_and_mark(&stores).await;
    let (stranded, _) = saga_ahead(db, fixed.saga_id, 7, 2 * HOUR).await;
    assert!(stores.admin.delete(&ALL, fixed.subscription_id).await.unwrap());
    assert_eq!(stores.orchestrator.schedule_stranded(None, BEYOND).await.unwrap().sagas, 1);
    let claimed = claim(&stores, TOKEN).await;
    assert!(claimed.jobs.iter().any(|job| job.held.saga_id == stranded), "it can fail as deleted");
}

pub async fn a_stranded_saga_of_a_paused_subscription_waits(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = pending_saga(&stores).await;
    let (stranded, _) = saga_ahead(db, fixed.saga_id, 7, 2 * HOUR).await;
    set_active(&stores, fixed.subscription_id, false).await;
    assert_eq!(stores.orchestrator.schedule_stranded(None, BEYOND).await.unwrap().sagas, 0);
    assert_eq!(saga_row(db, stranded).await.status, SagaStatus::Pending);
}

pub async fn a_lease_that_ends_too_late_has_run_out(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (_, lease) = leased(db).await;
    // The fixture's lease is an hour long: within what a claim could have given it.
    assert_eq!(stores.cleaner.free_stranded(MANY, LEASE + MINUTE, MINUTE).await.unwrap(), 0);
    put_job(db, lease.job_id, db_now(db).await.after(3 * HOUR)).await;
    assert!(stores.cleaner.reset_expired(MANY).await.unwrap().is_empty());
    assert_eq!(stores.cleaner.free_stranded(MANY, LEASE + MINUTE, MINUTE).await.unwrap(), 1);
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.status, row.lease_token, row.lease_resets), (JobStatus::Pending, None, 1));
    assert_eq!(only(claim(&stores, TOKEN).await.jobs).job_id, lease.job_id);
}

pub async fn a_not_before_that_is_too_late_has_passed_and_parked_jobs_stay(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = pending_saga(&stores).await;
    let job = only(schedule(&stores).await).job_id.expect("it is new");
    put_job(db, job, db_now(db).await.after(2 * HOUR)).await;
    assert!(claim(&stores, TOKEN).await.jobs.is_empty());
    assert_eq!(stores.cleaner.free_stranded(MANY, LEASE, 3 * HOUR).await.unwrap(), 0, "so late it may be");
    assert_eq!(stores.cleaner.free_stranded(MANY, LEASE, HOUR).await.unwrap(), 1);
    assert_eq!(job_row(db, job).await.lease_resets, 0);
    let claimed = stores.worker.claim(&up_to(MANY), TOKEN.lasting(HOUR)).await.unwrap();
    assert_eq!(claimed.jobs.iter().map(|job| job.job_id).collect::<Vec<_>>(), [job]);

    let subscription = fixed.subscription_id;
    set_active(&stores, subscription, false).await;
    let lease = only(claimed.jobs).as_ref();
    assert_eq!(stores.worker.park(&[lease]).await.unwrap(), [job]);
    assert_eq!(
        stores.cleaner.free_stranded(MANY, LEASE, HOUR).await.unwrap(),
        0,
        "a parked job is not stranded"
    );
    assert_eq!(job_row(db, job).await.lease_until, Timestamp::MAX);
}

pub async fn a_check_that_lies_too_far_ahead_is_due(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    assert_eq!(stores.verifier.take_checks(MANY, MINUTE).await.unwrap().len(), 1);
    assert_eq!(stores.verifier.free_stranded(MANY, 2 * MINUTE).await.unwrap(), 0, "it is held");
    let later = db.dialect().time(db_now(db).await.after(2 * HOUR));
    let sql = format!("UPDATE subscriptions SET next_check_at = {later} WHERE id = {id}");
    assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    assert!(stores.verifier.take_checks(MANY, MINUTE).await.unwrap().is_empty());
    assert_eq!(stores.verifier.free_stranded(MANY, 2 * MINUTE).await.unwrap(), 1);
    assert_eq!(stores.verifier.free_stranded(MANY, 2 * MINUTE).await.unwrap(), 0, "again is nothing");
    let check = only(stores.verifier.take_checks(MANY, MINUTE).await.unwrap());
    assert_eq!((check.subscription_id, check.attempt), (id, 2));

    // What is verified waits for nothing.
    assert!(stores.verifier.record(&check, &CheckOutcome::Verified).await.unwrap());
    assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    assert_eq!(stores.verifier.free_stranded(MANY, 2 * MINUTE).await.unwrap(), 0);
}

pub async fn a_subscription_that_would_catch_up_much_too_late_catches_up_now(db: &dyn TestDatabase) {
    let stores = db.stores();
    create(&stores, &new_subscription(TYPE, URL)).await;
    append_many(&stores, 3).await;
    route(&stores).await;
    let check = only(stores.verifier.take_checks(MANY, MINUTE).await.unwrap());
    assert!(stores.verifier.record(&check, &CheckOutcome::Verified).await.unwrap());
    let limits = StepLimits { examine: MANY, create: MANY, default_limit: DEFAULT_LIMIT };
    let put = async |ahead| {
        let time = db.dialect().time(db_now(db).await.after(ahead));
        assert_eq!(db.execute_as_owner(&format!("UPDATE catch_ups SET next_at = {time}")).await.unwrap(), 1);
    };
    let catch_up = async || stores.redrives.catch_up(limits, Some(24 * HOUR)).await.unwrap();
    put(MINUTE).await;
    assert!(catch_up().await.is_none(), "it waits, as one that is paused does");
    put(HOUR).await;
    stores.redrives.put_off_catch_up(MINUTE).await.unwrap();
    assert!(catch_up().await.is_none(), "one that failed lets others go first");
    put(HOUR).await;
    assert_eq!(catch_up().await.expect("it is due").sagas.len(), 3);
}
