//! How submits share commits, over a store that can be held up and that refuses on demand.

use super::*;
use async_trait::async_trait;
use hooksaga_saga::{EventId, Tenant, Timestamp};
use hooksaga_store::EventHead;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinHandle};

/// Events are known by their type; those called "bad" are refused.
struct FakeStore {
    /// One permit lets one commit pass.
    gate: Semaphore,
    /// The event types of each call, in order.
    calls: Mutex<Vec<Vec<String>>>,
    away: AtomicBool,
    /// Somebody's open transaction holds what has the type `held`.
    holding: AtomicBool,
    /// How many calls wait for it, and how many did at most.
    blocked: AtomicUsize,
    most_blocked: AtomicUsize,
    next_id: AtomicI64,
}

#[async_trait]
impl IngestStore for FakeStore {
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
        self.calls.lock().unwrap().push(events.iter().map(|event| event.event_type.to_string()).collect());
        self.gate.acquire().await.unwrap().forget();
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("away".to_owned()));
        }
        if events.iter().any(|event| event.event_type.as_str() == "bad") {
            return Err(StoreError::Refused("bad".to_owned()));
        }
        let holding = self.holding.load(Ordering::SeqCst);
        if holding && events.iter().any(|event| event.event_type.as_str() == "held") {
            return Err(StoreError::Contended("held".to_owned()));
        }
        if holding && events.iter().any(|event| event.event_type.as_str().starts_with("held-")) {
            let now = self.blocked.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_blocked.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.blocked.fetch_sub(1, Ordering::SeqCst);
            return Err(StoreError::Contended("held".to_owned()));
        }
        let head = |event: &NewEvent| EventHead {
            id: EventId(self.next_id.fetch_add(1, Ordering::SeqCst)),
            tenant: event.tenant.to_string(),
            event_type: event.event_type.to_string(),
            external_id: None,
            correlation_id: event.correlation_id.to_string(),
            created_at: Timestamp::from_micros(0),
        };
        Ok(events.iter().map(|event| Appended::Created(head(event))).collect())
    }

    async fn store_payload_limit(&self, _: u64) -> StoreResult<()> {
        Ok(())
    }
}

struct Bench {
    store: Arc<FakeStore>,
    ingest: Ingest,
    task: JoinHandle<()>,
    signals: Signals,
    metrics: Arc<Metrics>,
}

type Waiting = JoinHandle<Result<Vec<Appended>, IngestError>>;

impl Bench {
    /// With this many commits let through in advance.
    fn new(limits: IngestLimits, open: usize) -> Self {
        let store = Arc::new(FakeStore {
            gate: Semaphore::new(open),
            calls: Mutex::default(),
            away: AtomicBool::new(false),
            holding: AtomicBool::new(false),
            blocked: AtomicUsize::new(0),
            most_blocked: AtomicUsize::new(0),
            next_id: AtomicI64::new(1),
        });
        let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
        let (ingest, task) =
            Ingest::start(store.clone(), signals.clone(), metrics.clone(), limits, DeliveryLog::All);
        Self { store, ingest, task: tokio::spawn(task.run()), signals, metrics }
    }

    /// Submits and returns once it waits in the queue or is being committed.
    async fn submit(&self, types: &[&str]) -> Waiting {
        let (ingest, events) = (self.ingest.clone(), types.iter().map(|name| event(name)).collect());
        let waiting = tokio::spawn(async move { ingest.submit(events).await });
        // Tests run on one thread: two turns let the submit queue itself and the writer take it.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        waiting
    }

    fn calls(&self) -> Vec<Vec<String>> {
        self.store.calls.lock().unwrap().clone()
    }

    fn open(&self, commits: usize) {
        self.store.gate.add_permits(commits);
    }
}

fn event(name: &str) -> NewEvent {
    NewEvent {
        tenant: Tenant::default(),
        event_type: name.parse().unwrap(),
        payload: "{}".into(),
        external_id: name.starts_with("held").then(|| name.parse().unwrap()),
        correlation_id: format!("about-{name}").parse().unwrap(),
    }
}

/// One commit at a time, so that what a test submits meanwhile waits.
fn one_at_a_time() -> IngestLimits {
    IngestLimits { commits_in_flight: 1, ..IngestLimits::default() }
}

async fn types_of(waiting: Waiting) -> Vec<String> {
    let answers = waiting.await.unwrap().unwrap();
    let of = |answer| match answer {
        Appended::Created(head) => head.event_type,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(of).collect()
}

#[tokio::test]
async fn submits_join_the_batch_that_forms_while_a_commit_runs() {
    let bench = Bench::new(one_at_a_time(), 0);
    let first = bench.submit(&["a"]).await;
    assert_eq!(bench.calls(), [["a"]], "when nothing runs a submit is committed at once");
    let second = bench.submit(&["b"]).await;
    let third = bench.submit(&["c", "d"]).await;
    assert_eq!(bench.calls().len(), 1);
    bench.open(2);
    assert_eq!(types_of(first).await, ["a"]);
    assert_eq!(types_of(third).await, ["c", "d"]);
    assert_eq!(types_of(second).await, ["b"]);
    assert_eq!(bench.calls(), [vec!["a"], vec!["b", "c", "d"]]);
    bench.signals.woken(Stage::Router).await;
    assert!(
        bench
            .metrics
            .encode(&Default::default())
            .contains(r#"hooksaga_events_ingested_total{result="created"} 4"#)
    );
}

#[tokio::test(start_paused = true)]
async fn a_rest_is_over_when_as_many_events_wait_as_were_committed() {
    let bench = Bench::new(one_at_a_time(), 0);
    let first = bench.submit(&["a"; 8]).await;
    let took = Duration::from_millis(10);
    tokio::time::advance(took).await;
    bench.open(2);
    assert_eq!(types_of(first).await.len(), 8);
    let rests = Instant::now();
    let few = bench.submit(&["b"; 7]).await;
    assert_eq!(bench.calls().len(), 1, "it rests, so that more can join them");
    let one_more = bench.submit(&["c"]).await;
    assert_eq!((types_of(few).await.len(), types_of(one_more).await.len()), (7, 1));
    assert_eq!((bench.calls().len(), rests.elapsed()), (2, Duration::ZERO));

    // That commit took no time, and is followed by no rest. One that is, by few events, ends by itself.
    let slow = bench.submit(&["d"; 8]).await;
    tokio::time::advance(took).await;
    bench.open(1);
    types_of(slow).await;
    let rests = Instant::now();
    bench.open(1);
    types_of(bench.submit(&["e"]).await).await;
    assert!(rests.elapsed() >= took, "{:?}", rests.elapsed());
}

#[tokio::test]
async fn two_commits_may_run_at_a_time_if_the_limits_say_so() {
    let bench = Bench::new(IngestLimits { commits_in_flight: 2, ..one_at_a_time() }, 0);
    let waiting = [bench.submit(&["a"]).await, bench.submit(&["b"]).await, bench.submit(&["c"]).await];
    assert_eq!(bench.calls(), [["a"], ["b"]]);
    bench.open(3);
    for (waiting, name) in waiting.into_iter().zip(["a", "b", "c"]) {
        assert_eq!(types_of(waiting).await, [name]);
    }
}

#[tokio::test(start_paused = true)]
async fn beside_other_copies_one_commit_runs_at_a_time_unless_it_is_slow() {
    let bench = Bench::new(IngestLimits { commits_in_flight: 2, ..one_at_a_time() }, 2);
    bench.signals.set_copies(2);
    // Both writers have been idle since before there was another copy.
    types_of(bench.submit(&["a"]).await).await;
    types_of(bench.submit(&["b"]).await).await;
    let first = bench.submit(&["c"]).await;
    let second = bench.submit(&["d"]).await;
    assert_eq!(bench.calls(), [["a"], ["b"], ["c"]]);
    tokio::time::sleep(Writer::SLOW * 2).await;
    assert_eq!(bench.calls().last(), Some(&vec!["d".to_owned()]), "the first one may be slow");
    bench.open(2);
    assert_eq!((types_of(first).await, types_of(second).await), (vec!["c".to_owned()], vec!["d".to_owned()]));
}

#[tokio::test]
async fn a_batch_ends_between_submits_never_within_one() {
    let bench = Bench::new(IngestLimits { batch_events: 3, ..one_at_a_time() }, 0);
    let mut waiting = vec![bench.submit(&["first"]).await];
    for submit in [&["a", "b"][..], &["c", "d"], &["e"], &["f", "g", "h", "i"]] {
        waiting.push(bench.submit(submit).await);
    }
    bench.open(10);
    for waiting in waiting {
        types_of(waiting).await;
    }
    let expected = [vec!["first"], vec!["a", "b"], vec!["c", "d", "e"], vec!["f", "g", "h", "i"]];
    assert_eq!(bench.calls(), expected);
}

#[tokio::test]
async fn what_waits_is_bounded_in_events() {
    let bench = Bench::new(IngestLimits { queued_events: 3, ..one_at_a_time() }, 0);
    let running = bench.submit(&["running"]).await;
    let fits = bench.submit(&["a", "b"]).await;
    let too_many = bench.submit(&["c", "d"]).await;
    assert!(matches!(too_many.await.unwrap(), Err(IngestError::Overloaded)));
    let also_fits = bench.submit(&["e"]).await;
    bench.open(2);
    for waiting in [running, fits, also_fits] {
        types_of(waiting).await;
    }
    bench.open(1);
    assert_eq!(types_of(bench.submit(&["later"]).await).await, ["later"]);
    assert!(
        bench
            .metrics
            .encode(&Default::default())
            .contains(r#"hooksaga_events_ingested_total{result="overloaded"} 2"#)
    );
}

#[tokio::test]
async fn what_waits_is_bounded_in_bytes_but_one_large_submit_is_taken() {
    let bench = Bench::new(IngestLimits { queued_bytes: 1000, ..one_at_a_time() }, 0);
    let running = bench.submit(&["running"]).await;
    let large = bench.submit(&["large"; 10]).await;
    let refused = bench.submit(&["a"]).await;
    assert!(matches!(refused.await.unwrap(), Err(IngestError::Overloaded)));
    bench.open(2);
    assert_eq!(types_of(running).await.len(), 1);
    assert_eq!(types_of(large).await.len(), 10);
}

#[tokio::test]
async fn a_bad_event_fails_its_own_submit_only() {
    let bench = Bench::new(one_at_a_time(), 0);
    let first = bench.submit(&["first"]).await;
    let good = bench.submit(&["good"]).await;
    let bad = bench.submit(&["fine", "bad"]).await;
    let other = bench.submit(&["other"]).await;
    bench.open(5);
    assert_eq!(types_of(first).await, ["first"]);
    assert_eq!(types_of(good).await, ["good"]);
    assert!(matches!(bad.await.unwrap(), Err(IngestError::Store(StoreError::Refused(_)))));
    assert_eq!(types_of(other).await, ["other"]);
}

#[tokio::test]
async fn when_the_database_is_away_everyone_is_told_and_nothing_is_tried_one_by_one() {
    let bench = Bench::new(one_at_a_time(), 0);
    bench.store.away.store(true, Ordering::SeqCst);
    let waiting = [bench.submit(&["a"]).await, bench.submit(&["b"]).await, bench.submit(&["c"]).await];
    bench.open(2);
    for waiting in waiting {
        assert!(matches!(waiting.await.unwrap(), Err(IngestError::Store(StoreError::Unavailable(_)))));
    }
    assert_eq!(bench.calls().len(), 2);
    bench.store.away.store(false, Ordering::SeqCst);
    bench.open(1);
    assert_eq!(types_of(bench.submit(&["d"]).await).await, ["d"]);
}

#[tokio::test]
async fn a_caller_that_goes_away_disturbs_nobody() {
    let bench = Bench::new(one_at_a_time(), 0);
    let running = bench.submit(&["running"]).await;
    let gone = bench.submit(&["gone"]).await;
    let stays = bench.submit(&["stays"]).await;
    gone.abort();
    running.abort();
    assert!(gone.await.unwrap_err().is_cancelled() && running.await.unwrap_err().is_cancelled());
    bench.open(2);
    assert_eq!(types_of(stays).await, ["stays"]);
    assert_eq!(bench.calls(), [["running"], ["stays"]]);
}

#[tokio::test]
async fn the_task_ends_with_the_last_handle_after_answering() {
    let bench = Bench::new(one_at_a_time(), 0);
    let waiting = [bench.submit(&["a"]).await, bench.submit(&["b"]).await];
    let Bench { store, ingest, task, .. } = bench;
    drop(ingest);
    store.gate.add_permits(2);
    for waiting in waiting {
        types_of(waiting).await;
    }
    task.await.unwrap();
}

#[tokio::test]
async fn without_its_task_nobody_waits_for_ever() {
    let bench = Bench::new(one_at_a_time(), 0);
    let committing = bench.submit(&["a"]).await;
    let queued = bench.submit(&["b"]).await;
    bench.task.abort();
    let later = bench.submit(&["c"]).await;
    for waiting in [committing, queued, later] {
        assert!(matches!(waiting.await.unwrap(), Err(IngestError::Store(StoreError::Unavailable(_)))));
    }
}

#[tokio::test]
async fn nothing_submitted_is_nothing_done() {
    let bench = Bench::new(one_at_a_time(), 0);
    assert!(bench.ingest.submit(Vec::new()).await.unwrap().is_empty());
    assert!(bench.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_an_open_transaction_holds_up_delays_no_other() {
    let bench = Bench::new(one_at_a_time(), 0);
    bench.store.holding.store(true, Ordering::SeqCst);
    let first = bench.submit(&["first"]).await;
    let (a, held, b) =
        (bench.submit(&["a"]).await, bench.submit(&["held"]).await, bench.submit(&["b"]).await);
    let began = Instant::now();
    bench.open(1000);
    for waiting in [first, a, b] {
        assert!(matches!(waiting.await.unwrap().unwrap()[..], [Appended::Created(_)]));
    }
    assert!(began.elapsed() < Duration::from_millis(200), "nobody waits for it: {:?}", began.elapsed());
    // Nor do later ones, although it is tried again and again.
    let later = bench.submit(&["later"]).await;
    later.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
    assert!(!held.is_finished());
    assert!(matches!(held.await.unwrap(), Err(IngestError::Store(StoreError::Contended(_)))));
    assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < Duration::from_secs(2));

    let held = bench.submit(&["held"]).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    bench.store.holding.store(false, Ordering::SeqCst);
    assert!(
        matches!(held.await.unwrap().unwrap()[..], [Appended::Created(_)]),
        "it goes in when it is let go"
    );
}

#[tokio::test(start_paused = true)]
async fn however_many_want_what_is_held_few_wait_in_the_database() {
    let bench = Bench::new(IngestLimits::default(), 100_000);
    bench.store.holding.store(true, Ordering::SeqCst);
    let mut wanting = Vec::new();
    for turn in 0..40_u32 {
        for id in ["held-a", "held-b", "held-c"] {
            wanting.push(bench.submit(&[id]).await);
        }
        // From the third second on all are known.
        let began = Instant::now();
        bench.submit(&["other"]).await.await.unwrap().unwrap();
        assert!(turn < 10 || began.elapsed() < Duration::from_millis(100), "{turn}: {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for held in wanting {
        assert!(matches!(held.await.unwrap(), Err(IngestError::Store(StoreError::Contended(_)))));
    }
    // Those that are tried apart, and the batches that meet it first.
    let most = bench.store.most_blocked.load(Ordering::SeqCst);
    assert!(most <= 5, "{most}");

    let held = bench.submit(&["held-a"]).await;
    bench.store.holding.store(false, Ordering::SeqCst);
    drop(held);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(bench.submit(&["held-a"]).await.await.unwrap().unwrap()[..], [Appended::Created(_)]));
}

#[tokio::test(start_paused = true)]
async fn neighbours_of_a_crowd_that_wants_what_is_held_wait_for_one_try_of_each_id() {
    let bench = Bench::new(one_at_a_time(), 0);
    bench.store.holding.store(true, Ordering::SeqCst);
    let mut submitted = vec![bench.submit(&["first"]).await];
    let mut wanting = Vec::new();
    for _ in 0..10 {
        for id in ["held-a", "held-b", "held-c"] {
            wanting.push(bench.submit(&[id]).await);
        }
    }
    submitted.push(bench.submit(&["neighbour"]).await);
    let began = Instant::now();
    bench.open(1000);
    for submit in submitted {
        assert!(matches!(submit.await.unwrap().unwrap()[..], [Appended::Created(_)]));
    }
    // The batch, and then three ids, two at a time.
    assert!(began.elapsed() < Duration::from_millis(2000), "{:?}", began.elapsed());
    for held in wanting {
        assert!(held.await.unwrap().is_err());
    }
}
