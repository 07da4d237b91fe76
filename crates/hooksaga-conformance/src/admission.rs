//! Admission: which subscriptions wait, in bounded scans, and how many slots the workers have.

use super::{
    TestDatabase,
    fixture::{
        AT_ONCE, MANY, MUCH_LATER, TOKEN, TYPE, allot, append, append_many, claim, create_jobs,
        create_jobs_and_die, deliver_round, new_event, only, route, schedule_and_mark, set_active, verified,
    },
    rows::{changes, count, db_now, job_row},
};
use hooksaga_saga::{ErrorCode, SubscriptionId, Timestamp};
use hooksaga_store::{Allotted, Stores, WORKER_GONE_AFTER, WORKER_LEASES_END_AFTER, WorkerBeat};
use std::time::Duration;

/// This many verified subscriptions to [`TYPE`], in the order of their ids.
async fn subscribers(stores: &Stores, count: usize) -> Vec<SubscriptionId> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(verified(stores, TYPE, &format!("https://receiver.example/{n}")).await);
    }
    ids
}

pub async fn a_look_at_who_waits_is_bounded_and_resumes(db: &dyn TestDatabase) {
    let stores = db.stores();
    let empty = stores.orchestrator.waiting(None, 10).await.unwrap();
    assert_eq!((empty.subscriptions, empty.resume_after), (vec![], None));
    let ids = subscribers(&stores, 7).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    // Paused ones are skipped, but count.
    set_active(&stores, ids[1], false).await;
    set_active(&stores, ids[2], false).await;
    let mut found = Vec::new();
    let mut after = None;
    for expected in [&ids[..1], &ids[3..4], &ids[4..6], &ids[6..]] {
        let page = stores.orchestrator.waiting(after, 2).await.unwrap();
        assert_eq!(page.subscriptions, expected, "after {after:?}");
        found.extend(page.subscriptions);
        after = page.resume_after;
    }
    assert_eq!(after, None, "the end");
    assert_eq!(found.len(), 5);
    let behind = stores.orchestrator.waiting(Some(ids[6]), 2).await.unwrap();
    assert_eq!((behind.subscriptions, behind.resume_after), (vec![], None));
}

pub async fn who_has_nothing_due_does_not_wait(db: &dyn TestDatabase) {
    let stores = db.stores();
    let ids = subscribers(&stores, 2).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    assert_eq!(stores.orchestrator.waiting(None, MANY).await.unwrap().subscriptions, ids);
    create_jobs(&stores, &[Allotted { subscription_id: ids[0], jobs: 1 }]).await;
    assert_eq!(
        stores.orchestrator.waiting(None, MANY).await.unwrap().subscriptions,
        ids[1..],
        "it is in progress"
    );
    create_jobs_and_die(&stores, &[Allotted { subscription_id: ids[1], jobs: 1 }]).await;
    assert_eq!(
        stores.orchestrator.waiting(None, MANY).await.unwrap().subscriptions,
        ids[1..],
        "it is not moved yet"
    );
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    let page = stores.orchestrator.waiting(None, MANY).await.unwrap();
    assert_eq!(page.subscriptions, [], "retries are due later");
}

pub async fn one_with_a_long_backlog_is_one_hop(db: &dyn TestDatabase) {
    let stores = db.stores();
    let event = append(&stores, new_event("backlog")).await.id;
    route(&stores).await;
    let busy = super::bulk_fixtures::with_backlog(db, &stores, "https://busy.example/", event, 5000).await;
    let quiet = super::bulk_fixtures::with_backlog(db, &stores, "https://quiet.example/", event, 1).await;
    let page = stores.orchestrator.waiting(None, 3).await.unwrap();
    assert_eq!((page.subscriptions, page.resume_after), (vec![busy, quiet], None));
}

pub async fn jobs_are_claimed_in_the_order_of_their_admission(db: &dyn TestDatabase) {
    let stores = db.stores();
    let old = verified(&stores, TYPE, "https://old.example/").await;
    append_many(&stores, 3).await;
    route(&stores).await;
    let new = verified(&stores, "another.type", "https://new.example/").await;
    append(&stores, new_event("another.type")).await;
    route(&stores).await;
    // The newer saga's job is admitted first, then those of the older ones.
    let mut admitted = Vec::new();
    for subscription_id in [new, old, old, old] {
        let scheduled = only(create_jobs(&stores, &[Allotted { subscription_id, jobs: 1 }]).await);
        admitted.push(scheduled.job_id.expect("it is new"));
    }
    let mut claimed = Vec::new();
    for _ in 0..4 {
        let job = only(
            stores
                .worker
                .claim(&super::fixture::up_to(1), TOKEN.lasting(super::fixture::LEASE))
                .await
                .unwrap()
                .jobs,
        );
        claimed.push(job.job_id);
    }
    assert_eq!(claimed, admitted, "however long a saga has been due");
}

pub async fn the_first_of_a_backlog_are_admitted_and_the_rest_waits(db: &dyn TestDatabase) {
    let stores = db.stores();
    let ids = subscribers(&stores, 1).await;
    append_many(&stores, 9).await;
    let sagas = route(&stores).await;
    let mut seen = Vec::new();
    for expected in [4, 4, 1, 0] {
        let pass = create_jobs(&stores, &allot(&stores, 4).await).await;
        assert_eq!(pass.len(), expected);
        assert!(pass.iter().all(|saga| saga.job_id.is_some() && saga.subscription_id == ids[0]));
        seen.extend(pass.iter().map(|saga| saga.saga_id));
    }
    assert_eq!(seen.len(), 9);
    seen.sort_unstable();
    assert_eq!(seen, sagas);
}

pub async fn a_pass_that_died_counts_against_the_next_allotment(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = only(subscribers(&stores, 1).await);
    append_many(&stores, 3).await;
    route(&stores).await;
    let two = [Allotted { subscription_id: id, jobs: 2 }];
    let dead = create_jobs_and_die(&stores, &two).await.sagas;
    assert_eq!(dead.len(), 2);
    let repeated = create_jobs(&db.second_instance().await, &two).await;
    assert_eq!(
        repeated.iter().map(|saga| saga.saga_id).collect::<Vec<_>>(),
        [dead[0].saga_id, dead[1].saga_id]
    );
    assert!(repeated.iter().all(|saga| saga.job_id.is_none()), "they have their jobs already");
    assert_eq!(count(db, "webhook_delivery_jobs").await, 2);
    assert_eq!(count(db, "webhook_delivery_sagas WHERE status = 'InProgress'").await, 2);
    assert_eq!(create_jobs(&stores, &two).await.len(), 1);
}

fn beat(worker_id: i64, slots: u32) -> WorkerBeat {
    WorkerBeat { worker_id, slots, version: "1.2.3".to_owned() }
}

/// Moves a worker's last heartbeat this far into the past.
async fn last_seen(db: &dyn TestDatabase, worker: i64, ago: Duration) {
    seen_at(db, worker, db_now(db).await.as_micros() - i64::try_from(ago.as_micros()).unwrap()).await;
}

/// Moves it this far into the future, as if the clock had been set back by more than that since then.
async fn seen_ahead(db: &dyn TestDatabase, worker: i64, ahead: Duration) {
    seen_at(db, worker, db_now(db).await.as_micros() + i64::try_from(ahead.as_micros()).unwrap()).await;
}

async fn seen_at(db: &dyn TestDatabase, worker: i64, micros: i64) {
    let at = db.dialect().time(Timestamp::from_micros(micros));
    changes(db, &format!("UPDATE workers SET seen_at = {at} WHERE id = {worker}"), 1).await;
}

pub async fn the_load_is_that_of_living_workers(db: &dyn TestDatabase) {
    let stores = db.stores();
    let capacity = async || {
        let load = stores.orchestrator.load().await.unwrap();
        (load.workers, load.slots)
    };
    let silence = async || stores.orchestrator.load().await.unwrap().silence;
    assert_eq!((capacity().await, silence().await), ((0, 0), None));
    stores.worker.heartbeat(&beat(7, 64)).await.unwrap();
    db.second_instance().await.worker.heartbeat(&beat(-3, 16)).await.unwrap();
    assert_eq!(capacity().await, (2, 80));
    let workers = stores.reader.workers().await.unwrap();
    assert_eq!(workers.iter().map(|worker| worker.worker_id).collect::<Vec<_>>(), [7, -3], "oldest first");
    assert_eq!((workers[0].slots, workers[0].version.as_str()), (64, "1.2.3"));
    assert_eq!(workers[0].started_at, workers[0].seen_at);

    stores.worker.heartbeat(&beat(7, 32)).await.unwrap();
    assert_eq!(capacity().await, (2, 48), "a later heartbeat replaces the earlier one");
    let again = stores.reader.workers().await.unwrap();
    assert_eq!(again[0].started_at, workers[0].started_at);
    assert!(again[0].seen_at >= workers[0].seen_at);

    assert!(silence().await.unwrap() < WORKER_GONE_AFTER);
    let ago = WORKER_GONE_AFTER + Duration::from_secs(5);
    last_seen(db, 7, ago).await;
    assert_eq!(capacity().await, (1, 16), "gone");
    assert!((ago..2 * ago).contains(&silence().await.unwrap()), "and may hold leases");
    last_seen(db, 7, WORKER_LEASES_END_AFTER + Duration::from_secs(1)).await;
    assert!(silence().await.unwrap() < WORKER_GONE_AFTER, "its leases are over");
    assert_eq!(stores.reader.workers().await.unwrap().len(), 1);
    stores.worker.heartbeat(&beat(7, 32)).await.unwrap();
    assert_eq!(capacity().await, (2, 48), "and back");

    // A heartbeat that lies ahead says nothing about now: its worker may have died since the clock was set back.
    seen_ahead(db, 7, WORKER_GONE_AFTER + Duration::from_secs(10)).await;
    assert_eq!(capacity().await, (1, 16), "not known to be alive");
    assert!(silence().await.unwrap() > WORKER_GONE_AFTER, "but it may hold leases");
    assert_eq!(stores.reader.workers().await.unwrap().len(), 1);
    seen_ahead(db, 7, Duration::from_secs(3600)).await;
    assert_eq!(capacity().await, (1, 16));
    assert!(silence().await.unwrap() < WORKER_GONE_AFTER);
    stores.worker.heartbeat(&beat(7, 32)).await.unwrap();
    assert_eq!(capacity().await, (2, 48), "and back again, with the next heartbeat");
    stores.worker.leave(7).await.unwrap();
    stores.worker.leave(7).await.unwrap();
    stores.worker.leave(4711).await.unwrap();
    assert_eq!(capacity().await, (1, 16));
}

pub async fn workers_that_are_long_gone_are_forgotten(db: &dyn TestDatabase) {
    let stores = db.stores();
    for id in 1..=3 {
        stores.worker.heartbeat(&beat(id, 1)).await.unwrap();
    }
    last_seen(db, 1, Duration::from_secs(3700)).await;
    last_seen(db, 2, Duration::from_secs(3500)).await;
    stores.worker.heartbeat(&beat(3, 1)).await.unwrap();
    assert_eq!(super::rows::ids(db, "SELECT id FROM workers ORDER BY id").await, [2, 3]);
}

pub async fn a_retry_is_admitted_behind_what_was_admitted_before(db: &dyn TestDatabase) {
    let stores = db.stores();
    subscribers(&stores, 1).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    let before = db_now(db).await;
    let retry = only(schedule_and_mark(&stores).await);
    let job = job_row(db, retry.job_id.expect("it is new")).await;
    assert!(
        job.lease_until.after(Duration::from_millis(2)) >= before,
        "its admission, not the time it was due"
    );
    assert_eq!(only(claim(&stores, TOKEN).await.jobs).held.attempt, 2);
}
