//! When the worker claims while an endpoint holds its part of the slots and has more jobs open.

use super::{fake_store::FakeStore, *};
use crate::EgressPolicy;
use prometheus_client::metrics::gauge::Gauge;

const BUSY: SubscriptionId = SubscriptionId(1);
const OTHER: SubscriptionId = SubscriptionId(2);

/// A claim takes so long that the next one is put off for as long as ever.
const CLAIM_TAKES: Duration = Duration::from_millis(10);
const PUT_OFF: Duration = Duration::from_millis(50);

/// A worker whose claims pass over the busy subscription and find nothing.
struct Fruitless {
    worker: Worker,
    store: Arc<FakeStore>,
}

impl Fruitless {
    fn new() -> Self {
        let store = Arc::new(FakeStore { claim_takes: CLAIM_TAKES, ..FakeStore::default() });
        let second = Duration::from_secs(1);
        let config = WorkerOptions { concurrency: 16, http_timeout: second, lease_duration: 60 * second };
        let client = DeliveryClient::new(EgressPolicy::default(), None).unwrap();
        let (key, signals) = (Arc::new(SecretKey::generate()), Signals::new(Stage::ALL));
        let log = DeliveryLog::All;
        let worker = Worker::new(store.clone(), client, key, config, signals, Metrics::new(), log);
        Self { worker, store }
    }

    fn claims(&self) -> Vec<std::time::Instant> {
        self.store.claims.lock().unwrap().clone()
    }

    /// Runs the worker, wakes it a moment after its first claim has found nothing, and stops it some time later. Returns how
    /// long after that claim it claimed again.
    async fn next_claim_after(&self, wake: impl Fn(&Signals)) -> Option<Duration> {
        self.store.claims.lock().unwrap().clear();
        let (in_flight, shutdown) = (InFlight::new(16, Gauge::default()), Shutdown::new());
        let now = std::time::Instant::now();
        let _slots: Vec<_> = (0..13).map(|_| in_flight.begin(BUSY, now)).collect();
        let (settled, _results) = mpsc::channel(1);
        let worker = async {
            while !shutdown.is_triggered() {
                self.worker.claim_and_start(&in_flight, &settled, &shutdown).await.unwrap();
            }
        };
        let test = async {
            while self.claims().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(2 * CLAIM_TAKES).await;
            wake(&self.worker.signals);
            tokio::time::sleep(2 * PUT_OFF).await;
            shutdown.trigger();
        };
        tokio::join!(worker, test);
        let claims = self.claims();
        Some(claims.get(1)?.duration_since(claims[0]))
    }
}

/// FB-1: the job of a healthy endpoint that comes right after a claim has found nothing does not wait.
#[tokio::test]
async fn new_jobs_of_others_are_claimed_at_once() {
    let fruitless = Fruitless::new();
    let mut quickest = Duration::MAX;
    // One round in a quiet moment is enough.
    for _ in 0..5 {
        let after = fruitless.next_claim_after(|signals| signals.wake_worker_for([BUSY, OTHER])).await;
        quickest = quickest.min(after.unwrap());
    }
    assert!(quickest < CLAIM_TAKES + PUT_OFF / 2, "{quickest:?}");
}

#[tokio::test]
async fn new_jobs_of_the_busy_one_cost_no_claim() {
    let after = Fruitless::new().next_claim_after(|signals| signals.wake_worker_for([BUSY])).await;
    assert!(after.is_none_or(|after| after >= Worker::SKIPPED_POLL), "{after:?}");
}

/// Those of other processes' making: whose they are is not known, and scans have a price.
#[tokio::test]
async fn jobs_of_unknown_are_looked_for_after_a_while() {
    let after = Fruitless::new().next_claim_after(|signals| signals.wake(Stage::Worker)).await.unwrap();
    assert!(after >= CLAIM_TAKES + PUT_OFF, "{after:?}");
}
