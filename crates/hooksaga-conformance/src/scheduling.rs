//! Scheduling: which sagas get a job now, and the move to InProgress.

use super::{
    TestDatabase,
    fixture::{
        AT_ONCE, MANY, MUCH_LATER, TOKEN, TYPE, URL, append, append_many, apply, claim, deliver_round,
        failed, finish_claimable, leased, mark, new_event, only, open_admission, pending_saga, route,
        saga_in, schedule_and_mark, verified, verified_with_limit,
    },
    rows::{count, db_now, job_row, jobs_of, saga_row},
};
use hooksaga_saga::{Applied, ErrorCode, JobStatus, Saga, SagaId, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{Admission, Decide, FinishedJob, NewEvent, SubscriptionPatch};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

const HOUR: Duration = Duration::from_secs(3600);

pub async fn a_due_saga_gets_a_job_and_is_itself_not_changed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    append(&stores, NewEvent { correlation_id: "c-9".to_owned(), ..new_event(TYPE) }).await;
    let saga = only(route(&stores).await);
    let before = saga_row(db, saga).await;

    let pass = stores.orchestrator.schedule(&open_admission()).await.unwrap();
    assert!(pass.now >= before.next_attempt_at);
    let scheduled = only(pass.sagas);
    assert_eq!((scheduled.saga_id, scheduled.subscription_id), (saga, subscription));
    assert_eq!(scheduled.attempt_at, before.next_attempt_at);
    assert_eq!(scheduled.correlation_id, "c-9");
    assert_eq!(saga_row(db, saga).await, before);

    let job = job_row(db, scheduled.job_id.expect("the job is new")).await;
    assert_eq!((job.saga_id, job.subscription_id), (saga, subscription));
    assert_eq!(job.attempt_at, before.next_attempt_at);
    assert_eq!((job.status, job.lease_token, job.lease_resets), (JobStatus::Pending, None, 0));
    assert!(job.lease_until <= pass.now, "it can be claimed at once");
    assert_eq!((job.error_code, job.response_status, job.duration_ms), (None, None, None));
}

pub async fn a_pass_that_died_before_the_move_is_repeated_without_a_second_job(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let first = only(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas);
    let job = first.job_id.expect("the job is new");
    let before = job_row(db, job).await;
    for _ in 0..2 {
        let again = only(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas);
        assert_eq!(again.job_id, None, "it was there already");
        assert_eq!((again.saga_id, again.attempt_at), (first.saga_id, first.attempt_at));
        assert_eq!(again.correlation_id, first.correlation_id);
    }
    assert_eq!(jobs_of(db, saga).await, [job]);
    assert_eq!(job_row(db, job).await, before);

    assert_eq!(mark(&stores, std::slice::from_ref(&first)).await, 1);
    assert_eq!(saga_row(db, saga).await.status, SagaStatus::InProgress);
    assert_eq!(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas, []);
}

pub async fn the_move_changes_the_status_and_nothing_else(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let before = saga_row(db, saga).await;
    assert_eq!(schedule_and_mark(&stores).await.len(), 1);
    let after = saga_row(db, saga).await;
    assert!(after.updated_at >= before.updated_at);
    let expected =
        super::rows::SagaRow { status: SagaStatus::InProgress, updated_at: after.updated_at, ..before };
    assert_eq!(after, expected);
}

pub async fn the_move_is_made_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    pending_saga(&stores).await;
    let scheduled = schedule_and_mark(&stores).await;
    assert_eq!(mark(&stores, &scheduled).await, 0);
    assert_eq!(stores.orchestrator.mark_in_progress(&[]).await.unwrap(), 0);
    let unknown = (SagaId(999_999), scheduled[0].attempt_at);
    assert_eq!(stores.orchestrator.mark_in_progress(&[unknown]).await.unwrap(), 0);
}

pub async fn the_move_needs_the_attempt_that_was_read(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let before = saga_row(db, saga).await;
    for micros in [-1, 1] {
        let other = Timestamp::from_micros(before.next_attempt_at.as_micros() + micros);
        assert_eq!(stores.orchestrator.mark_in_progress(&[(saga, other)]).await.unwrap(), 0);
    }
    assert_eq!(saga_row(db, saga).await, before);

    // The same for a retry: the key of the attempt before no longer moves it.
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    let retry = saga_row(db, saga).await;
    assert_eq!(retry.status, SagaStatus::PendingRetry);
    assert_eq!(stores.orchestrator.mark_in_progress(&[(saga, before.next_attempt_at)]).await.unwrap(), 0);
    assert_eq!(saga_row(db, saga).await, retry);
}

pub async fn a_finished_saga_is_not_reopened_by_a_late_move(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let scheduled = schedule_and_mark(&stores).await;
    finish_claimable(&stores, None, AT_ONCE).await;
    let before = saga_row(db, saga).await;
    assert_eq!(before.status, SagaStatus::Completed);
    assert_eq!(mark(&stores, &scheduled).await, 0);
    let own_key = [(saga, before.next_attempt_at)];
    assert_eq!(stores.orchestrator.mark_in_progress(&own_key).await.unwrap(), 0);
    assert_eq!(saga_row(db, saga).await, before);
    assert_eq!(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas, []);
}

pub async fn a_dead_saga_is_neither_scheduled_nor_reopened(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = saga_in(db, SagaStatus::DeadLettered).await.saga_id;
    let before = saga_row(db, saga).await;
    assert_eq!(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas, []);
    let own_key = [(saga, before.next_attempt_at)];
    assert_eq!(stores.orchestrator.mark_in_progress(&own_key).await.unwrap(), 0);
    assert_eq!(saga_row(db, saga).await, before);
}

pub async fn a_saga_is_not_scheduled_before_it_is_due(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = pending_saga(&stores).await;
    schedule_and_mark(&stores).await;
    let d = db.dialect();
    let (now, later) = (d.time(db_now(db).await), d.time(db_now(db).await.after(HOUR)));
    let sql = format!(
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
         max_retry_limit, next_attempt_at, created_at, updated_at) \
         VALUES ({}, {}, 1, 'Pending', 0, 5, {later}, {now}, {now})",
        fixed.event_id, fixed.subscription_id
    );
    assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    assert_eq!(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas, []);
}

pub async fn a_retry_is_scheduled_when_it_is_due_and_not_before(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    let due_event = append(&stores, new_event(TYPE)).await.id;
    let due = only(route(&stores).await);
    append(&stores, new_event(TYPE)).await;
    let waiting = only(route(&stores).await);
    schedule_and_mark(&stores).await;
    let claimed = claim(&stores, TOKEN).await;
    let reports: Vec<_> = claimed.jobs.iter().map(|job| failed(job.as_ref(), ErrorCode::http(500))).collect();
    stores.worker.report(&reports).await.unwrap();
    let policies: Decide = Arc::new(move |job: &FinishedJob, now: Timestamp| {
        let policy = if job.saga_id == due { AT_ONCE } else { MUCH_LATER };
        hooksaga_saga::apply_result(&job.saga, &job.result, &policy, now)
    });
    assert_eq!(stores.orchestrator.apply(MANY, &policies).await.unwrap().results.len(), 2);

    let row = saga_row(db, due).await;
    assert_eq!((row.status, row.event_id), (SagaStatus::PendingRetry, due_event));
    let scheduled = only(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas);
    assert_eq!((scheduled.saga_id, scheduled.attempt_at), (due, row.next_attempt_at));
    assert!(scheduled.job_id.is_some(), "a new job: finished ones are never reused");
    assert_eq!(mark(&stores, &[scheduled]).await, 1);
    assert_eq!(saga_row(db, due).await.status, SagaStatus::InProgress);
    assert_eq!(jobs_of(db, due).await.len(), 2);
    assert_eq!(jobs_of(db, waiting).await.len(), 1);
}

pub async fn a_saga_at_its_limit_gets_no_job(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 1).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let job = only(claim(&stores, TOKEN).await.jobs);
    stores.worker.report(&[failed(job.as_ref(), ErrorCode::TIMEOUT)]).await.unwrap();
    // No decision of the product's leaves a saga so; the guard is there all the same.
    let strand: Decide = Arc::new(|job: &FinishedJob, now: Timestamp| Applied::Changed {
        saga: Saga {
            status: SagaStatus::PendingRetry,
            attempt_count: job.saga.attempt_count + 1,
            next_attempt_at: now.max(job.saga.next_attempt_at.after(Duration::from_micros(1))),
            final_error_code: Some(ErrorCode::TIMEOUT),
            ..job.saga.clone()
        },
        promoted: false,
    });
    assert!(only(stores.orchestrator.apply(MANY, &strand).await.unwrap().results).changed);
    assert_eq!(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas, []);
}

pub async fn a_subscription_gets_no_more_jobs_than_it_has_room_for(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    append_many(&stores, 8).await;
    route(&stores).await;
    let room = |jobs| Admission { default_room: jobs, ..open_admission() };
    let pass = async |admission: Admission| {
        let sagas = stores.orchestrator.schedule(&admission).await.unwrap().sagas;
        mark(&stores, &sagas).await;
        sagas.len()
    };
    assert_eq!(pass(room(2)).await, 2);
    assert_eq!(pass(room(0)).await, 0);
    let mut named = room(3);
    named.room.insert(subscription, 1);
    assert_eq!(pass(named.clone()).await, 1, "its own rather than the default");
    named.room.insert(subscription, 0);
    assert_eq!(pass(named).await, 0);
    assert_eq!(pass(room(MANY)).await, 5);
    assert_eq!(count(db, "webhook_delivery_jobs WHERE status IN ('Pending', 'Leased')").await, 8);
}

pub async fn a_pass_finds_what_it_is_told_of_and_the_next_one_the_rest(db: &dyn TestDatabase) {
    let stores = db.stores();
    let one = verified(&stores, TYPE, "https://one.example/").await;
    let two = verified(&stores, TYPE, "https://two.example/").await;
    let pass = async |room: u32, only: Option<SubscriptionId>| {
        let only = only.map(|id| BTreeSet::from([id]));
        let admission = Admission { default_room: room, only, ..open_admission() };
        let sagas = stores.orchestrator.schedule(&admission).await.unwrap().sagas;
        assert!(sagas.iter().all(|saga| saga.job_id.is_some()), "{sagas:?}");
        mark(&stores, &sagas).await;
        sagas
    };
    // Twice, since the second time it is known how far the first one came.
    for _ in 0..2 {
        append_many(&stores, 5).await;
        route(&stores).await;
        let of_one = pass(2, Some(one)).await.iter().filter(|saga| saga.subscription_id == one).count();
        assert_eq!(of_one, 2, "as many as there is room for");
        pass(0, Some(one)).await;
        pass(MANY, Some(two)).await;
        pass(MANY, None).await;
        assert_eq!(pass(MANY, None).await, []);
    }
    assert_eq!(count(db, "webhook_delivery_jobs").await, 20);

    // One that is older than what was scheduled last: nobody who looks for the new ones need see it.
    append_many(&stores, 1).await;
    route(&stores).await;
    let d = db.dialect();
    let hour_ago = d.time(Timestamp::from_micros(db_now(db).await.as_micros() - 3_600_000_000));
    let sql = format!(
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
         max_retry_limit, next_attempt_at, created_at, updated_at) \
         VALUES (1, {one}, 1, 'Pending', 0, 5, {hour_ago}, {hour_ago}, {hour_ago})"
    );
    assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    let mut found = pass(MANY, Some(one)).await;
    assert!(found.iter().any(|found| found.subscription_id == one), "{found:?}");
    found.extend(pass(MANY, None).await);
    assert_eq!(found.len(), 3);

    append_many(&stores, 1).await;
    route(&stores).await;
    let paused = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(one, &paused).await.unwrap();
    let found = pass(MANY, Some(one)).await;
    assert!(found.iter().all(|found| found.subscription_id == two), "{found:?}");
}

pub async fn a_job_is_open_until_its_result_is_applied(db: &dyn TestDatabase) {
    let stores = db.stores();
    let one = verified(&stores, TYPE, "https://one.example/").await;
    let two = verified(&stores, TYPE, "https://two.example/").await;
    assert_eq!(stores.orchestrator.open_jobs().await.unwrap(), HashMap::new());
    append_many(&stores, 3).await;
    route(&stores).await;
    let admission = Admission { room: HashMap::from([(two, 2)]), ..open_admission() };
    let sagas = stores.orchestrator.schedule(&admission).await.unwrap().sagas;
    mark(&stores, &sagas).await;
    let all = HashMap::from([(one, 3), (two, 2)]);
    assert_eq!(stores.orchestrator.open_jobs().await.unwrap(), all, "they wait for a worker");
    let claimed = claim(&stores, TOKEN).await;
    assert_eq!(stores.orchestrator.open_jobs().await.unwrap(), all, "they are leased");
    let of_two = claimed.jobs.iter().filter(|job| job.held.subscription_id == two);
    let reports: Vec<_> = of_two.map(|job| super::fixture::delivered(job.as_ref())).collect();
    stores.worker.report(&reports).await.unwrap();
    assert_eq!(stores.orchestrator.open_jobs().await.unwrap(), all, "results wait to be applied");
    assert_eq!(apply(&stores, AT_ONCE).await.results.len(), 2);
    assert_eq!(stores.orchestrator.open_jobs().await.unwrap(), HashMap::from([(one, 3)]));
}

pub async fn the_oldest_of_a_subscription_go_first(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = pending_saga(&stores).await;
    schedule_and_mark(&stores).await;
    let d = db.dialect();
    for (generation, age) in [(1, 50_u64), (2, 90), (3, 10), (4, 70)] {
        let at =
            Timestamp::from_micros(db_now(db).await.as_micros() - i64::try_from(age * 1_000_000).unwrap());
        let at = d.time(at);
        let sql = format!(
            "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, \
             attempt_count, max_retry_limit, next_attempt_at, created_at, updated_at) \
             VALUES ({}, {}, {generation}, 'Pending', 0, 5, {at}, {at}, {at})",
            fixed.event_id, fixed.subscription_id
        );
        assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    }
    let admission = Admission { default_room: 2, ..open_admission() };
    let mut generations = Vec::new();
    for saga in stores.orchestrator.schedule(&admission).await.unwrap().sagas {
        generations.push(saga_row(db, saga.saga_id).await.generation);
    }
    generations.sort_unstable();
    assert_eq!(generations, [2, 4]);
}

pub async fn work_of_a_paused_or_unverified_subscription_waits_unchanged(db: &dyn TestDatabase) {
    let stores = db.stores();
    let paused = verified(&stores, TYPE, "https://paused.example/").await;
    let moved = verified(&stores, TYPE, "https://old.example/").await;
    let good = verified(&stores, TYPE, "https://good.example/").await;
    append_many(&stores, 2).await;
    route(&stores).await;
    let pause = |active| SubscriptionPatch { active: Some(active), ..SubscriptionPatch::default() };
    let to =
        |url: &str| SubscriptionPatch { callback_url: Some(url.to_owned()), ..SubscriptionPatch::default() };
    stores.admin.update(paused, &pause(false)).await.unwrap();
    stores.admin.update(moved, &to("https://new.example/")).await.unwrap();
    let before = super::rows::all_rows(db, "webhook_delivery_sagas").await;

    let sagas = stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas;
    assert_eq!(sagas.iter().map(|saga| saga.subscription_id).collect::<Vec<_>>(), [good, good]);
    assert_eq!(super::rows::all_rows(db, "webhook_delivery_sagas").await, before);
    mark(&stores, &sagas).await;

    stores.admin.update(paused, &pause(true)).await.unwrap();
    stores.admin.update(moved, &to("https://old.example/")).await.unwrap();
    let sagas = stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas;
    let resumed: HashSet<_> = sagas.iter().map(|saga| saga.subscription_id).collect();
    assert_eq!((sagas.len(), resumed), (4, HashSet::from([paused, moved])));
}

pub async fn a_long_backlog_does_not_starve_another_subscription(db: &dyn TestDatabase) {
    let stores = db.stores();
    let busy = verified(&stores, TYPE, "https://busy.example/").await;
    append_many(&stores, 300).await;
    route(&stores).await;
    let quiet = verified(&stores, TYPE, "https://quiet.example/").await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;

    let admission = Admission { default_room: 8, limit: 10, ..open_admission() };
    let sagas = stores.orchestrator.schedule(&admission).await.unwrap().sagas;
    let of = |id| sagas.iter().filter(|saga| saga.subscription_id == id).count();
    assert_eq!((of(busy), of(quiet)), (8, 1));
}

pub async fn a_pass_makes_no_more_jobs_than_its_limit(db: &dyn TestDatabase) {
    let stores = db.stores();
    for n in 0..5 {
        verified(&stores, TYPE, &format!("https://receiver.example/{n}")).await;
    }
    append_many(&stores, 2).await;
    route(&stores).await;
    let mut seen = HashSet::new();
    for expected in [3, 3, 3, 1, 0] {
        let admission = Admission { limit: 3, ..open_admission() };
        let sagas = stores.orchestrator.schedule(&admission).await.unwrap().sagas;
        assert_eq!(sagas.len(), expected);
        mark(&stores, &sagas).await;
        seen.extend(sagas.iter().map(|saga| saga.saga_id));
    }
    assert_eq!(seen.len(), 10, "every saga had its turn");
    assert_eq!(count(db, "webhook_delivery_jobs").await, 10);
}

pub async fn an_in_progress_saga_gets_no_second_job(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, _) = leased(db).await;
    assert_eq!(stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas, []);
    assert_eq!(apply(&stores, AT_ONCE).await.results, []);
    assert_eq!(jobs_of(db, fixed.saga_id).await.len(), 1);
}

pub async fn two_orchestrators_at_once_make_one_job_per_saga(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    verified(&instances[0], TYPE, URL).await;
    append_many(&instances[0], 200).await;
    route(&instances[0]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move {
            let mut made = (0, 0);
            for _ in 0..4 {
                let sagas = stores.orchestrator.schedule(&open_admission()).await.unwrap().sagas;
                made.0 += sagas.iter().filter(|saga| saga.job_id.is_some()).count();
                made.1 += mark(&stores, &sagas).await;
            }
            made
        });
    }
    let made = tasks.join_all().await.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!(made, (200, 200), "each job is somebody's, and so is each move");
    assert_eq!(count(db, "webhook_delivery_jobs").await, 200);
    assert_eq!(count(db, "webhook_delivery_sagas WHERE status = 'InProgress'").await, 200);
}
