//! Reporting results, and applying them to their sagas exactly once.

use super::{
    Dialect, TestDatabase,
    fixture::{
        AT_ONCE, MANY, MUCH_LATER, TOKEN, TYPE, URL, append, append_many, apply, claim, correlation, decide,
        deliver_round, delivered, failed, finish_claimable, leased, new_event, only, pending_saga, route,
        saga_in, schedule, schedule_and_mark, verified, verified_with_limit,
    },
    guards::refused,
    rows::{SagaRow, all_rows, changes, count, ids, job_row, jobs_of, saga_row},
};
use hooksaga_saga::{
    Applied, ErrorCode, JobId, JobStatus, Outcome, RetryPolicy, Saga, SagaStatus, Timestamp,
};
use hooksaga_store::{Decide, FinishedJob, JobReport, LeaseRef, LeaseToken, NewEvent, Trace};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

pub async fn a_success_is_stored_and_queued(db: &dyn TestDatabase) {
    let (_, lease) = leased(db).await;
    let before = job_row(db, lease.job_id).await;
    let report =
        JobReport { response_status: Some(299), duration: Duration::from_millis(1234), ..delivered(lease) };
    assert_eq!(db.stores().worker.report(&[report]).await.unwrap(), [lease.job_id]);
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.status, row.lease_token), (JobStatus::Completed, None));
    assert_eq!((row.response_status, row.duration_ms), (Some(299), Some(1234)));
    assert_eq!((row.error_code, row.response_excerpt), (None, None));
    assert_eq!((row.attempt_at, row.saga_id), (before.attempt_at, before.saga_id));
    assert_eq!(ids(db, "SELECT job_id FROM finished_jobs").await, [lease.job_id.0]);
}

pub async fn a_failure_is_stored_with_what_was_answered(db: &dyn TestDatabase) {
    let (_, lease) = leased(db).await;
    // 4096 bytes, in characters of one, two, three and four bytes.
    let excerpt = format!("{}{}", "aé€😀".repeat(409), "z".repeat(6));
    assert_eq!(excerpt.len(), 4096);
    let report = JobReport {
        response_status: Some(500),
        response_excerpt: Some(excerpt.clone()),
        ..failed(lease, ErrorCode::http(500))
    };
    assert_eq!(db.stores().worker.report(&[report]).await.unwrap(), [lease.job_id]);
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.status, row.lease_token), (JobStatus::Failed, None));
    assert_eq!(row.error_code.as_deref(), Some("HTTP_500"));
    assert_eq!((row.response_status, row.duration_ms), (Some(500), Some(34)));
    assert_eq!(row.response_excerpt, Some(excerpt));
    assert_eq!(ids(db, "SELECT job_id FROM finished_jobs").await, [lease.job_id.0]);
}

pub async fn a_failure_without_an_answer_has_no_status(db: &dyn TestDatabase) {
    let (_, lease) = leased(db).await;
    db.stores().worker.report(&[failed(lease, ErrorCode::DNS_FAILED)]).await.unwrap();
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.response_status, row.error_code.as_deref()), (None, Some("DNS_FAILED")));
}

pub async fn an_excerpt_that_does_not_fit_is_cut(db: &dyn TestDatabase) {
    let (_, lease) = leased(db).await;
    // The character at the limit has two bytes, of which one would fit; not every database stores a NUL.
    let report = JobReport {
        response_excerpt: Some(format!("a\0b{}", "é".repeat(3000))),
        ..failed(lease, ErrorCode::http(500))
    };
    assert_eq!(db.stores().worker.report(&[report]).await.unwrap(), [lease.job_id]);
    let expected = format!("a\u{fffd}b{}", "é".repeat(2045));
    assert_eq!(expected.len(), 4095);
    assert_eq!(job_row(db, lease.job_id).await.response_excerpt, Some(expected));
}

pub async fn a_report_without_the_lease_changes_nothing_and_queues_nothing(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (_, lease) = leased(db).await;
    let before = all_rows(db, "webhook_delivery_jobs").await;
    let wrong = LeaseRef { token: LeaseToken(TOKEN.0 + 1), ..lease };
    let unknown = LeaseRef { job_id: JobId(999_999), ..lease };
    let reports = [delivered(wrong), failed(wrong, ErrorCode::TIMEOUT), delivered(unknown)];
    assert_eq!(stores.worker.report(&reports).await.unwrap(), []);
    assert_eq!(stores.worker.report(&[]).await.unwrap(), []);
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, before);
    assert_eq!(count(db, "finished_jobs").await, 0);
}

pub async fn a_report_twice_counts_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (_, lease) = leased(db).await;
    assert_eq!(stores.worker.report(&[delivered(lease)]).await.unwrap(), [lease.job_id]);
    let before = all_rows(db, "webhook_delivery_jobs").await;
    assert_eq!(stores.worker.report(&[delivered(lease)]).await.unwrap(), []);
    assert_eq!(stores.worker.report(&[failed(lease, ErrorCode::TIMEOUT)]).await.unwrap(), []);
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, before);
    assert_eq!(count(db, "finished_jobs").await, 1);
    apply(&stores, AT_ONCE).await;
    assert_eq!(stores.worker.report(&[delivered(lease)]).await.unwrap(), []);
    assert_eq!(count(db, "finished_jobs").await, 0, "nor after it was applied");
}

pub async fn of_several_reports_of_a_job_in_one_batch_the_holders_counts(db: &dyn TestDatabase) {
    let (_, lease) = leased(db).await;
    let late = LeaseRef { token: LeaseToken(TOKEN.0 + 1), ..lease };
    let reports = [failed(late, ErrorCode::TIMEOUT), delivered(lease), failed(late, ErrorCode::TIMEOUT)];
    assert_eq!(db.stores().worker.report(&reports).await.unwrap(), [lease.job_id]);
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.status, row.error_code), (JobStatus::Completed, None));
    assert_eq!(count(db, "finished_jobs").await, 1);
}

pub async fn a_batch_of_reports_answers_the_jobs_that_changed(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    append_many(&stores, 20).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let claimed = claim(&stores, TOKEN).await;
    let mut expected = Vec::new();
    let mut reports = Vec::new();
    for (n, job) in claimed.jobs.iter().enumerate() {
        let lease = job.as_ref();
        match n % 3 {
            0 => reports.push(delivered(lease)),
            1 => reports.push(failed(lease, ErrorCode::http(400 + u16::try_from(n).unwrap()))),
            _ => reports.push(delivered(LeaseRef { token: LeaseToken(1), ..lease })),
        }
        if n % 3 < 2 {
            expected.push(job.job_id);
        }
    }
    let mut changed = stores.worker.report(&reports).await.unwrap();
    changed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(changed, expected);
    assert_eq!(ids(db, "SELECT job_id FROM finished_jobs ORDER BY job_id").await.len(), expected.len());
    for (n, job) in claimed.jobs.iter().enumerate() {
        let row = job_row(db, job.job_id).await;
        let code = format!("HTTP_{}", 400 + n);
        match n % 3 {
            0 => assert_eq!((row.status, row.response_status), (JobStatus::Completed, Some(204))),
            1 => assert_eq!((row.status, row.error_code), (JobStatus::Failed, Some(code))),
            _ => assert_eq!((row.status, row.lease_token), (JobStatus::Leased, Some(TOKEN.0))),
        }
    }
}

pub async fn a_success_completes_the_saga(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    append(&stores, NewEvent { correlation_id: correlation("c-3"), ..new_event(TYPE) }).await;
    let saga = only(route(&stores).await);
    let scheduled = only(schedule_and_mark(&stores).await);
    let before = saga_row(db, saga).await;
    let batch = finish_claimable(&stores, None, AT_ONCE).await;

    let after = saga_row(db, saga).await;
    let expected = SagaRow {
        status: SagaStatus::Completed,
        attempt_count: 1,
        updated_at: after.updated_at,
        ..before.clone()
    };
    assert_eq!(after, expected, "next_attempt_at stays the key of the last job");
    assert!(after.updated_at >= before.updated_at);
    let result = only(batch.results);
    assert_eq!((Some(result.job_id), result.saga_id), (scheduled.job_id, saga));
    assert_eq!(result.subscription_id, before.subscription_id);
    assert_eq!(result.trace, Trace::new("default", "c-3"));
    assert_eq!((result.status, result.attempt_count, result.changed), (SagaStatus::Completed, 1, true));
    assert_eq!(result.next_attempt_at, before.next_attempt_at);
    assert_eq!(result.result.outcome, Outcome::Delivered);
    assert_eq!(result.result.attempt_at, scheduled.attempt_at);
    assert_eq!(result.duration, Duration::from_millis(12));
    assert_eq!(count(db, "finished_jobs").await, 0);
    assert_eq!(count(db, "pending_dead_letters").await, 0);
    assert_eq!(apply(&stores, AT_ONCE).await.results, [], "nothing is left");
}

pub async fn a_failure_waits_for_exactly_the_time_that_was_decided(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let policy =
        RetryPolicy { base_delay: Duration::from_micros(90_000_001), max_delay: Duration::from_secs(3600) };
    let batch = deliver_round(&stores, Some(ErrorCode::TLS_FAILED), policy).await;
    let result = only(batch.results);
    let expected = batch.now.after(Duration::from_micros(90_000_001));
    assert_eq!(result.next_attempt_at, expected, "from the database's now, to the microsecond");
    let row = saga_row(db, saga).await;
    assert_eq!((row.status, row.attempt_count), (SagaStatus::PendingRetry, 1));
    assert_eq!(row.next_attempt_at, expected);
    assert_eq!(row.final_error_code.as_deref(), Some("TLS_FAILED"));
    assert_eq!((result.status, result.attempt_count, result.changed), (SagaStatus::PendingRetry, 1, true));
    assert_eq!(result.result.outcome, Outcome::Failed(ErrorCode::TLS_FAILED));
    assert_eq!(count(db, "pending_dead_letters").await, 0);
}

pub async fn the_decision_sees_the_saga_the_job_and_the_databases_now(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    stores.worker.report(&[failed(lease, ErrorCode::http(410))]).await.unwrap();
    let row = saga_row(db, fixed.saga_id).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let spy: Decide = Arc::new(move |job: &FinishedJob, now: Timestamp| {
        noted.lock().unwrap().push((job.clone(), now));
        decide(AT_ONCE)(job, now)
    });
    let batch = stores.orchestrator.apply(MANY, &spy).await.unwrap();
    let (job, now) = only(std::mem::take(&mut *seen.lock().unwrap()));
    assert_eq!(now, batch.now);
    assert_eq!((job.job_id, job.saga_id), (lease.job_id, fixed.saga_id));
    assert_eq!(job.subscription_id, fixed.subscription_id);
    let expected = Saga {
        status: SagaStatus::InProgress,
        attempt_count: 0,
        max_retry_limit: 3,
        next_attempt_at: row.next_attempt_at,
        final_error_code: None,
    };
    assert_eq!(job.saga, expected);
    assert_eq!(job.result.attempt_at, row.next_attempt_at);
    assert_eq!(job.result.outcome, Outcome::Failed(ErrorCode::http(410)));
}

pub async fn a_decision_of_no_change_changes_nothing(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    stores.worker.report(&[delivered(lease)]).await.unwrap();
    let before = saga_row(db, fixed.saga_id).await;
    let no_change: Decide = Arc::new(|_, _| Applied::Already);
    let result = only(stores.orchestrator.apply(MANY, &no_change).await.unwrap().results);
    assert!(!result.changed);
    assert_eq!(result.status, SagaStatus::InProgress);
    assert_eq!(saga_row(db, fixed.saga_id).await, before);
    assert_eq!(count(db, "finished_jobs").await, 0);
    assert_eq!(count(db, "delivery_counts").await, 0);
}

pub async fn the_failure_that_reaches_the_limit_ends_the_saga(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    for attempt in 1..=3 {
        let code = ErrorCode::http(500 + u16::try_from(attempt).unwrap());
        let result = only(deliver_round(&stores, Some(code.clone()), AT_ONCE).await.results);
        let expected = if attempt < 3 { SagaStatus::PendingRetry } else { SagaStatus::DeadLettered };
        assert_eq!((result.status, result.attempt_count, result.changed), (expected, attempt, true));
        let row = saga_row(db, saga).await;
        assert_eq!((row.status, row.attempt_count), (expected, attempt));
        assert_eq!(row.final_error_code.as_deref(), Some(code.as_str()));
    }
    assert_eq!(ids(db, "SELECT saga_id FROM pending_dead_letters").await, [saga.0]);
    assert_eq!(jobs_of(db, saga).await.len(), 3);
    assert_eq!(deliver_round(&stores, None, AT_ONCE).await.results, []);
}

pub async fn a_limit_of_one_ends_with_the_first_failure(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 1).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    let result = only(deliver_round(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await.results);
    assert_eq!((result.status, result.attempt_count), (SagaStatus::DeadLettered, 1));
}

pub async fn a_success_keeps_the_code_of_the_last_failure(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    deliver_round(&stores, Some(ErrorCode::http(502)), AT_ONCE).await;
    deliver_round(&stores, None, AT_ONCE).await;
    let row = saga_row(db, saga).await;
    assert_eq!((row.status, row.attempt_count), (SagaStatus::Completed, 2));
    assert_eq!(row.final_error_code.as_deref(), Some("HTTP_502"));
}

pub async fn a_worker_faster_than_the_move_loses_nothing(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    for (code, status) in
        [(Some(ErrorCode::TIMEOUT), SagaStatus::PendingRetry), (None, SagaStatus::Completed)]
    {
        assert_eq!(schedule(&stores).await.len(), 1);
        assert_ne!(saga_row(db, saga).await.status, SagaStatus::InProgress, "not moved yet");
        let result = only(finish_claimable(&stores, code, AT_ONCE).await.results);
        assert_eq!((result.status, result.changed), (status, true));
        assert_eq!(saga_row(db, saga).await.status, status);
    }
    assert_eq!(saga_row(db, saga).await.attempt_count, 2);
}

/// The statement that puts a job into the queue of results, in addition to what its worker may have put there.
fn queue(dialect: Dialect, job: JobId) -> String {
    let (columns, of_job) = match dialect {
        Dialect::Postgres => (
            "job_id, saga_id, attempt_at, duration_ms, error_code, retry_at",
            "id, saga_id, attempt_at, duration_ms, error_code, retry_at",
        ),
        Dialect::Sqlite | Dialect::MySql => ("job_id", "id"),
    };
    format!(
        "INSERT INTO finished_jobs ({columns}) SELECT {of_job} FROM webhook_delivery_jobs WHERE id = {job}"
    )
}

pub(super) async fn queue_again(db: &dyn TestDatabase, job: JobId) {
    changes(db, &queue(db.dialect(), job), 1).await;
}

pub async fn a_result_queued_again_is_a_no_op(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let mut expected_jobs = 0;
    for code in [Some(ErrorCode::TIMEOUT), Some(ErrorCode::TIMEOUT), None] {
        deliver_round(&stores, code, AT_ONCE).await;
        expected_jobs += 1;
        let before = saga_row(db, saga).await;
        let counts = all_rows(db, "delivery_counts").await;
        let jobs = jobs_of(db, saga).await;
        assert_eq!(jobs.len(), expected_jobs);
        for job in jobs {
            queue_again(db, job).await;
            let result = only(apply(&stores, AT_ONCE).await.results);
            assert_eq!((result.job_id, result.saga_id, result.changed), (job, saga, false));
            assert_eq!((result.status, result.attempt_count), (before.status, before.attempt_count));
            assert_eq!(result.next_attempt_at, before.next_attempt_at);
            assert_eq!(saga_row(db, saga).await, before);
            assert_eq!(all_rows(db, "delivery_counts").await, counts, "not counted twice");
            assert_eq!(count(db, "finished_jobs").await, 0);
        }
    }
}

pub async fn a_dead_sagas_result_queued_again_queues_no_second_letter(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = saga_in(db, SagaStatus::DeadLettered).await.saga_id;
    changes(db, "DELETE FROM pending_dead_letters", 1).await;
    let before = saga_row(db, saga).await;
    for job in jobs_of(db, saga).await {
        queue_again(db, job).await;
    }
    let results = apply(&stores, AT_ONCE).await.results;
    assert_eq!(results.len(), 3);
    assert!(results.iter().all(|result| !result.changed));
    assert_eq!(saga_row(db, saga).await, before);
    assert_eq!(count(db, "pending_dead_letters").await, 0);
}

/// For back ends whose queue holds only the ids of jobs. If it holds their results, a job without a result cannot be queued.
pub async fn a_job_that_is_not_finished_is_not_applied(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let before = saga_row(db, fixed.saga_id).await;
    if db.dialect() == Dialect::Postgres {
        refused(db, &queue(db.dialect(), lease.job_id)).await;
        return;
    }
    queue_again(db, lease.job_id).await;
    assert_eq!(apply(&stores, AT_ONCE).await.results, []);
    assert_eq!(ids(db, "SELECT job_id FROM finished_jobs").await, [lease.job_id.0]);

    // Nor is it applied together with others that are.
    append_many(&stores, 1).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let other = only(claim(&stores, LeaseToken(9)).await.jobs);
    stores.worker.report(&[delivered(other.as_ref())]).await.unwrap();
    assert_eq!(only(apply(&stores, AT_ONCE).await.results).job_id, other.job_id);
    assert_eq!(ids(db, "SELECT job_id FROM finished_jobs").await, [lease.job_id.0]);
    assert_eq!(saga_row(db, fixed.saga_id).await, before);
}

pub async fn a_pass_applies_no_more_than_its_limit(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let reports: Vec<_> =
        claim(&stores, TOKEN).await.jobs.iter().map(|job| delivered(job.as_ref())).collect();
    stores.worker.report(&reports).await.unwrap();
    for expected in [2, 2, 1, 0] {
        let batch = stores.orchestrator.apply(2, &decide(AT_ONCE)).await.unwrap();
        assert_eq!(batch.results.len(), expected);
    }
    assert_eq!(count(db, "webhook_delivery_sagas WHERE status = 'Completed'").await, 5);
}

pub async fn two_orchestrators_at_once_apply_each_result_once(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    verified(&instances[0], TYPE, URL).await;
    append_many(&instances[0], 200).await;
    route(&instances[0]).await;
    schedule_and_mark(&instances[0]).await;
    let claimed = claim(&instances[0], TOKEN).await;
    let reports: Vec<_> = claimed.jobs.iter().map(|job| failed(job.as_ref(), ErrorCode::TIMEOUT)).collect();
    instances[0].worker.report(&reports).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move {
            let mut changed = 0;
            for _ in 0..12 {
                let results = stores.orchestrator.apply(20, &decide(MUCH_LATER)).await.unwrap().results;
                changed += results.iter().filter(|result| result.changed).count();
            }
            changed
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 200);
    let once = "webhook_delivery_sagas WHERE status = 'PendingRetry' AND attempt_count = 1";
    assert_eq!(count(db, once).await, 200);
    assert_eq!(count(db, "finished_jobs").await, 0);
    let failures = ids(db, "SELECT sum(failed) FROM delivery_counts").await;
    assert_eq!(failures, [200]);
}
