//! From an event to its end: delivered, retried, dead, requeued.

use crate::{
    faults::decorator::{Fault, FaultPlan, faulty},
    support::{ALL, PAGE, Pipeline, World, event, ingest},
};
use hooksaga_pipeline::{DeliveryLog, Requeue};
use hooksaga_saga::{ErrorCode, JobStatus, SagaStatus};
use hooksaga_store::{Appended, DeadLetterFilter, RequeueOutcome, ResendOutcome, StoreError};
use hooksaga_testkit::receiver::Behaviour;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

#[tokio::test]
async fn an_event_is_delivered_byte_for_byte_with_its_headers() {
    let world = World::new().await;
    world.subscribe("order.created", "/hook").await;
    let created = world.append("order.created", 1).await;
    let Appended::Created(head) = &created[0] else { panic!("{created:?}") };
    let pipeline = Pipeline::new(&world);
    pipeline.settle().await;

    let arrivals = world.receiver.deliveries("/hook");
    let [arrival] = arrivals.as_slice() else { panic!("{arrivals:?}") };
    assert_eq!(arrival.text(), r#"{ "number":  0 }"#);
    for (name, value) in [
        ("content-type", "application/json"),
        ("webhook-id", &*format!("evt_{}", head.id)),
        ("hooksaga-event-type", "order.created"),
        ("hooksaga-correlation-id", "trace-0"),
        ("hooksaga-attempt", "1"),
    ] {
        assert_eq!(arrival.header(name), Some(value), "{name}");
    }
    assert!(arrival.header("webhook-signature").is_some_and(|value| value.starts_with("v1,")));

    let detail = world.delivery().await;
    assert_eq!((detail.delivery.status, detail.delivery.attempt_count), (SagaStatus::Completed, 1));
    assert_eq!(detail.delivery.final_error_code, None);
    assert_eq!(detail.attempts[0].status, JobStatus::Completed);
    assert_eq!(detail.attempts[0].response_status, Some(200));
}

#[tokio::test]
async fn latency_counts_from_the_acceptance_to_the_response() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    // The router was away for a while,
    tokio::time::sleep(Duration::from_millis(300)).await;
    pipeline.router.run_once().await.unwrap();
    pipeline.orchestrator.schedule_once().await.unwrap();
    pipeline.worker.run_once().await.unwrap();
    // and what happens after the response does not count.
    tokio::time::sleep(Duration::from_secs(1)).await;
    pipeline.settle().await;
    assert_eq!(world.statuses().await, [SagaStatus::Completed]);

    let text = pipeline.metrics.encode(&Default::default());
    let value = |series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("{series} in {text}")).trim().parse().unwrap()
    };
    assert_eq!(value("hooksaga_delivery_latency_seconds_count "), 1.0);
    let seconds = value("hooksaga_delivery_latency_seconds_sum ");
    assert!((0.3..1.3).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn the_same_event_ingested_twice_is_delivered_once() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    let ingest = ingest(&world.stores);
    let mut once = event("a", 1);
    once.external_id = Some("order-1".parse().unwrap());
    let mut other = once.clone();
    other.payload = "{}".into();

    let first = ingest.submit(vec![once.clone()]).await.unwrap();
    let Appended::Created(head) = &first[0] else { panic!("{first:?}") };
    let again = ingest.submit(vec![once.clone(), other, once]).await.unwrap();
    assert_eq!(
        again,
        [
            Appended::Duplicate(head.clone()),
            Appended::Conflict { existing: head.id },
            Appended::Duplicate(head.clone())
        ]
    );
    Pipeline::new(&world).settle().await;
    assert_eq!(world.receiver.deliveries("/hook").len(), 1);
    assert_eq!(world.statuses().await, [SagaStatus::Completed]);
}

#[tokio::test]
async fn two_routers_at_once_make_each_saga_once() {
    let world = World::new().await;
    world.subscribe("a", "/one").await;
    world.subscribe("a", "/two").await;
    world.subscribe("b", "/other").await;
    world.append("a", 20).await;
    world.append("nobody.wants.this", 3).await;
    let (first, second) = (Pipeline::new(&world), Pipeline::new(&world));
    let (one, two) = tokio::join!(first.router.run_once(), second.router.run_once());
    assert!(one.unwrap().did_work() || two.unwrap().did_work());
    assert!(!first.router.run_once().await.unwrap().did_work(), "routing again is a no-op");
    assert_eq!(world.statuses().await, [SagaStatus::Pending; 40]);
    assert_eq!(world.stores.reader.gauges().await.unwrap().unrouted_events, 0);
}

#[tokio::test]
async fn a_failed_attempt_is_retried_and_its_code_is_kept() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.receiver.answer("/hook", [Behaviour::Body(503, "busy".to_owned()), Behaviour::Status(204)]);
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.settle().await;

    let arrivals = world.receiver.deliveries("/hook");
    let attempts: Vec<_> = arrivals.iter().map(|arrival| arrival.header("hooksaga-attempt")).collect();
    assert_eq!(attempts, [Some("1"), Some("2")]);
    assert_eq!(arrivals[0].header("webhook-id"), arrivals[1].header("webhook-id"));

    let detail = world.delivery().await;
    assert_eq!((detail.delivery.status, detail.delivery.attempt_count), (SagaStatus::Completed, 2));
    assert_eq!(detail.delivery.final_error_code, Some(ErrorCode::http(503)));
    let first = &detail.attempts[0];
    assert_eq!((first.status, first.response_status), (JobStatus::Failed, Some(503)));
    assert_eq!(first.response_excerpt.as_deref(), Some("busy"));
    assert!(detail.attempts[1].attempt_at > first.attempt_at);
}

#[tokio::test]
async fn what_was_delivered_is_delivered_again_on_request() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.settle().await;
    let first = world.delivery().await.delivery;
    let (signals, metrics) = (pipeline.signals.clone(), pipeline.metrics.clone());
    let requeue = Requeue::new(world.stores.dead_letters.clone(), 5, signals, metrics, DeliveryLog::All);
    let ResendOutcome::Created(new, _) = requeue.resend(&ALL, first.saga_id).await.unwrap() else {
        panic!("not sent again")
    };
    assert_eq!(
        requeue.resend(&ALL, first.saga_id).await.unwrap(),
        ResendOutcome::Already(new),
        "twice is once"
    );
    pipeline.settle().await;

    let arrivals = world.receiver.deliveries("/hook");
    let [one, two] = arrivals.as_slice() else { panic!("{arrivals:?}") };
    assert_eq!((one.text(), one.header("webhook-id")), (two.text(), two.header("webhook-id")));
    assert_eq!(two.header("hooksaga-attempt"), Some("1"), "attempts count anew");
    let deliveries = world.deliveries().await;
    assert_eq!(deliveries[0], first, "the first delivery is not touched");
    assert_eq!((deliveries[1].saga_id, deliveries[1].status), (new.saga_id, SagaStatus::Completed));
}

/// One step is done in any case, so that asking again comes to an end.
#[tokio::test]
async fn a_requeue_of_many_ends_at_its_deadline_and_the_next_one_does_the_rest() {
    const LETTERS: usize = 60;
    let world = World::new().await;
    world.subscribe_with("a", "/hook", Some(1)).await;
    world.receiver.answer("/hook", [Behaviour::Status(500)]);
    world.append("a", LETTERS).await;
    let pipeline = Pipeline::new(&world);
    pipeline.settle().await;
    let (signals, metrics) = (pipeline.signals.clone(), pipeline.metrics.clone());
    let requeue = Requeue::new(world.stores.dead_letters.clone(), 5, signals, metrics, DeliveryLog::All);
    let every = DeadLetterFilter::default();
    let many = |dry_run| requeue.many(&ALL, &every, 1000, dry_run, Instant::now());
    let counted = many(true).await;
    assert!(matches!(counted, Err(StoreError::TooSlow(_))), "a part is no count: {counted:?}");
    let part = many(false).await.unwrap();
    let first = part.requeued;
    assert!((1..LETTERS as u64).contains(&first) && !part.complete, "{part:?}");
    let rest = many(false).await.unwrap();
    assert_eq!((rest.requeued, rest.complete), (LETTERS as u64 - first, true));
    assert_eq!(many(true).await.unwrap().requeued, 0);
}

#[tokio::test]
async fn a_requeue_of_many_that_an_error_ends_says_what_it_has_done() {
    const LETTERS: usize = 60;
    let world = World::new().await;
    world.subscribe_with("a", "/hook", Some(1)).await;
    world.receiver.answer("/hook", [Behaviour::Status(500)]);
    world.append("a", LETTERS).await;
    let pipeline = Pipeline::new(&world);
    pipeline.settle().await;
    let requeue = |failing_step| {
        let plan = Arc::new(FaultPlan::new(failing_step, Fault::ErrorBefore));
        let store = faulty(&world.stores, &plan).dead_letters;
        Requeue::new(store, 5, pipeline.signals.clone(), pipeline.metrics.clone(), DeliveryLog::All)
    };
    let (every, later) = (DeadLetterFilter::default(), Instant::now() + Duration::from_secs(60));
    for (failing_step, dry_run) in [(0, false), (1, true)] {
        let failed = requeue(failing_step).many(&ALL, &every, 1000, dry_run, later).await;
        assert!(matches!(failed, Err(StoreError::Unavailable(_))), "nothing was done: {failed:?}");
    }
    let part = requeue(1).many(&ALL, &every, 1000, false, later).await.unwrap();
    assert!((1..LETTERS as u64).contains(&part.requeued) && !part.complete, "{part:?}");
    let rest = requeue(usize::MAX).many(&ALL, &every, 1000, false, later).await.unwrap();
    assert_eq!((rest.requeued, rest.complete), (LETTERS as u64 - part.requeued, true));
}

#[tokio::test]
async fn retries_end_in_a_dead_letter_and_a_requeue_is_a_new_delivery() {
    let world = World::new().await;
    let subscription = world.subscribe_with("a", "/hook", Some(3)).await;
    world.receiver.answer("/hook", [Behaviour::Status(500)]);
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.settle().await;

    assert_eq!(world.receiver.deliveries("/hook").len(), 3);
    let dead = world.delivery().await;
    assert_eq!((dead.delivery.status, dead.delivery.attempt_count), (SagaStatus::DeadLettered, 3));
    assert_eq!(dead.delivery.final_error_code, Some(ErrorCode::http(500)));
    let letters =
        world.stores.reader.dead_letters(PAGE.of(&ALL, &DeadLetterFilter::default())).await.unwrap().items;
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!((letter.saga_id, letter.subscription_id), (dead.delivery.saga_id, subscription));
    let letter = world.stores.reader.dead_letter(&ALL, letter.id).await.unwrap().unwrap();
    assert_eq!(&*letter.payload, r#"{ "number":  0 }"#);

    world.receiver.answer("/hook", [Behaviour::Status(200)]);
    let requeue = || world.stores.dead_letters.requeue(&ALL, letter.summary.id, 5);
    let RequeueOutcome::Created(new, _) = requeue().await.unwrap() else { panic!("not requeued") };
    assert_eq!(requeue().await.unwrap(), RequeueOutcome::Already(new), "twice is once");
    pipeline.settle().await;
    assert_eq!(requeue().await.unwrap(), RequeueOutcome::Already(new), "also when it is done");

    let deliveries = world.deliveries().await;
    assert_eq!(deliveries.len(), 2);
    assert_eq!(deliveries[0], dead.delivery, "the dead delivery is not touched");
    assert_eq!((deliveries[1].saga_id, deliveries[1].generation), (new.saga_id, 1));
    assert_eq!((deliveries[1].status, deliveries[1].attempt_count), (SagaStatus::Completed, 1));
    assert_eq!(world.receiver.deliveries("/hook").len(), 4);
    let metrics = pipeline.metrics.encode(&Default::default());
    for line in [
        r#"hooksaga_attempts_total{outcome="failed",error_code="HTTP_5XX"} 3"#,
        r#"hooksaga_attempts_total{outcome="delivered",error_code="none"} 1"#,
        r#"hooksaga_results_applied_total{status="DeadLettered"} 1"#,
        "hooksaga_dead_letters_total 1",
        "hooksaga_jobs_scheduled_total 4",
        "hooksaga_sagas_routed_total 1",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
}
