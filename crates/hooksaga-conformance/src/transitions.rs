//! Changes of sagas and jobs that the schema refuses to every role, even to the owner. These cases try them as the owner.

use super::{
    TestDatabase,
    fixture::{
        AT_ONCE, MANY, MUCH_LATER, TOKEN, TYPE, URL, append, claim, deliver_round, delivered, failed, leased,
        new_event, only, pending_saga, route, schedule_and_mark, up_to, verified_with_limit,
    },
    guards::{later, no_change, refused, text},
    rows::{all_rows, changes, count, job_row, jobs_of, saga_row},
};
use hooksaga_saga::{ErrorCode, JobId, JobStatus, SagaId, SagaStatus, Timestamp};

/// One saga in each status, in the order of [`SagaStatus::ALL`], all of one subscription.
async fn a_saga_in_each_status(db: &dyn TestDatabase) -> Vec<(SagaStatus, SagaId)> {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 2).await;
    let mut made = Vec::new();
    // Sagas that are final, not due or not scheduled yet stay as they are while the next one is driven.
    for status in SagaStatus::ALL.iter().rev() {
        append(&stores, new_event(TYPE)).await;
        let saga = only(route(&stores).await);
        match status {
            SagaStatus::Pending => {}
            SagaStatus::InProgress => {
                schedule_and_mark(&stores).await;
            }
            SagaStatus::PendingRetry => {
                deliver_round(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
            }
            SagaStatus::Completed => {
                deliver_round(&stores, None, AT_ONCE).await;
            }
            SagaStatus::DeadLettered => {
                deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
                deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
            }
        }
        made.push((*status, saga));
    }
    made.reverse();
    for (status, saga) in &made {
        assert_eq!(saga_row(db, *saga).await.status, *status);
    }
    made
}

/// One job in each status, in the order of [`JobStatus::ALL`].
async fn a_job_in_each_status(db: &dyn TestDatabase) -> Vec<(JobStatus, JobId)> {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 2).await;
    let mut made = Vec::new();
    for status in JobStatus::ALL.iter().rev() {
        append(&stores, new_event(TYPE)).await;
        let saga = only(route(&stores).await);
        schedule_and_mark(&stores).await;
        let job = only(jobs_of(db, saga).await);
        if *status != JobStatus::Pending {
            let lease = only(claim(&stores, TOKEN).await.jobs).as_ref();
            assert_eq!(lease.job_id, job);
            match status {
                JobStatus::Completed => drop(stores.worker.report(&[delivered(lease)]).await.unwrap()),
                JobStatus::Failed => {
                    stores.worker.report(&[failed(lease, ErrorCode::TIMEOUT)]).await.unwrap();
                }
                JobStatus::Pending | JobStatus::Leased => {}
            }
        }
        made.push((*status, job));
    }
    made.reverse();
    for (status, job) in &made {
        assert_eq!(job_row(db, *job).await.status, *status);
    }
    made
}

pub async fn a_final_saga_changes_in_no_column(db: &dyn TestDatabase) {
    let d = db.dialect();
    for (status, saga) in a_saga_in_each_status(db).await {
        if !status.is_final() {
            continue;
        }
        let mut attempts = vec![
            ("id", "id + 1000".to_owned()),
            ("event_id", "event_id + 1000".to_owned()),
            ("subscription_id", "subscription_id + 1000".to_owned()),
            ("generation", "generation + 1".to_owned()),
            ("attempt_count", "attempt_count + 1".to_owned()),
            ("attempt_count", "attempt_count - 1".to_owned()),
            ("max_retry_limit", "max_retry_limit + 1".to_owned()),
            ("next_attempt_at", later(d)),
            ("final_error_code", text("OTHER")),
            ("created_at", later(d)),
            ("updated_at", later(d)),
        ];
        if status == SagaStatus::DeadLettered {
            attempts.push(("final_error_code", "NULL".to_owned()));
        }
        no_change(db, "webhook_delivery_sagas", saga.0, &attempts).await;
        let same = format!(
            "UPDATE webhook_delivery_sagas SET status = status, attempt_count = attempt_count, \
             next_attempt_at = next_attempt_at, final_error_code = final_error_code, updated_at = updated_at \
             WHERE id = {saga}"
        );
        let answer = db.execute_as_owner(&same).await;
        assert!(answer.is_ok(), "a statement that changes nothing is not refused: {answer:?}");
    }
}

pub async fn a_saga_takes_no_step_that_is_not_legal(db: &dyn TestDatabase) {
    use SagaStatus::{Completed, DeadLettered, InProgress, Pending, PendingRetry};
    let legal = [
        (Pending, InProgress),
        (PendingRetry, InProgress),
        (InProgress, Completed),
        (InProgress, PendingRetry),
        (InProgress, DeadLettered),
    ];
    let sagas = a_saga_in_each_status(db).await;
    let before = all_rows(db, "webhook_delivery_sagas").await;
    for (from, saga) in &sagas {
        for to in SagaStatus::ALL {
            if from == to || legal.contains(&(*from, *to)) {
                continue;
            }
            let sql = format!("UPDATE webhook_delivery_sagas SET status = '{to}' WHERE id = {saga}");
            refused(db, &sql).await;
        }
    }
    assert_eq!(all_rows(db, "webhook_delivery_sagas").await, before);
}

pub async fn an_open_saga_keeps_its_identity_and_its_attempt(db: &dyn TestDatabase) {
    let d = db.dialect();
    let earlier = d.time(Timestamp::from_micros(1_000_000));
    for (status, saga) in a_saga_in_each_status(db).await {
        if status.is_final() {
            continue;
        }
        let attempts = [
            ("id", "id + 1000".to_owned()),
            ("event_id", "event_id + 1000".to_owned()),
            ("subscription_id", "subscription_id + 1000".to_owned()),
            ("generation", "generation + 1".to_owned()),
            ("max_retry_limit", "max_retry_limit + 1".to_owned()),
            ("created_at", later(d)),
            ("attempt_count", "attempt_count + 1".to_owned()),
            ("next_attempt_at", later(d)),
            ("next_attempt_at", earlier.clone()),
        ];
        no_change(db, "webhook_delivery_sagas", saga.0, &attempts).await;
        if status == SagaStatus::InProgress {
            let leave = |to: &str, count: &str, next: &str| {
                format!(
                    "UPDATE webhook_delivery_sagas SET status = '{to}', attempt_count = {count}, \
                     next_attempt_at = {next}, final_error_code = 'X' WHERE id = {saga}"
                )
            };
            refused(db, &leave("PendingRetry", "attempt_count + 2", &later(d))).await;
            refused(db, &leave("PendingRetry", "attempt_count - 1", &later(d))).await;
            refused(db, &leave("PendingRetry", "attempt_count + 1", &earlier)).await;
            refused(db, &leave("DeadLettered", "attempt_count + 1", &earlier)).await;
            // A result always counts as an attempt, and the key of the next attempt's job must be free.
            refused(db, &leave("Completed", "attempt_count", "next_attempt_at")).await;
            refused(db, &leave("DeadLettered", "attempt_count", "next_attempt_at")).await;
            refused(db, &leave("PendingRetry", "attempt_count + 1", "next_attempt_at")).await;
            changes(db, &leave("PendingRetry", "attempt_count + 1", &later(d)), 1).await;
        } else {
            let enter = format!(
                "UPDATE webhook_delivery_sagas SET status = 'InProgress', attempt_count = attempt_count + 1 \
                 WHERE id = {saga}"
            );
            refused(db, &enter).await;
        }
    }
}

pub async fn a_saga_is_never_deleted(db: &dyn TestDatabase) {
    for (_, saga) in a_saga_in_each_status(db).await {
        refused(db, &format!("DELETE FROM webhook_delivery_sagas WHERE id = {saga}")).await;
    }
    assert_eq!(count(db, "webhook_delivery_sagas").await, 5);
}

pub async fn a_saga_is_born_pending_and_once_per_generation(db: &dyn TestDatabase) {
    let fixed = pending_saga(&db.stores()).await;
    let now = db.dialect().now();
    let insert = |generation: u32, status: &str, attempt_count: u32, limit: u32| {
        format!(
            "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, \
             attempt_count, max_retry_limit, next_attempt_at, created_at, updated_at) \
             VALUES ({}, {}, {generation}, '{status}', {attempt_count}, {limit}, {now}, {now}, {now})",
            fixed.event_id, fixed.subscription_id
        )
    };
    for status in &SagaStatus::ALL[1..] {
        refused(db, &insert(1, status.as_str(), 0, 5)).await;
    }
    refused(db, &insert(1, "Pending", 1, 5)).await;
    refused(db, &insert(1, "Pending", 0, 0)).await;
    refused(db, &insert(1, "Pending", 0, 101)).await;
    refused(db, &insert(0, "Pending", 0, 5)).await;
    assert!(db.execute_as_owner(&insert(1, "Finished", 0, 5)).await.is_err());
    changes(db, &insert(1, "Pending", 0, 100), 1).await;
    refused(db, &insert(1, "Pending", 0, 100)).await;
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);
}

pub async fn a_finished_job_changes_in_no_column(db: &dyn TestDatabase) {
    let d = db.dialect();
    for (status, job) in a_job_in_each_status(db).await {
        if status.is_active() {
            continue;
        }
        let attempts = [
            ("id", "id + 1000".to_owned()),
            ("saga_id", "saga_id + 1000".to_owned()),
            ("subscription_id", "subscription_id + 1000".to_owned()),
            ("attempt_at", later(d)),
            ("lease_until", later(d)),
            ("lease_token", "5".to_owned()),
            ("lease_resets", "lease_resets + 1".to_owned()),
            ("response_status", "500".to_owned()),
            ("error_code", text("OTHER")),
            ("duration_ms", "duration_ms + 1".to_owned()),
            ("started_at", later(d)),
            ("callback_url", text("https://receiver.example/other")),
            ("retry_at", later(d)),
            ("response_excerpt", text("another")),
            ("created_at", later(d)),
            ("updated_at", later(d)),
        ];
        no_change(db, "webhook_delivery_jobs", job.0, &attempts).await;
        let same = format!(
            "UPDATE webhook_delivery_jobs SET status = status, lease_until = lease_until, \
             error_code = error_code, updated_at = updated_at WHERE id = {job}"
        );
        let answer = db.execute_as_owner(&same).await;
        assert!(answer.is_ok(), "a statement that changes nothing is not refused: {answer:?}");
    }
}

pub async fn a_job_takes_no_step_that_is_not_legal(db: &dyn TestDatabase) {
    use JobStatus::{Completed, Failed, Leased, Pending};
    let legal = [(Pending, Leased), (Leased, Pending), (Leased, Completed), (Leased, Failed)];
    let jobs = a_job_in_each_status(db).await;
    let before = all_rows(db, "webhook_delivery_jobs").await;
    for (from, job) in &jobs {
        for to in JobStatus::ALL {
            if from == to || legal.contains(&(*from, *to)) {
                continue;
            }
            // The row passes every CHECK, so that only the transition is wrong.
            let token = if *to == Leased { "1" } else { "NULL" };
            let code = if *to == Failed { "'X'" } else { "NULL" };
            let sql = format!(
                "UPDATE webhook_delivery_jobs SET status = '{to}', lease_token = {token}, \
                 error_code = {code} WHERE id = {job}"
            );
            refused(db, &sql).await;
        }
    }
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, before);
}

pub async fn an_active_job_keeps_its_identity(db: &dyn TestDatabase) {
    let d = db.dialect();
    for (status, job) in a_job_in_each_status(db).await {
        if !status.is_active() {
            continue;
        }
        let attempts = [
            ("id", "id + 1000".to_owned()),
            ("saga_id", "saga_id + 1000".to_owned()),
            ("subscription_id", "subscription_id + 1000".to_owned()),
            ("attempt_at", later(d)),
            ("created_at", later(d)),
        ];
        no_change(db, "webhook_delivery_jobs", job.0, &attempts).await;
    }
}

pub async fn a_job_is_never_deleted(db: &dyn TestDatabase) {
    for (_, job) in a_job_in_each_status(db).await {
        refused(db, &format!("DELETE FROM webhook_delivery_jobs WHERE id = {job}")).await;
    }
    assert_eq!(count(db, "webhook_delivery_jobs").await, 4);
}

pub async fn a_saga_has_one_active_job_and_one_job_per_attempt(db: &dyn TestDatabase) {
    let (fixed, lease) = leased(db).await;
    let d = db.dialect();
    let (columns, values) = d.more_of_a_job();
    let insert_as = |status: &str, attempt_at: Timestamp| {
        format!(
            "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, \
             lease_resets, created_at, updated_at{columns}) \
             SELECT id, subscription_id, {}, '{status}', {now}, 0, {now}, {now}{values} \
             FROM webhook_delivery_sagas WHERE id = {}",
            d.time(attempt_at),
            fixed.saga_id,
            now = d.now()
        )
    };
    let insert = |attempt_at| insert_as("Pending", attempt_at);
    let first = job_row(db, lease.job_id).await.attempt_at;
    let second = Timestamp::from_micros(first.as_micros() + 1);
    refused(db, &insert(second)).await;
    let stores = db.stores();
    stores.worker.report(&[failed(lease, ErrorCode::TIMEOUT)]).await.unwrap();
    refused(db, &insert(first)).await;
    refused(db, &insert_as("Completed", second)).await;
    changes(db, &insert(second), 1).await;
    refused(db, &insert(Timestamp::from_micros(first.as_micros() + 2))).await;
    assert_eq!(
        stores.worker.claim(&up_to(MANY), TOKEN.lasting(std::time::Duration::ZERO)).await.unwrap().jobs.len(),
        1
    );
    refused(db, &insert(Timestamp::from_micros(first.as_micros() + 3))).await;
}

pub async fn a_jobs_columns_fit_its_status(db: &dyn TestDatabase) {
    let jobs = a_job_in_each_status(db).await;
    let (pending, held) = (jobs[0].1, jobs[1].1);
    let set = |job: JobId, what: &str| format!("UPDATE webhook_delivery_jobs SET {what} WHERE id = {job}");
    for sql in [
        set(pending, "lease_token = 1"),
        set(pending, "error_code = 'X'"),
        set(pending, "status = 'Leased'"),
        set(held, "lease_token = NULL"),
        set(held, "error_code = 'X'"),
        set(held, "status = 'Pending'"),
        set(held, "status = 'Completed'"),
        set(held, "status = 'Failed', lease_token = NULL"),
        set(held, "status = 'Completed', lease_token = NULL, error_code = 'X'"),
        set(held, &format!("response_excerpt = '{}'", "é".repeat(2049))),
    ] {
        refused(db, &sql).await;
    }
    changes(db, &set(held, "status = 'Failed', lease_token = NULL, error_code = 'X'"), 1).await;
}
