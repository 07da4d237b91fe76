//! Scheduling: which sagas get a job now, and the move to InProgress.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, MANY, MUCH_LATER, TOKEN, TYPE, URL, allot, append, append_many, apply, claim,
        correlation, create_jobs, create_jobs_and_die, failed, finish_claimable, leased, new_event, only,
        pending_saga, route, saga_in, schedule, schedule_and_mark, url, verified, verified_with_limit,
    },
    rows::{count, db_now, job_row, jobs_of, saga_row},
};
use hooksaga_saga::{Applied, ErrorCode, JobStatus, Saga, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{
    Allotted, Decide, FinishedJob, Move, NewEvent, ScheduledSaga, Stores, SubscriptionPatch, Trace,
};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

const HOUR: Duration = Duration::from_secs(3600);

pub async fn a_due_saga_gets_a_job_and_is_itself_not_changed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    append(&stores, NewEvent { correlation_id: correlation("c-9"), ..new_event(TYPE) }).await;
    let saga = only(route(&stores).await);
    let before = saga_row(db, saga).await;

    let pass = create_jobs_and_die(&stores, &allot(&stores, MANY).await).await;
    assert!(pass.now >= before.next_attempt_at);
    let scheduled = only(pass.sagas);
    assert_eq!((scheduled.saga_id, scheduled.subscription_id), (saga, subscription));
    assert_eq!(scheduled.attempt_at, before.next_attempt_at);
    assert_eq!(scheduled.trace, Trace::new("default", "c-9"));
    assert_eq!(saga_row(db, saga).await, before);

    let job = job_row(db, scheduled.job_id.expect("the job is new")).await;
    assert_eq!((job.saga_id, job.subscription_id), (saga, subscription));
    assert_eq!(job.attempt_at, before.next_attempt_at);
    assert_eq!((job.status, job.lease_token, job.lease_resets), (JobStatus::Pending, None, 0));
    assert!(job.lease_until <= db_now(db).await.after(Duration::from_millis(2)), "it can be claimed at once");
    assert!(job.lease_until > before.next_attempt_at, "from its admission on, however long the saga was due");
    assert_eq!((job.error_code, job.response_status, job.duration_ms), (None, None, None));
}

pub async fn a_pass_that_died_before_the_move_is_repeated_without_a_second_job(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let first = only(schedule(&stores).await);
    let job = first.job_id.expect("the job is new");
    let before = job_row(db, job).await;
    for _ in 0..2 {
        let again = only(schedule(&stores).await);
        assert_eq!(again.job_id, None, "it was there already");
        assert_eq!((again.saga_id, again.attempt_at), (first.saga_id, first.attempt_at));
        assert_eq!(again.trace, first.trace);
    }
    assert_eq!(jobs_of(db, saga).await, [job]);
    assert_eq!(job_row(db, job).await, before);

    let moved = only(schedule_and_mark(&stores).await);
    assert_eq!((moved.job_id, moved.saga_id, moved.attempt_at), (None, first.saga_id, first.attempt_at));
    assert_eq!(jobs_of(db, saga).await, [job]);
    assert_eq!(saga_row(db, saga).await.status, SagaStatus::InProgress);
    assert_eq!(schedule(&stores).await, []);
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

/// A pass over everything that is due, with a callback between its two transactions.
async fn pass_with(stores: &Stores, between: impl Fn() + Send + Sync) -> Vec<ScheduledSaga> {
    let allotted = allot(stores, MANY).await;
    let created = || {
        between();
        Move::Now
    };
    stores.orchestrator.create_jobs(&allotted, &created).await.unwrap().sagas
}

/// Runs a future to its end from within a callback.
fn wait_for<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work))
}

pub async fn the_workers_hear_of_the_jobs_before_the_move(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let elsewhere = db.second_instance().await;
    let heard = AtomicU32::new(0);
    let sagas = pass_with(&stores, || {
        heard.fetch_add(1, Ordering::SeqCst);
        let job = only(wait_for(claim(&elsewhere, TOKEN)).jobs);
        assert_eq!(job.held.saga_id, saga, "it can be claimed");
        assert_eq!(wait_for(saga_row(db, saga)).status, SagaStatus::Pending, "and is not moved yet");
    })
    .await;
    assert_eq!((sagas.len(), heard.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(saga_row(db, saga).await.status, SagaStatus::InProgress);
    let nothing =
        stores.orchestrator.create_jobs(&[], &|| panic!("there is no job to hear of")).await.unwrap();
    assert_eq!(nothing.sagas, []);
}

pub async fn a_finished_saga_is_not_reopened_by_a_late_move(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let elsewhere = db.second_instance().await;
    // The job is finished and applied before the pass that created it moves the saga.
    pass_with(&stores, || {
        let applied = wait_for(finish_claimable(&elsewhere, None, AT_ONCE));
        assert!(only(applied.results).changed);
    })
    .await;
    let row = saga_row(db, saga).await;
    assert_eq!((row.status, row.attempt_count), (SagaStatus::Completed, 1));
    assert_eq!(schedule(&stores).await, []);
}

pub async fn the_move_needs_the_attempt_that_was_read(db: &dyn TestDatabase) {
    let stores = db.stores();
    let saga = pending_saga(&stores).await.saga_id;
    let elsewhere = db.second_instance().await;
    // The attempt fails before the move. The saga then waits for its next attempt, which the move must not touch.
    pass_with(&stores, || {
        let applied = wait_for(finish_claimable(&elsewhere, Some(ErrorCode::TIMEOUT), AT_ONCE));
        assert!(only(applied.results).changed);
    })
    .await;
    let row = saga_row(db, saga).await;
    assert_eq!((row.status, row.attempt_count), (SagaStatus::PendingRetry, 1));
    assert_eq!(only(schedule(&stores).await).attempt_at, row.next_attempt_at);
}

pub async fn a_dead_saga_is_neither_scheduled_nor_reopened(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = saga_in(db, SagaStatus::DeadLettered).await;
    let before = saga_row(db, fixed.saga_id).await;
    assert_eq!(schedule(&stores).await, []);
    let all = [Allotted { subscription_id: fixed.subscription_id, jobs: MANY }];
    assert_eq!(create_jobs(&stores, &all).await, [], "whatever it is allotted");
    assert_eq!(saga_row(db, fixed.saga_id).await, before);
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
    assert_eq!(schedule(&stores).await, []);
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
    let scheduled = only(schedule(&stores).await);
    assert_eq!((scheduled.saga_id, scheduled.attempt_at), (due, row.next_attempt_at));
    assert!(scheduled.job_id.is_some(), "a new job: finished ones are never reused");
    assert_eq!(schedule_and_mark(&stores).await.len(), 1);
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
    // No decision of the product leads to such a saga; the guard exists all the same.
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
    assert_eq!(schedule(&stores).await, []);
}

pub async fn a_subscription_gets_no_more_jobs_than_it_is_allotted(db: &dyn TestDatabase) {
    let stores = db.stores();
    let one = verified(&stores, TYPE, "https://one.example/").await;
    let two = verified(&stores, TYPE, "https://two.example/").await;
    append_many(&stores, 8).await;
    route(&stores).await;
    let pass = async |of_one: u32, of_two: u32| {
        let allotted =
            [(one, of_one), (two, of_two)].map(|(subscription_id, jobs)| Allotted { subscription_id, jobs });
        let sagas = create_jobs(&stores, &allotted).await;
        let of = |id| sagas.iter().filter(|saga| saga.subscription_id == id).count();
        assert_eq!(of(one) + of(two), sagas.len());
        (of(one), of(two))
    };
    assert_eq!(pass(2, 0).await, (2, 0));
    assert_eq!(pass(0, 0).await, (0, 0));
    assert_eq!(pass(1, 3).await, (1, 3));
    assert_eq!(pass(MANY, 1).await, (5, 1), "no more than there is");
    assert_eq!(
        create_jobs(&stores, &[Allotted { subscription_id: SubscriptionId(4711), jobs: 5 }]).await,
        []
    );
    assert_eq!(pass(MANY, MANY).await, (0, 4));
    assert_eq!(count(db, "webhook_delivery_jobs WHERE status IN ('Pending', 'Leased')").await, 16);
}

pub async fn a_job_is_open_until_its_result_is_applied(db: &dyn TestDatabase) {
    let stores = db.stores();
    let open = async || stores.orchestrator.load().await.unwrap().open;
    let one = verified(&stores, TYPE, "https://one.example/").await;
    let two = verified(&stores, TYPE, "https://two.example/").await;
    assert_eq!(open().await, HashMap::new());
    append_many(&stores, 3).await;
    route(&stores).await;
    let allotted = [(one, 3), (two, 2)].map(|(subscription_id, jobs)| Allotted { subscription_id, jobs });
    create_jobs(&stores, &allotted).await;
    let all = HashMap::from([(one, 3), (two, 2)]);
    assert_eq!(open().await, all, "they wait for a worker");
    let claimed = claim(&stores, TOKEN).await;
    assert_eq!(open().await, all, "they are leased");
    let of_two = claimed.jobs.iter().filter(|job| job.held.subscription_id == two);
    let reports: Vec<_> = of_two.map(|job| super::fixture::delivered(job.as_ref())).collect();
    stores.worker.report(&reports).await.unwrap();
    assert_eq!(open().await, all, "results wait to be applied");
    assert_eq!(apply(&stores, AT_ONCE).await.results.len(), 2);
    assert_eq!(open().await, HashMap::from([(one, 3)]));
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
    let mut generations = Vec::new();
    for saga in create_jobs(&stores, &allot(&stores, 2).await).await {
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
    let to = |text: &str| SubscriptionPatch { callback_url: Some(url(text)), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, paused, &pause(false)).await.unwrap();
    stores.admin.update(&ALL, moved, &to("https://new.example/")).await.unwrap();
    let before = super::rows::all_rows(db, "webhook_delivery_sagas").await;

    assert_eq!(stores.orchestrator.waiting(None, MANY).await.unwrap().subscriptions, [good]);
    let all = [paused, moved, good].map(|subscription_id| Allotted { subscription_id, jobs: MANY });
    let sagas = create_jobs_and_die(&stores, &all).await.sagas;
    assert_eq!(sagas.iter().map(|saga| saga.subscription_id).collect::<Vec<_>>(), [good, good]);
    assert_eq!(super::rows::all_rows(db, "webhook_delivery_sagas").await, before);
    create_jobs(&stores, &all).await;

    stores.admin.update(&ALL, paused, &pause(true)).await.unwrap();
    stores.admin.update(&ALL, moved, &to("https://old.example/")).await.unwrap();
    let sagas = schedule(&stores).await;
    let resumed: HashSet<_> = sagas.iter().map(|saga| saga.subscription_id).collect();
    assert_eq!((sagas.len(), resumed), (4, HashSet::from([paused, moved])));
}

pub async fn an_in_progress_saga_gets_no_second_job(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, _) = leased(db).await;
    assert_eq!(schedule(&stores).await, []);
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
            let mut made = 0;
            for pass in 0..4 {
                let allotted = allot(&stores, MANY).await;
                let sagas = if pass == n % 4 {
                    create_jobs_and_die(&stores, &allotted).await.sagas
                } else {
                    create_jobs(&stores, &allotted).await
                };
                made += sagas.iter().filter(|saga| saga.job_id.is_some()).count();
            }
            made
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 200, "each job is somebody's");
    schedule_and_mark(&instances[0]).await;
    assert_eq!(count(db, "webhook_delivery_jobs").await, 200);
    assert_eq!(count(db, "webhook_delivery_sagas WHERE status = 'InProgress'").await, 200);
}
