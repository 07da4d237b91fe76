//! Every component at once, from two instances, on the same rows: the invariants hold and everything ends.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, allot, append_many, create_jobs, create_jobs_and_die, decide, delivered, failed,
        letters, new_subscription, up_to,
    },
    rows::{count, ids},
};
use hooksaga_saga::{ErrorCode, EventId};
use hooksaga_store::{LeaseToken, RequeueOutcome, RouteLimits, Stores};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

const EVENTS: usize = 120;
const SUBSCRIPTIONS: usize = 3;
const TASKS: usize = 16;
const LIMIT: u32 = 3;

/// Deliveries of these events fail until they are dead, in every generation.
fn is_doomed(event: EventId) -> bool {
    event.0 % 5 == 0
}

/// The first try of these fails.
fn is_shaky(event: EventId) -> bool {
    event.0 % 3 == 0
}

/// One task, which takes steps of every component again and again.
async fn hammer(stores: Stores, seed: usize, tokens: Arc<AtomicI64>, stop: Arc<AtomicBool>) {
    let mut turn = seed;
    while !stop.load(Ordering::SeqCst) {
        match turn % 8 {
            0 => drop(stores.router.route(RouteLimits { events: 16, sagas: 7 }, LIMIT).await.unwrap()),
            1 | 2 => {
                let allotted = allot(&stores, 20).await;
                // Now and then a pass dies before the move.
                if turn.is_multiple_of(5) {
                    create_jobs_and_die(&stores, &allotted).await;
                } else {
                    create_jobs(&stores, &allotted).await;
                }
            }
            3 | 4 => work(&stores, LeaseToken(tokens.fetch_add(1, Ordering::SeqCst))).await,
            5 => drop(stores.orchestrator.apply(12, &decide(AT_ONCE)).await.unwrap()),
            6 => drop(stores.dead_letters.bury(6).await.unwrap()),
            _ => {
                stores.cleaner.reset_expired(50).await.unwrap();
                requeue_first_generation(&stores).await;
            }
        }
        turn += 1;
        tokio::task::yield_now().await;
    }
}

/// Claims a few jobs; most are reported, some twice, some are handed back, and some are forgotten.
async fn work(stores: &Stores, token: LeaseToken) {
    let claimed = stores.worker.claim(&up_to(8), token.lasting(Duration::from_millis(200))).await.unwrap();
    let mut reports = Vec::new();
    let mut handed_back = Vec::new();
    for job in &claimed.jobs {
        let event = job.held.event_id;
        let fails = is_doomed(event) || (is_shaky(event) && job.held.attempt == 1);
        match job.job_id.0 % 11 {
            0 if job.held.lease_resets == 0 => {}
            1 if token.0 % 2 == 0 => handed_back.push(job.as_ref()),
            _ if fails => reports.push(failed(job.as_ref(), ErrorCode::http(500))),
            _ => reports.push(delivered(job.as_ref())),
        }
    }
    let first = stores.worker.report(&reports).await.unwrap();
    assert!(first.len() <= reports.len());
    assert_eq!(stores.worker.report(&reports).await.unwrap(), [], "a repeated report changes nothing");
    stores.worker.hand_back(&handed_back, Duration::ZERO).await.unwrap();
}

/// Any task requeues every letter of generation 0.
async fn requeue_first_generation(stores: &Stores) {
    for letter in letters(stores).await {
        if letter.requeued_saga_id.is_some() {
            continue;
        }
        let saga =
            stores.reader.delivery(&ALL, letter.saga_id).await.unwrap().expect("a letter has its saga");
        if saga.delivery.generation == 0 {
            let outcome = stores.dead_letters.requeue(&ALL, letter.id, LIMIT).await.unwrap();
            let (RequeueOutcome::Created(requeued, _) | RequeueOutcome::Already(requeued)) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(requeued.generation, 1);
        }
    }
}

/// Whether all deliveries have ended as they must.
async fn is_done(db: &dyn TestDatabase, doomed: i64) -> bool {
    let open = "webhook_delivery_sagas WHERE status IN ('Pending', 'InProgress', 'PendingRetry')";
    count(db, "unrouted_events").await == 0
        && count(db, open).await == 0
        && count(db, "finished_jobs").await == 0
        && count(db, "pending_dead_letters").await == 0
        && count(db, "dead_letters").await == 2 * doomed
}

pub async fn everything_at_once_keeps_every_invariant_and_ends(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    for n in 0..SUBSCRIPTIONS {
        let url = format!("https://receiver.example/{n}");
        let id =
            super::fixture::create(&instances[0], &new_subscription(super::fixture::TYPE, &url)).await.id;
        super::fixture::verify(&instances[0], id).await;
    }
    let events = append_many(&instances[0], EVENTS).await;
    let subscriptions = i64::try_from(SUBSCRIPTIONS).unwrap();
    let total = i64::try_from(EVENTS).unwrap() * subscriptions;
    let doomed =
        i64::try_from(events.iter().filter(|event| is_doomed(**event)).count()).unwrap() * subscriptions;

    let stop = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(AtomicI64::new(1));
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let stores = instances[n % 2].clone();
        tasks.spawn(hammer(stores, n, Arc::clone(&tokens), Arc::clone(&stop)));
    }
    while !is_done(db, doomed).await {
        if let Some(ended) = tasks.try_join_next() {
            ended.expect("no task fails");
            panic!("a task ended early");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::SeqCst);
    tasks.join_all().await;

    assert!(is_done(db, doomed).await, "what is done stays done");
    let nothing: [i64; 0] = [];
    let first = "webhook_delivery_sagas WHERE generation = 0";
    assert_eq!(count(db, first).await, total);
    let pairs = "SELECT count(*) FROM webhook_delivery_sagas GROUP BY event_id, subscription_id, generation \
                 HAVING count(*) <> 1";
    assert_eq!(ids(db, pairs).await, nothing, "one saga per event, subscription and generation");
    assert_eq!(count(db, "webhook_delivery_sagas WHERE generation = 1").await, doomed);
    assert_eq!(count(db, "webhook_delivery_sagas WHERE generation > 1").await, 0);

    let miscounted = "SELECT s.id FROM webhook_delivery_sagas s WHERE s.attempt_count <> (SELECT count(*) \
                      FROM webhook_delivery_jobs j WHERE j.saga_id = s.id \
                      AND j.status IN ('Completed', 'Failed'))";
    assert_eq!(ids(db, miscounted).await, nothing, "every result was applied once");
    let active = "webhook_delivery_jobs WHERE status IN ('Pending', 'Leased')";
    assert_eq!(count(db, active).await, 0);
    let twice = "SELECT saga_id FROM webhook_delivery_jobs WHERE status = 'Completed' GROUP BY saga_id \
                 HAVING count(*) > 1";
    assert_eq!(ids(db, twice).await, nothing, "nothing goes on after a success");
    let undelivered = "webhook_delivery_sagas s WHERE s.status = 'Completed' AND NOT EXISTS (SELECT 1 \
                       FROM webhook_delivery_jobs j WHERE j.saga_id = s.id AND j.status = 'Completed')";
    assert_eq!(count(db, undelivered).await, 0, "a success is a job's");
    let unfit = format!(
        "webhook_delivery_sagas WHERE status = 'DeadLettered' AND attempt_count <> {LIMIT} \
         OR status = 'Completed' AND attempt_count > {LIMIT}"
    );
    assert_eq!(count(db, &unfit).await, 0);
    assert_eq!(count(db, "webhook_delivery_sagas WHERE status = 'DeadLettered'").await, 2 * doomed);
    let unburied = "webhook_delivery_sagas s WHERE s.status = 'DeadLettered' AND NOT EXISTS (SELECT 1 FROM \
                    dead_letters d WHERE d.saga_id = s.id)";
    assert_eq!(count(db, unburied).await, 0, "every dead saga has its letter");

    let sums = "SELECT sum(delivered) FROM delivery_counts UNION ALL SELECT sum(failed) FROM delivery_counts \
                UNION ALL SELECT sum(dead_lettered) FROM delivery_counts";
    let failures = count(db, "webhook_delivery_jobs WHERE status = 'Failed'").await;
    assert_eq!(ids(db, sums).await, [total - doomed, failures, 2 * doomed], "the statistics add up");
}
