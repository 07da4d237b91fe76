use super::*;
use async_trait::async_trait;
use hooksaga_saga::{SagaId, SubscriptionId};
use hooksaga_store::{Examined, LargeEvent, RouteBatch, RoutedSaga, Unmatched};
use std::{collections::HashSet, sync::Mutex};

/// A queue in memory.
#[derive(Default)]
struct Queue {
    events: Mutex<Vec<Queued>>,
    /// The limits of the passes that are not for small events only.
    passes: Mutex<Vec<u32>>,
    /// The events that were examined.
    examined: Mutex<Vec<i64>>,
}

struct Queued {
    id: i64,
    tenant: String,
    /// Subscriptions that have no saga yet.
    left: u32,
    /// Another router works on it.
    is_locked: bool,
}

impl Queue {
    fn push(&self, tenant: &str, left: u32) -> i64 {
        let mut events = self.events.lock().unwrap();
        let id = events.last().map_or(1, |event| event.id + 1);
        events.push(Queued { id, tenant: tenant.to_owned(), left, is_locked: false });
        id
    }

    fn is_empty(&self) -> bool {
        self.events.lock().unwrap().is_empty()
    }

    fn waits(&self, id: i64) -> bool {
        self.events.lock().unwrap().iter().any(|event| event.id == id)
    }

    /// Routes those that `listed` names, one after the other.
    fn pass(&self, sagas: u32, listed: impl Fn(i64) -> bool) -> RouteBatch {
        self.passes.lock().unwrap().push(sagas);
        let (mut events, mut left) = (Vec::new(), sagas);
        for queued in self.events.lock().unwrap().iter_mut().filter(|one| listed(one.id) && !one.is_locked) {
            let routed = queued.left.min(left);
            queued.left -= routed;
            left -= routed;
            events.push(event(queued.id, routed, queued.left == 0));
            if queued.left > 0 {
                break;
            }
        }
        self.forget(&events);
        RouteBatch { events }
    }

    fn forget(&self, routed: &[RoutedEvent]) {
        let done: HashSet<_> =
            routed.iter().filter(|event| event.complete).map(|event| event.event_id.0).collect();
        self.events.lock().unwrap().retain(|event| !done.contains(&event.id));
    }
}

fn event(id: i64, sagas: u32, complete: bool) -> RoutedEvent {
    let saga = |id| RoutedSaga { saga_id: SagaId(1), subscription_id: SubscriptionId(id) };
    RoutedEvent {
        event_id: EventId(id),
        tenant: "default".to_owned(),
        event_type: "order.created".to_owned(),
        correlation_id: String::new(),
        sagas: (0..i64::from(sagas)).map(saga).collect(),
        unmatched: Unmatched::default(),
        complete,
        unwanted: false,
    }
}

#[async_trait]
impl RouterStore for Queue {
    async fn route(&self, limits: RouteLimits, _: u32) -> StoreResult<RouteBatch> {
        Ok(self.pass(limits.sagas, |_| true))
    }

    async fn queued(&self, after: EventId, limit: u32) -> StoreResult<Vec<EventId>> {
        let events = self.events.lock().unwrap();
        let ids = events.iter().map(|event| EventId(event.id)).filter(|id| *id > after);
        Ok(ids.take(limit as usize).collect())
    }

    async fn route_small(&self, events: &[EventId], limits: SmallLimits) -> StoreResult<Examined> {
        let (mut examined, mut left) = (Examined::default(), limits.sagas);
        let listed: HashSet<_> = events.iter().map(|event| event.0).collect();
        for queued in self.events.lock().unwrap().iter().filter(|one| listed.contains(&one.id)) {
            if queued.left > limits.each {
                let (event_id, tenant) = (EventId(queued.id), queued.tenant.clone());
                examined.large.push(LargeEvent { event_id, tenant, event_type: "crowd".to_owned() });
            } else if queued.left > left {
                examined.next = Some(EventId(queued.id));
                break;
            } else if !queued.is_locked {
                left -= queued.left;
                examined.routed.push(event(queued.id, queued.left, true));
            }
            self.examined.lock().unwrap().push(queued.id);
        }
        self.forget(&examined.routed);
        Ok(examined)
    }

    async fn route_listed(&self, events: &[EventId], limits: ListedLimits) -> StoreResult<RouteBatch> {
        Ok(self.pass(limits.sagas, |id| events.contains(&EventId(id))))
    }
}

fn router(crowds: &[u32]) -> (Router, Arc<Queue>, Signals) {
    let (queue, signals) = (Arc::new(Queue::default()), Signals::new(Stage::ALL));
    for left in crowds {
        queue.push("default", *left);
    }
    let router = Router::new(queue.clone(), 5, signals.clone(), Metrics::new(), DeliveryLog::default());
    (router, queue, signals)
}

fn passes(queue: &Queue) -> Vec<u32> {
    std::mem::take(&mut queue.passes.lock().unwrap())
}

/// Large events wait for nobody.
fn alone(queue: &Arc<Queue>) -> Router {
    let signals = Signals::new(&[Stage::Router]);
    Router::new(queue.clone(), 5, signals, Metrics::new(), DeliveryLog::default())
}

#[tokio::test]
async fn a_large_event_waits_for_the_deliveries_of_its_last_step_and_small_ones_do_not() {
    let (router, queue, signals) = router(&[100_000]);
    assert_eq!(router.run_once().await.unwrap(), Progress::Worked);
    assert_eq!(passes(&queue), [2000]);
    // The scheduler has taken them.
    signals.set_busy(signals.take_to_schedule().subscriptions.len());
    for _ in 0..3 {
        queue.push("default", 1);
    }
    let Progress::Drained { rows: 3, until: Some(until) } = router.run_once().await.unwrap() else {
        panic!("small events are let past");
    };
    assert!(until <= Router::CROWD_WAITS);
    assert!(!router.run_once().await.unwrap().did_work());
    assert_eq!(passes(&queue), Vec::<u32>::new(), "the large event waits");
    signals.take_to_schedule();
    signals.set_busy(10);
    tokio::time::timeout(Duration::from_secs(1), signals.woken(Stage::Router)).await.expect("it is told");
    assert_eq!(router.run_once().await.unwrap(), Progress::Worked);
    assert_eq!(passes(&queue), [Router::CROWD_STEP], "and its steps are small");
}

#[tokio::test]
async fn endpoints_that_are_busy_for_ever_hold_no_large_event_up() {
    let (router, queue, signals) = router(&[2500, 500]);
    signals.set_busy(100_000);
    let began = Instant::now();
    while !queue.is_empty() {
        if let Progress::Idle { until: Some(until) } = router.run_once().await.unwrap() {
            tokio::time::sleep(until).await;
        }
    }
    assert_eq!(passes(&queue), [2000, Router::CROWD_STEP, Router::CROWD_STEP]);
    assert!(began.elapsed() >= 2 * Router::CROWD_WAITS);
    queue.push("default", 10);
    router.run_once().await.unwrap();
    assert_eq!(passes(&queue), [2000], "without a large event there is nothing to wait for");
}

/// One that comes after it waits again.
#[tokio::test]
async fn a_large_event_waits_five_seconds_in_all() {
    let (router, queue, signals) = router(&[3000, 1000]);
    router.run_once().await.unwrap();
    signals.set_busy(100_000);
    assert!(!router.run_once().await.unwrap().did_work(), "its next step waits");
    let mut crowd = router.crowd.lock().await;
    let last_step = &mut crowd.as_mut().unwrap().last_step;
    *last_step = last_step.checked_sub(Router::CROWD_HELD).unwrap();
    drop(crowd);
    assert_eq!(router.run_once().await.unwrap(), Progress::Worked);
    assert_eq!(router.run_once().await.unwrap(), Progress::Worked);
    assert_eq!(passes(&queue), [2000, Router::CROWD_STEP, Router::CROWD_STEP]);
    assert!(!router.run_once().await.unwrap().did_work(), "the other one waits");
}

#[tokio::test]
async fn where_another_process_schedules_a_large_event_waits_for_nobody() {
    let queue = Arc::new(Queue::default());
    queue.push("default", 10_000);
    let router = alone(&queue);
    while router.run_once().await.unwrap() == Progress::Worked {}
    assert!(queue.is_empty());
}

/// However many large events came before it, and after it.
#[tokio::test]
async fn a_small_event_amid_thousands_of_large_ones_does_not_wait_for_them() {
    let queue = Arc::new(Queue::default());
    let mut small = Vec::new();
    for n in 0..4000 {
        queue.push("default", 1000);
        if n % 1000 == 500 {
            small.push(queue.push("default", if n > 2000 { 30 } else { 1 }));
        }
    }
    let (router, began) = (alone(&queue), Instant::now());
    while small.iter().any(|id| queue.waits(*id)) {
        assert_eq!(router.run_once().await.unwrap(), Progress::Worked);
        assert!(began.elapsed() < Duration::from_secs(20), "they wait");
    }
    let steps = began.elapsed().as_millis() / Router::CROWD_WAITS.as_millis();
    assert!(passes(&queue).len() as u128 <= 1 + steps, "the first pass met the crowd");
    let examined = std::mem::take(&mut *queue.examined.lock().unwrap());
    let distinct: HashSet<_> = examined.iter().collect();
    assert_eq!(examined.len(), distinct.len(), "each was examined once");
    // One that comes later is behind all that were examined.
    let late = queue.push("default", 1);
    while queue.waits(late) {
        router.run_once().await.unwrap();
    }
    assert!(passes(&queue).len() <= 1);
}

/// Small events keep coming, more than one pass can take.
#[tokio::test]
async fn large_events_get_on_beside_any_number_of_small_ones() {
    let queue = Arc::new(Queue::default());
    let large = queue.push("default", 3000);
    let router = alone(&queue);
    router.run_once().await.unwrap();
    let began = Instant::now();
    while queue.waits(large) {
        for _ in 0..2 * Router::EXAMINED {
            queue.push("default", 1);
        }
        router.run_once().await.unwrap();
        assert!(began.elapsed() < 20 * Router::CROWD_WAITS, "it does not get on");
    }
    assert_eq!(passes(&queue), [2000, Router::CROWD_STEP, Router::CROWD_STEP]);
}

#[tokio::test]
async fn large_events_of_several_tenants_take_turns() {
    let queue = Arc::new(Queue::default());
    for _ in 0..10 {
        queue.push("busy", 5000);
    }
    let others = ["one", "two"].map(|tenant| queue.push(tenant, 900));
    let router = alone(&queue);
    router.run_once().await.unwrap();
    while others.iter().any(|id| queue.waits(*id)) {
        router.run_once().await.unwrap();
    }
    let left: u32 = queue.events.lock().unwrap().iter().map(|event| event.left).sum();
    let busy = 50_000 - left;
    assert_eq!(busy, 2000 + 2 * Router::CROWD_STEP, "of three turns one is the busy tenant's");
    while router.run_once().await.unwrap() == Progress::Worked {}
    assert!(queue.is_empty());
}

/// A frozen router has locked a page of events and more.
#[tokio::test]
async fn events_that_another_router_holds_keep_nobody_waiting_and_are_found_again() {
    let queue = Arc::new(Queue::default());
    for n in 0..2 * Router::EXAMINED {
        queue.push("default", if n % 2 == 0 { 1 } else { 1000 });
    }
    let locked: Vec<i64> = queue.events.lock().unwrap().iter().map(|event| event.id).collect();
    for event in queue.events.lock().unwrap().iter_mut() {
        event.is_locked = true;
    }
    queue.push("default", 10_000);
    let small = queue.push("default", 1);
    let router = alone(&queue);
    while queue.waits(small) {
        assert_eq!(router.run_once().await.unwrap(), Progress::Worked);
    }
    assert!(passes(&queue).len() <= 3, "it waited until the queue was examined from its beginning");
    for event in queue.events.lock().unwrap().iter_mut() {
        event.is_locked = false;
    }
    let began = Instant::now();
    while locked.iter().any(|id| queue.waits(*id)) {
        router.run_once().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "they are left behind");
    }
}

/// Ids are handed out before commits.
#[tokio::test]
async fn a_small_event_that_appears_behind_newer_ones_is_found() {
    let queue = Arc::new(Queue::default());
    for _ in 0..5000 {
        queue.push("default", 1000);
    }
    let hidden = [100, 4900].map(|at| queue.events.lock().unwrap().remove(at));
    let (router, mut began) = (alone(&queue), Instant::now());
    while queue.examined.lock().unwrap().last() != Some(&5000) {
        router.run_once().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "they are not examined");
    }
    began = Instant::now();
    let [far, near] = hidden.map(|event| event.id);
    for id in [far, near] {
        let at = queue.events.lock().unwrap().partition_point(|event| event.id < id);
        let late = Queued { id, tenant: "default".to_owned(), left: 1, is_locked: false };
        queue.events.lock().unwrap().insert(at, late);
    }
    router.run_once().await.unwrap();
    assert!(!queue.waits(near), "at once, if it is a little behind");
    while queue.waits(far) {
        router.run_once().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "it is left behind");
    }
}
