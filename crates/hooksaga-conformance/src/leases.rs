//! Claiming, handing back, and the cleaner: who holds a job, and until when.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, LEASE, MANY, TOKEN, TYPE, URL, append, append_many, claim, correlation, delivered,
        expire, failed, leased, new_event, only, rotation, route, saga_in, schedule_and_mark, sealed, up_to,
        url, verified, verified_with_limit,
    },
    rows::{all_rows, count, db_now, ids, job_row, jobs_of, saga_row},
};
use hooksaga_saga::{ErrorCode, JobId, JobStatus, SagaStatus, Timestamp};
use hooksaga_store::{LeaseRef, LeaseToken, NewEvent, SubscriptionPatch, Trace};
use std::{collections::HashSet, sync::Arc, time::Duration};

const HOUR: Duration = Duration::from_secs(3600);
const OTHER: LeaseToken = LeaseToken(-17);

pub async fn a_claim_carries_all_that_an_attempt_needs(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    let event =
        NewEvent { payload: Arc::from("[ 1,2 ]"), correlation_id: correlation("c-5"), ..new_event(TYPE) };
    let event = append(&stores, event).await;
    let saga = only(route(&stores).await);
    let scheduled = only(schedule_and_mark(&stores).await);

    let batch = stores.worker.claim(&up_to(MANY), TOKEN.lasting(HOUR)).await.unwrap();
    let lease = only(batch.jobs);
    assert_eq!(Some(lease.job_id), scheduled.job_id);
    assert_eq!(lease.token, TOKEN);
    assert_eq!(
        lease.as_ref(),
        LeaseRef {
            job_id: lease.job_id,
            saga_id: lease.held.saga_id,
            attempt_at: lease.held.attempt_at,
            token: TOKEN
        }
    );
    let job = &lease.held;
    assert_eq!((job.saga_id, job.subscription_id, job.event_id), (saga, subscription, event.id));
    assert_eq!((job.event_type.as_str(), job.correlation_id.as_str()), (TYPE, "c-5"));
    assert_eq!(&*job.payload, "[ 1,2 ]");
    assert_eq!(job.accepted_at, event.created_at);
    assert_eq!((job.attempt, job.lease_resets), (1, 0));
    assert_eq!(job.attempt_at, scheduled.attempt_at);
    let target = &batch.targets[&subscription];
    assert_eq!((target.callback_url.as_str(), target.deliverable), (URL, true));
    assert_eq!(target.secrets.iter().map(|stored| &stored.secret).collect::<Vec<_>>(), [&sealed(1)]);

    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.status, row.lease_token), (JobStatus::Leased, Some(TOKEN.0)));
    assert_eq!(row.lease_until, lease.until);
    let held_for = lease.until.since(batch.now);
    assert!(held_for <= HOUR && held_for > HOUR - Duration::from_secs(10), "{held_for:?}");
    assert!(batch.now.since(db_now(db).await) < Duration::from_secs(1), "the database's clock");
}

pub async fn a_claimed_job_is_not_claimed_again(db: &dyn TestDatabase) {
    let (_, lease) = leased(db).await;
    let before = job_row(db, lease.job_id).await;
    let again = claim(&db.stores(), OTHER).await;
    assert!(again.jobs.is_empty() && again.targets.is_empty());
    assert_eq!(job_row(db, lease.job_id).await, before);
}

pub async fn a_job_without_its_event_keeps_nothing_else_from_being_claimed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    let (now, (columns, values)) = (db.dialect().now(), db.dialect().more_of_a_job());
    for sql in [
        format!(
            "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
             max_retry_limit, next_attempt_at, created_at, updated_at) \
             VALUES (999999, {subscription}, 0, 'Pending', 0, 1, {now}, {now}, {now})"
        ),
        format!(
            "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, created_at, \
             updated_at{columns}) SELECT id, subscription_id, next_attempt_at, 'Pending', next_attempt_at, {now}, {now}\
             {values} FROM webhook_delivery_sagas WHERE event_id = 999999"
        ),
    ] {
        assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    }
    schedule_and_mark(&stores).await;
    // One at a time: the job that cannot be sent comes first.
    let mut claimed = Vec::new();
    for _ in 0..3 {
        claimed.extend(stores.worker.claim(&up_to(1), TOKEN.lasting(LEASE)).await.unwrap().jobs);
    }
    assert_ne!(only(claimed).held.event_id.0, 999_999);
    for _ in 0..2 {
        for job in ids(db, "SELECT id FROM webhook_delivery_jobs").await {
            expire(db, JobId(job)).await;
        }
        stores.cleaner.reset_expired(MANY).await.unwrap();
        assert_ne!(only(claim(&stores, OTHER).await.jobs).held.event_id.0, 999_999);
    }
}

pub async fn attempts_count_from_one(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 4).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    for expected in 1..=4 {
        schedule_and_mark(&stores).await;
        let job = only(claim(&stores, TOKEN).await.jobs);
        assert_eq!(job.held.attempt, expected);
        stores.worker.report(&[failed(job.as_ref(), ErrorCode::http(500))]).await.unwrap();
        super::fixture::apply(&stores, AT_ONCE).await;
    }
}

pub async fn a_claim_takes_no_more_than_its_limit_and_the_earliest_first(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    let jobs: Vec<JobId> = schedule_and_mark(&stores).await.iter().filter_map(|s| s.job_id).collect();
    let now = db_now(db).await.as_micros();
    // Not before 50, 40, 30, 20, 10 seconds ago.
    for (job, age) in jobs.iter().zip([50, 40, 30, 20, 10]) {
        let at = db.dialect().time(Timestamp::from_micros(now - age * 1_000_000));
        let sql = format!("UPDATE webhook_delivery_jobs SET lease_until = {at} WHERE id = {job}");
        assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
    }
    for expected in [&jobs[..2], &jobs[2..4], &jobs[4..], &[]] {
        let batch = stores.worker.claim(&up_to(2), TOKEN.lasting(LEASE)).await.unwrap();
        let claimed: HashSet<_> = batch.jobs.iter().map(|job| job.job_id).collect();
        assert_eq!(claimed, expected.iter().copied().collect());
    }
}

pub async fn jobs_of_one_claim_share_their_subscriptions_target(db: &dyn TestDatabase) {
    let stores = db.stores();
    let one = verified(&stores, TYPE, "https://one.example/").await;
    let two = verified(&stores, TYPE, "https://two.example/").await;
    append_many(&stores, 4).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let batch = claim(&stores, TOKEN).await;
    assert_eq!(batch.jobs.len(), 8);
    assert_eq!(batch.targets.keys().copied().collect::<HashSet<_>>(), HashSet::from([one, two]));
    assert_eq!(batch.targets[&one].callback_url, "https://one.example/");
    assert_eq!(batch.targets[&two].callback_url, "https://two.example/");
}

pub async fn two_claimers_never_hold_the_same_job(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    verified(&instances[0], TYPE, URL).await;
    append_many(&instances[0], 200).await;
    route(&instances[0]).await;
    schedule_and_mark(&instances[0]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8_i64 {
        let stores = instances[usize::from(n % 2 == 0)].clone();
        tasks.spawn(async move {
            let mut held = Vec::new();
            loop {
                let batch =
                    stores.worker.claim(&up_to(9), LeaseToken(1000 + n).lasting(LEASE)).await.unwrap();
                if batch.jobs.is_empty() {
                    return held;
                }
                held.extend(batch.jobs.iter().map(hooksaga_store::Lease::as_ref));
            }
        });
    }
    let mut held = tasks.join_all().await.concat();
    // Rows that another claimer was just locking are skipped: fetch what is left.
    held.extend(claim(&instances[0], TOKEN).await.jobs.iter().map(hooksaga_store::Lease::as_ref));
    let distinct: HashSet<_> = held.iter().map(|lease| lease.job_id).collect();
    assert_eq!((held.len(), distinct.len()), (200, 200));
    for lease in held.iter().step_by(23) {
        assert_eq!(job_row(db, lease.job_id).await.lease_token, Some(lease.token.0));
    }
}

pub async fn a_target_that_may_not_be_called_is_marked(db: &dyn TestDatabase) {
    let stores = db.stores();
    let paused = verified(&stores, TYPE, "https://paused.example/").await;
    let moved = verified(&stores, TYPE, "https://old.example/").await;
    let good = verified(&stores, TYPE, "https://good.example/").await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, paused, &pause).await.unwrap();
    let to_new =
        SubscriptionPatch { callback_url: Some(url("https://new.example/")), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, moved, &to_new).await.unwrap();
    let batch = claim(&stores, TOKEN).await;
    assert_eq!(batch.jobs.len(), 3);
    let deliverable = |id| batch.targets[&id].deliverable;
    assert_eq!((deliverable(paused), deliverable(moved), deliverable(good)), (false, false, true));
    assert_eq!(batch.targets[&moved].callback_url, "https://new.example/", "the current one");
}

pub async fn secrets_come_newest_first_and_expired_ones_not_at_all(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    let admin = &stores.admin;
    assert!(
        admin.rotate_secret(&ALL, &rotation(subscription, sealed(2), Duration::ZERO)).await.unwrap(),
        "1 is gone"
    );
    assert!(admin.rotate_secret(&ALL, &rotation(subscription, sealed(3), HOUR)).await.unwrap());
    assert!(admin.rotate_secret(&ALL, &rotation(subscription, sealed(4), HOUR)).await.unwrap());
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let batch = claim(&stores, TOKEN).await;
    let secrets: Vec<_> = batch.targets[&subscription].secrets.iter().map(|s| s.secret.clone()).collect();
    assert_eq!(secrets, [sealed(4), sealed(3), sealed(2)]);
}

pub async fn a_job_handed_back_is_not_claimed_before_its_time(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let saga = saga_row(db, fixed.saga_id).await;
    let before = db_now(db).await;
    assert_eq!(stores.worker.hand_back(&[lease], HOUR).await.unwrap(), [lease.job_id]);
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.status, row.lease_token, row.lease_resets), (JobStatus::Pending, None, 0));
    let delay = row.lease_until.since(before);
    assert!(delay >= HOUR && delay < HOUR + Duration::from_secs(60), "{delay:?}");
    assert!(claim(&stores, OTHER).await.jobs.is_empty(), "not yet");
    assert_eq!(saga_row(db, fixed.saga_id).await, saga, "handing back is nothing to the saga");

    expire(db, lease.job_id).await;
    let again = only(claim(&stores, OTHER).await.jobs);
    assert_eq!((again.job_id, again.held.attempt, again.held.lease_resets), (lease.job_id, 1, 0));
    assert_eq!(again.held.attempt_at, row.attempt_at);
    assert_eq!(stores.worker.hand_back(&[again.as_ref()], Duration::ZERO).await.unwrap().len(), 1);
    assert_eq!(claim(&stores, TOKEN).await.jobs.len(), 1, "without a delay, at once");
}

pub async fn only_the_holder_can_hand_back_and_only_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (_, lease) = leased(db).await;
    let before = all_rows(db, "webhook_delivery_jobs").await;
    let wrong = LeaseRef { token: OTHER, ..lease };
    let unknown = LeaseRef { job_id: JobId(999_999), ..lease };
    assert_eq!(stores.worker.hand_back(&[wrong, unknown], HOUR).await.unwrap(), []);
    assert_eq!(stores.worker.hand_back(&[], HOUR).await.unwrap(), []);
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, before);

    assert_eq!(stores.worker.hand_back(&[wrong, lease], HOUR).await.unwrap(), [lease.job_id]);
    let handed = all_rows(db, "webhook_delivery_jobs").await;
    assert_eq!(stores.worker.hand_back(&[lease], Duration::ZERO).await.unwrap(), []);
    assert_eq!(stores.worker.report(&[delivered(lease)]).await.unwrap(), []);
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, handed);
    assert_eq!(count(db, "finished_jobs").await, 0);
}

pub async fn the_cleaner_frees_expired_leases_and_counts_them(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let saga = saga_row(db, fixed.saga_id).await;
    assert_eq!(stores.cleaner.reset_expired(MANY).await.unwrap(), [], "the lease still runs");
    for resets in 1..=3 {
        expire(db, lease.job_id).await;
        let reset = only(stores.cleaner.reset_expired(MANY).await.unwrap());
        assert_eq!((reset.job_id, reset.saga_id), (lease.job_id, fixed.saga_id));
        assert_eq!((reset.trace, reset.lease_resets), (Trace::new("default", "correlation-1"), resets));
        let row = job_row(db, lease.job_id).await;
        assert_eq!((row.status, row.lease_token), (JobStatus::Pending, None));
        assert_eq!(row.lease_resets, resets);
        assert_eq!(stores.cleaner.reset_expired(MANY).await.unwrap(), [], "again is a no-op");
        let again = only(claim(&stores, LeaseToken(i64::from(resets))).await.jobs);
        assert_eq!((again.job_id, again.held.lease_resets), (lease.job_id, resets), "due at once");
    }
    assert_eq!(saga_row(db, fixed.saga_id).await, saga, "the cleaner never touches sagas");
}

pub async fn the_cleaner_touches_nothing_but_leased_jobs(db: &dyn TestDatabase) {
    let stores = db.stores();
    saga_in(db, SagaStatus::Completed).await;
    append(&stores, new_event(TYPE)).await;
    let waiting = only(route(&stores).await);
    schedule_and_mark(&stores).await;
    expire(db, only(jobs_of(db, waiting).await)).await;
    let (jobs, sagas) =
        (all_rows(db, "webhook_delivery_jobs").await, all_rows(db, "webhook_delivery_sagas").await);
    assert_eq!(stores.cleaner.reset_expired(MANY).await.unwrap(), []);
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, jobs);
    assert_eq!(all_rows(db, "webhook_delivery_sagas").await, sagas);
}

pub async fn the_cleaner_keeps_to_its_limit(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    for job in claim(&stores, TOKEN).await.jobs {
        expire(db, job.job_id).await;
    }
    for expected in [2, 2, 1, 0] {
        assert_eq!(stores.cleaner.reset_expired(2).await.unwrap().len(), expected);
    }
    assert_eq!(count(db, "webhook_delivery_jobs WHERE lease_resets = 1").await, 5);
}

pub async fn two_cleaners_at_once_reset_each_lease_once(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    verified(&instances[0], TYPE, URL).await;
    append_many(&instances[0], 60).await;
    route(&instances[0]).await;
    schedule_and_mark(&instances[0]).await;
    for job in claim(&instances[0], TOKEN).await.jobs {
        expire(db, job.job_id).await;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move {
            let mut reset = 0;
            for _ in 0..4 {
                reset += stores.cleaner.reset_expired(MANY).await.unwrap().len();
            }
            reset
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 60);
    assert_eq!(count(db, "webhook_delivery_jobs WHERE lease_resets = 1 AND status = 'Pending'").await, 60);
}

pub async fn after_a_reset_the_old_holder_can_change_nothing(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, old) = leased(db).await;
    expire(db, old.job_id).await;
    only(stores.cleaner.reset_expired(MANY).await.unwrap());

    let mut before = all_rows(db, "webhook_delivery_jobs").await;
    for step in ["while it waits", "while another holds it"] {
        assert_eq!(stores.worker.report(&[delivered(old)]).await.unwrap(), [], "{step}");
        assert_eq!(stores.worker.report(&[failed(old, ErrorCode::TIMEOUT)]).await.unwrap(), [], "{step}");
        assert_eq!(stores.worker.hand_back(&[old], Duration::ZERO).await.unwrap(), [], "{step}");
        assert_eq!(all_rows(db, "webhook_delivery_jobs").await, before, "{step}");
        assert_eq!(count(db, "finished_jobs").await, 0, "{step}");
        if step == "while it waits" {
            assert_eq!(claim(&stores, OTHER).await.jobs.len(), 1);
            before = all_rows(db, "webhook_delivery_jobs").await;
        }
    }
    let new = LeaseRef { token: OTHER, ..old };
    assert_eq!(stores.worker.report(&[failed(new, ErrorCode::http(500))]).await.unwrap(), [old.job_id]);
    assert_eq!(stores.worker.report(&[delivered(old)]).await.unwrap(), [], "nor after the other's result");
    let row = job_row(db, old.job_id).await;
    assert_eq!((row.status, row.error_code.as_deref()), (JobStatus::Failed, Some("HTTP_500")));
    assert_eq!(only(jobs_of(db, fixed.saga_id).await), old.job_id);
}

pub async fn an_expired_lease_that_nobody_reset_can_still_report(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (_, lease) = leased(db).await;
    expire(db, lease.job_id).await;
    assert_eq!(stores.worker.report(&[delivered(lease)]).await.unwrap(), [lease.job_id]);
    assert_eq!(stores.cleaner.reset_expired(MANY).await.unwrap(), [], "a finished job is not freed");
    assert_eq!(job_row(db, lease.job_id).await.status, JobStatus::Completed);
}

pub async fn the_workers_know_the_keys_that_sealed_their_secrets(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.worker.secret_key_ids().await.unwrap(), [] as [&str; 0]);
    let subscription = verified(&stores, TYPE, URL).await;
    let other = hooksaga_store::SealedSecret { key_id: "key-2".to_owned(), ..sealed(2) };
    stores.admin.rotate_secret(&ALL, &rotation(subscription, other, HOUR)).await.unwrap();
    let mut keys = stores.worker.secret_key_ids().await.unwrap();
    keys.sort();
    assert_eq!(keys, ["key-1", "key-2"]);
}
