//! Every store call of a whole story fails once, in every way a call can fail; the end is always the same.
//!
//! The story: one event goes to an endpoint that works and to one that does not; the latter's delivery
//! dies, is requeued, and succeeds. Each run is given the call that fails and how it fails: with an error
//! before anything happened, with an error although it was committed (a lost acknowledgement), or because
//! the process is killed right before or right after it. Afterwards a new process takes over.
//!
//! Redrives have a story of their own, see [`redrives`], and so has an endpoint that is gone, see [`care`].
//!
//! On the database servers the story is also told over connections that are cut, see [`cuts`].

mod archived;
mod care;
mod cuts;
pub(crate) mod decorator;
mod redrives;
mod removal;
mod removal_conflicts;
mod sampling;

use crate::support::{ALL, PAGE, Pipeline, WORKER, World, backend::Backend, event, ingest};
use decorator::{Fault, FaultPlan, faulty};
use hooksaga_pipeline::{Progress, WorkerOptions};
use hooksaga_saga::{ErrorCode, SagaStatus};
use hooksaga_store::{Appended, DeadLetterFilter, NewEvent, QueueGauges, RequeueOutcome, Stores};
use hooksaga_testkit::receiver::Behaviour;
use std::{sync::Arc, time::Duration};
use tokio::task::JoinSet;

/// Leases long enough for any POST on loopback, short enough to wait for.
const CONFIG: WorkerOptions = WorkerOptions {
    http_timeout: Duration::from_millis(1000),
    lease_duration: Duration::from_millis(1600),
    ..WORKER
};

/// Runs at the same time: most of a run is waiting for a lease to end.
const PARALLEL: usize = 8;

async fn start(backend: Backend) -> World {
    let world = World::on(backend).await;
    world.subscribe("a", "/good").await;
    world.subscribe_with("a", "/bad", Some(2)).await;
    world.receiver.answer("/bad", [Behaviour::Status(500)]);
    world
}

fn the_event() -> NewEvent {
    NewEvent { external_id: Some("only-once".parse().unwrap()), ..event("a", 1) }
}

/// The story, told through these stores until it has ended. Store errors are met as in a server: the same
/// pass is tried again. The client and the operator, too, try again what was not acknowledged.
async fn tell(world: &World, stores: &Stores) {
    let ingest = ingest(stores);
    while ingest.submit(vec![the_event()]).await.is_err() {}
    let pipeline = Pipeline::over(stores, &world.key, CONFIG);
    loop {
        // Each component on its own: an error in one does not keep the others from their passes.
        let passes = [
            pipeline.router.run_once().await,
            pipeline.orchestrator.schedule_once().await,
            pipeline.worker.run_once().await,
            pipeline.orchestrator.apply_once().await,
            pipeline.dead_letters.run_once().await,
            pipeline.cleaner.run_once().await,
        ];
        requeue_what_died(world, stores).await;
        if is_over(world).await {
            return;
        }
        // While a lease has to end there is nothing to do, and the other runs need the time.
        let worked = passes.into_iter().flatten().any(Progress::did_work);
        tokio::time::sleep(Duration::from_millis(if worked { 2 } else { 20 })).await;
    }
}

async fn requeue_what_died(world: &World, stores: &Stores) {
    let filter = DeadLetterFilter { requeued: Some(false), ..DeadLetterFilter::default() };
    for letter in world.stores.reader.dead_letters(PAGE.of(&ALL, &filter)).await.unwrap().items {
        world.receiver.answer("/bad", [Behaviour::Status(200)]);
        if let Ok(outcome) = stores.dead_letters.requeue(&ALL, letter.id, 5).await {
            assert!(
                matches!(outcome, RequeueOutcome::Created(..) | RequeueOutcome::Already(_)),
                "{outcome:?}"
            );
        }
    }
}

async fn is_over(world: &World) -> bool {
    let deliveries = world.deliveries().await;
    deliveries.len() == 3
        && deliveries.iter().all(|delivery| delivery.status.is_final())
        && world.stores.reader.gauges().await.unwrap() == QueueGauges::default()
}

/// What must hold at the end, whatever failed.
async fn check_the_end(world: &World) {
    let mut ends: Vec<_> = world
        .deliveries()
        .await
        .into_iter()
        .map(|d| (d.subscription_id.0, d.generation, d.status, d.attempt_count, d.final_error_code))
        .collect();
    ends.sort_unstable_by_key(|(subscription, generation, ..)| (*subscription, *generation));
    let (good, bad) = (ends[0].0, ends[1].0);
    assert_ne!(good, bad);
    let http_500 = Some(ErrorCode::http(500));
    assert_eq!(
        ends,
        [
            (good, 0, SagaStatus::Completed, 1, None),
            (bad, 0, SagaStatus::DeadLettered, 2, http_500),
            (bad, 1, SagaStatus::Completed, 1, None),
        ]
    );
    let letters =
        world.stores.reader.dead_letters(PAGE.of(&ALL, &DeadLetterFilter::default())).await.unwrap().items;
    assert_eq!(letters.len(), 1);
    let letter = world.stores.reader.dead_letter(&ALL, letters[0].id).await.unwrap().unwrap();
    assert_eq!(letter.payload, the_event().payload);
    assert!(!world.receiver.deliveries("/good").is_empty());
    assert!(world.receiver.deliveries("/bad").len() >= 3);
    let again = world.stores.ingest.append(&[the_event()]).await.unwrap();
    assert!(matches!(again[0], Appended::Duplicate(_)), "{again:?}");
}

/// Tells the story with the `n`-th call failing like this; returns whether there was such a call.
async fn tell_with(backend: Backend, n: usize, fault: Fault) -> bool {
    let world = start(backend).await;
    let plan = Arc::new(FaultPlan::new(n, fault));
    let stores = faulty(&world.stores, &plan);
    let told = async {
        tokio::select! {
            () = tell(&world, &stores) => {}
            () = plan.killed() => tell(&world, &world.stores).await,
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(in_time.is_ok(), "call {n} with {fault:?} never ended: {:?}", world.deliveries().await);
    check_the_end(&world).await;
    drop(stores);
    world.end().await;
    plan.happened()
}

/// Fails one call of the story after another, until the story has no more calls. On the servers only every `STRIDE`-th,
/// and each fault others, and each run of the suite others ([`choice`]): what a call does there when it fails is the same
/// code as on the embedded one, but for the statements.
async fn tell_with_every(backend: Backend, fault: Fault) {
    let stride = sampling::stride(backend, STRIDE);
    let (mut running, mut next, mut failed) = (JoinSet::new(), sampling::first(stride, fault), 0);
    let mut more = true;
    while more || !running.is_empty() {
        if more && running.len() < PARALLEL {
            running.spawn(tell_with(backend, next, fault));
            next += stride;
            continue;
        }
        if let Some(happened) = running.join_next().await {
            let happened = happened.unwrap();
            failed += usize::from(happened);
            more &= happened;
        }
    }
    // Ingest, route, and for four attempts schedule, move, claim, report, apply; bury, requeue, clean.
    assert!(failed > 20 / stride, "only {failed} calls were made to fail");
}

/// See [`tell_with_every`].
const STRIDE: usize = 5;

async fn a_call_that_fails_before_it_did_anything_changes_nothing_in_the_end(backend: Backend) {
    tell_with_every(backend, Fault::ErrorBefore).await;
}

async fn a_lost_acknowledgement_changes_nothing_in_the_end(backend: Backend) {
    tell_with_every(backend, Fault::ErrorAfter).await;
}

async fn a_process_killed_before_a_call_changes_nothing_in_the_end(backend: Backend) {
    tell_with_every(backend, Fault::KillBefore).await;
}

async fn a_process_killed_after_a_call_changes_nothing_in_the_end(backend: Backend) {
    tell_with_every(backend, Fault::KillAfter).await;
}

/// Runs each of them on one back end.
macro_rules! on {
    ($module:ident, $backend:ident) => {
        mod $module {
            on!(@ $backend, a_call_that_fails_before_it_did_anything_changes_nothing_in_the_end);
            on!(@ $backend, a_lost_acknowledgement_changes_nothing_in_the_end);
            on!(@ $backend, a_process_killed_before_a_call_changes_nothing_in_the_end);
            on!(@ $backend, a_process_killed_after_a_call_changes_nothing_in_the_end);
        }
    };
    (@ $backend:ident, $name:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            super::$name(super::Backend::$backend).await;
        }
    };
}

on!(sqlite, Sqlite);
on!(postgres, Postgres);
on!(mysql, MySql);
