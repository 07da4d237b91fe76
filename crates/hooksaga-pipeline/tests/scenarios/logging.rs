//! Every stage says what it did, in fields that a machine can read.

use crate::support::{ALL, DEFAULT_LIMIT, POLICY, Pipeline, WORKER, World, capture::Capture, client, event};
use hooksaga_pipeline::{
    Cleaner, DeadLetters, DeliveryLog, Ingest, IngestLimits, Metrics, Orchestrator, Redriver, Requeue,
    Router, Signals, Worker,
};
use hooksaga_saga::{EventType, SagaStatus, Tenant};
use hooksaga_store::{DeadLetterFilter, NewEvent, NewRedrive, RedriveWork, RunningLimits, Stage, Starter};
use hooksaga_testkit::receiver::Behaviour;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

const TENANT: &str = "acme";

fn event_of_tenant(event_type: &str, number: usize) -> NewEvent {
    NewEvent { tenant: TENANT.parse().unwrap(), ..event(event_type, number) }
}

/// One delivery that succeeds and is sent again, one that dies and is redriven, one lease that runs out; the lines about
/// them.
async fn log_of_a_story(log: DeliveryLog) -> Vec<Value> {
    // The test runs on one thread, so that this catches all of it.
    let capture = Capture::start();
    let world = World::new().await;
    world.subscribe_as(TENANT.parse().unwrap(), "good", "/good", None).await;
    world.subscribe_as(TENANT.parse().unwrap(), "bad", "/bad", Some(1)).await;
    world.receiver.answer("/bad", [Behaviour::Status(500)]);
    let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
    let stores = &world.stores;
    let parts = || (signals.clone(), metrics.clone());
    let (s, m) = parts();
    let (ingest, task) = Ingest::start(stores.ingest.clone(), s, m, IngestLimits::default(), log);
    tokio::spawn(task.run());
    let (s, m) = parts();
    let router = Router::new(stores.router.clone(), DEFAULT_LIMIT, s, m, log);
    let (s, m) = parts();
    let orchestrator = Orchestrator::new(stores.orchestrator.clone(), POLICY, s, m, log);
    let (s, m) = parts();
    let worker = Worker::new(stores.worker.clone(), client(), world.key.clone(), WORKER, s, m, log);
    let (s, m) = parts();
    let cleaner =
        Cleaner::new(stores.cleaner.clone(), Duration::from_secs(1), Duration::from_secs(60), s, m, log);
    let (s, m) = parts();
    let dead_letters = DeadLetters::new(stores.dead_letters.clone(), s, m, log);

    ingest.submit(vec![event_of_tenant("good", 1), event_of_tenant("bad", 2)]).await.unwrap();
    router.run_once().await.unwrap();
    orchestrator.schedule_once().await.unwrap();
    world.claim_and_die().await;
    while !cleaner.run_once().await.unwrap().did_work() {
        tokio::task::yield_now().await;
    }
    worker.run_once().await.unwrap();
    orchestrator.apply_once().await.unwrap();
    dead_letters.run_once().await.unwrap();

    let (s, m) = parts();
    let requeue = Requeue::new(stores.dead_letters.clone(), DEFAULT_LIMIT, s, m, log);
    let deliveries = world.deliveries().await;
    let delivered = deliveries.iter().find(|delivery| delivery.status == SagaStatus::Completed).unwrap();
    requeue.resend(&ALL, delivered.saga_id).await.unwrap();
    let (s, m) = parts();
    let redriver = Redriver::new(stores.redrives.clone(), DEFAULT_LIMIT, None, s, m, log);
    let work = RedriveWork::DeadLetters(DeadLetterFilter::default());
    let starter = Starter { key_id: None, name: String::from("test") };
    stores
        .redrives
        .start(NewRedrive { scope: &ALL, work: &work, starter: &starter }, RunningLimits::DEFAULT)
        .await
        .unwrap();
    redriver.run_once().await.unwrap();

    capture.lines().into_iter().filter(|line| line["target"] == "hooksaga::delivery").collect()
}

fn stages_and_statuses(lines: &[Value]) -> BTreeSet<(&str, &str)> {
    let text = |line: &'static str| move |value: &'_ Value| value["fields"][line].as_str().is_some();
    assert!(lines.iter().all(text("stage")) && lines.iter().all(text("delivery_status")));
    lines
        .iter()
        .map(|line| &line["fields"])
        .map(|fields| {
            (
                fields["stage"].as_str().unwrap_or_default(),
                fields["delivery_status"].as_str().unwrap_or_default(),
            )
        })
        .collect()
}

const FAILURES: [(&str, &str); 4] = [
    ("apply", "DeadLettered"),
    ("cleaner", "LeaseReset"),
    ("dead_letters", "DeadLettered"),
    ("worker", "Failed"),
];

#[tokio::test]
async fn every_stage_logs_what_happened_to_which_delivery() {
    let lines = log_of_a_story(DeliveryLog::All).await;
    let expected = [
        ("ingest", "Ingested"),
        ("router", "Pending"),
        ("schedule", "InProgress"),
        ("worker", "Completed"),
        ("apply", "Completed"),
        ("requeue", "Pending"),
        ("redriver", "Pending"),
    ];
    assert_eq!(stages_and_statuses(&lines), expected.into_iter().chain(FAILURES).collect());
    for line in &lines {
        let fields = &line["fields"];
        let correlation_id = fields["correlation_id"].as_str().unwrap();
        assert!(["trace-1", "trace-2"].contains(&correlation_id), "{line}");
        assert_eq!(fields["tenant"], TENANT, "{line}");
        let stage = fields["stage"].as_str().unwrap();
        assert_eq!(fields["saga_id"].is_i64(), stage != "ingest", "{line}");
        let has_job = ["schedule", "worker", "apply", "cleaner"].contains(&stage);
        assert_eq!(fields["job_id"].is_i64(), has_job, "{line}");
        let failed = stage == "worker" && fields["delivery_status"] == "Failed";
        assert_eq!(fields["message"] == "attempt failed", failed, "one line for each: {line}");
        for (name, value) in fields.as_object().unwrap() {
            let is_text = [
                "message",
                "stage",
                "delivery_status",
                "tenant",
                "correlation_id",
                "event_type",
                "error_code",
            ];
            let fits = if is_text.contains(&name.as_str()) { value.is_string() } else { value.is_i64() };
            assert!(fits, "{name} in {line}");
        }
        assert_eq!(fields["duration_ms"].is_u64(), stage == "worker", "{line}");
    }
}

/// What a paused subscription misses is said, also where another one gets the event; a test event misses nobody.
#[tokio::test]
async fn what_a_paused_subscription_misses_is_logged() {
    let capture = Capture::start();
    let world = World::new().await;
    let pipeline = Pipeline::new(&world);
    world.subscribe("order.paid", "/one").await;
    let paused = world.subscribe("order.paid", "/two").await;
    world.set_active(paused, false).await;
    world.append("order.paid", 1).await;
    world.append("nobody.wants.this", 1).await;
    let test = NewEvent { event_type: EventType::test(), ..event("order.paid", 3) };
    world.stores.ingest.append(&[test]).await.unwrap();
    pipeline.router.run_once().await.unwrap();

    let lines = capture.lines();
    let unrouted =
        lines.iter().map(|line| &line["fields"]).filter(|fields| fields["delivery_status"] == "Unrouted");
    let said: Vec<_> =
        unrouted.map(|fields| (fields["message"].as_str().unwrap(), &fields["paused"])).collect();
    assert_eq!(
        said,
        [
            ("not sent to some subscriptions (1 of this type: 1 paused)", &json!(1)),
            ("matched no subscription", &json!(0)),
        ]
    );
}

/// It is named; and where nobody catches up, a verification is no reason to worry.
#[tokio::test]
async fn a_subscription_that_no_longer_catches_up_is_named() {
    for (window, deleted) in [(Some(Duration::from_secs(3600)), true), (None, true), (None, false)] {
        let capture = Capture::start();
        let world = World::new().await;
        let id = world.subscribe("order.paid", "/one").await;
        if deleted {
            assert!(world.stores.admin.delete(&ALL, id).await.unwrap());
        }
        let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
        let stores = &world.stores;
        let redriver =
            Redriver::new(stores.redrives.clone(), DEFAULT_LIMIT, window, signals, metrics, DeliveryLog::All);
        assert!(redriver.run_once().await.unwrap().did_work(), "it was to catch up");
        assert!(!redriver.run_once().await.unwrap().did_work(), "and no longer is");
        let lines = capture.lines();
        let about = lines.iter().map(|line| &line["fields"]).filter(|fields| {
            fields["message"]
                .as_str()
                .is_some_and(|said| said.starts_with("a subscription no longer catches up"))
        });
        let named: Vec<_> = about.map(|fields| fields["subscription_id"].as_i64()).collect();
        assert_eq!(named, if window.is_some() { vec![Some(id.0)] } else { vec![] }, "{window:?}");
    }
}

#[tokio::test]
async fn only_failures_are_logged_when_so_configured() {
    let lines = log_of_a_story(DeliveryLog::Failures).await;
    assert_eq!(stages_and_statuses(&lines), BTreeSet::from(FAILURES));
}

#[tokio::test]
async fn an_event_that_nobody_takes_is_logged_wherever_failures_are() {
    for (log, lines) in [(DeliveryLog::All, 1), (DeliveryLog::Failures, 1), (DeliveryLog::None, 0)] {
        let capture = Capture::start();
        let world = World::new().await;
        world.append("nobody.wants.this", 1).await;
        // What nobody subscribes to of what operators are told is no news.
        let told = NewEvent {
            tenant: Tenant::RESERVED.parse().unwrap(),
            ..event("hooksaga.subscription.verified", 2)
        };
        world.stores.ingest.append(&[told]).await.unwrap();
        let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
        let router = Router::new(world.stores.router.clone(), DEFAULT_LIMIT, signals, metrics, log);
        router.run_once().await.unwrap();
        let said = |line: &Value| line["fields"]["message"].as_str() == Some("matched no subscription");
        let types: Vec<_> = capture
            .lines()
            .into_iter()
            .filter(said)
            .map(|line| line["fields"]["event_type"].clone())
            .collect();
        assert_eq!(types, vec!["nobody.wants.this"; lines], "{log}");
    }
}

#[tokio::test]
async fn nothing_is_logged_when_so_configured() {
    assert_eq!(log_of_a_story(DeliveryLog::None).await, Vec::<Value>::new());
}
