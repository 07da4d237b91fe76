//! The router: for each new event, one saga per subscription that wants it.
//!
//! Promises: every accepted event is routed, exactly once per subscription, by any number of routers; a pass
//! that is repeated changes nothing. Which subscriptions match is decided by the store after the events are
//! locked, so a change is seen by the next pass.
//!
//! A pass is bounded by the sagas that it writes. An event with more subscriptions than that takes several passes, each of which stores
//! its progress. After a pass that times out, the next one is half as large.
//!
//! Normally a pass takes the oldest events. When a pass leaves a large event half routed, the router changes to a
//! second mode until no large event waits: it examines each queued event once, in order of arrival, routes the small
//! ones at once, and lets the large ones take turns, one step each, by tenant and then by event type ([`LargeEvents`]). So a
//! small event waits for at most one step of a large one. A large event's next step is due after 250 ms.
//!
//! The delivery of a small event does not wait either: a step also waits until the scheduler has handled most of the
//! deliveries of the previous step. Routing is faster than delivering; without that wait, thousands of endpoints would
//! have something due, and each would get its first job before any other got its second. An event that waits is one row
//! of the queue.
//!
//! Not done here: creating jobs, changing sagas, events or subscriptions, reading payloads.

mod large_events;

use crate::{
    DELIVERY_LOG_TARGET, DeliveryLog, Driver, Metrics, Progress, Shutdown, Signals, batch_size::BatchSize,
    driver::Rhythm,
};
use hooksaga_saga::{EventId, Tenant};
use hooksaga_store::{ListedLimits, RouteLimits, RoutedEvent, RouterStore, SmallLimits, Stage, StoreResult};
use large_events::LargeEvents;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

pub struct Router {
    store: Arc<dyn RouterStore>,
    /// Attempts of sagas whose subscription has no limit of its own.
    default_limit: u32,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
    sagas: BatchSize,
    /// Events that are examined together.
    examined: BatchSize,
    /// While large events wait.
    crowd: Mutex<Option<LargeEvents>>,
}

impl Router {
    /// What a pass may cost: events taken, and sagas written. On SQLite, posts wait while a pass writes.
    const LIMITS: RouteLimits = RouteLimits { events: 1000, sagas: 2000 };
    /// The most subscriptions of a small event: some sixty of those fit into one pass.
    const SMALL: u32 = 32;
    /// Ids of the queue that are read at once, and new events among them that are examined together.
    const LISTED: u32 = 2500;
    const EXAMINED: u32 = 250;
    /// Sagas of small events that one pass writes, for each event that it examines.
    const SAGAS_EACH: u32 = 8;
    /// Large events of one type that share a turn.
    const TURN: usize = 16;
    /// Sagas of a pass that goes on with a large event.
    const CROWD_STEP: u32 = 500;
    /// The longest that such a pass waits for the scheduler: endpoints that are slow may keep it busy for ever.
    const CROWD_WAITS: Duration = Duration::from_millis(250);
    /// After this long in all a large event waits no more for the scheduler.
    const CROWD_HELD: Duration = Duration::from_secs(5);
    const NAME: &str = "router";

    pub fn new(
        store: Arc<dyn RouterStore>,
        default_limit: u32,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        let sagas = BatchSize::new(Self::LIMITS.sagas);
        let examined = BatchSize::new(Self::EXAMINED);
        Self { store, default_limit, signals, metrics, log, sagas, examined, crowd: Mutex::default() }
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Woken(Stage::Router),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        driver.run(|| self.run_once()).await;
    }

    pub async fn run_once(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        let mut crowd = self.crowd.lock().await;
        if let Some(known) = &mut *crowd {
            if let Some(progress) = self.beside_a_crowd(known).await? {
                return Ok(progress);
            }
            *crowd = None;
        }
        let sagas = self.sagas.get();
        let limits = RouteLimits { events: Self::LIMITS.events.min(sagas), sagas };
        let batch = self.sagas.noting(self.store.route(limits, self.default_limit).await)?;
        self.account(&batch.events, started);
        if batch.events.last().is_none_or(|event| event.complete) {
            return Ok(Progress::of_batch(batch.events.len(), limits.events));
        }
        // If all that it routed are small, there was merely no room for the last one; the next pass goes on with it at once.
        let considered = |event: &RoutedEvent| event.sagas.len() as u64 + event.unmatched.total();
        if batch.events.iter().any(|event| considered(event) > u64::from(Self::SMALL)) {
            self.examine(crowd.insert(LargeEvents::new(Instant::now()))).await?;
        }
        Ok(Progress::Worked)
    }

    /// Routes small events, and then gives the next large one its turn. `None` if none waits.
    async fn beside_a_crowd(&self, crowd: &mut LargeEvents) -> StoreResult<Option<Progress>> {
        let (routed, more) = self.examine(crowd).await?;
        if crowd.is_empty() {
            return Ok(more.then_some(Progress::Worked));
        }
        let now = Instant::now();
        if more && now.saturating_duration_since(crowd.last_step) < Self::CROWD_WAITS {
            return Ok(Some(Progress::Worked));
        }
        if let Some(wait) = self.crowd_waits(crowd, now) {
            return Ok(Some(Progress::of_batch(routed, u32::MAX).or_after(Some(wait))));
        }
        let events = crowd.turn(Self::TURN, now);
        let sagas = self.sagas.get().min(Self::CROWD_STEP);
        let limits = ListedLimits { sagas, default_limit: self.default_limit };
        let batch = self.sagas.noting(self.store.route_listed(&events, limits).await)?;
        self.account(&batch.events, now);
        crowd.stepped(&events, &batch.events, Instant::now());
        Ok(Some(Progress::Worked))
    }

    /// Examines the next events that are new in the queue, and routes the small ones. Returns how many those were, and whether
    /// there may be more to examine.
    async fn examine(&self, crowd: &mut LargeEvents) -> StoreResult<(usize, bool)> {
        let started = Instant::now();
        let mut after = crowd.begin(started);
        loop {
            let listed = self.store.queued(after, Self::LISTED).await?;
            let Some(last) = listed.last().copied() else { return Ok((0, false)) };
            let is_whole = listed.len() < Self::LISTED as usize;
            let most = self.examined.get();
            let new = listed.into_iter().filter(|event| crowd.is_new(*event));
            let mut new: Vec<EventId> = new.take(most as usize).collect();
            if new.is_empty() {
                crowd.reached(last);
                if is_whole {
                    return Ok((0, false));
                }
                after = last;
                continue;
            }
            let limits = SmallLimits {
                each: Self::SMALL,
                sagas: (most * Self::SAGAS_EACH).max(Self::SMALL),
                default_limit: self.default_limit,
            };
            let examined = self.examined.noting(self.store.route_small(&new, limits).await)?;
            let is_all = new.len() < most as usize && examined.next.is_none();
            new.retain(|event| examined.next.is_none_or(|next| *event < next));
            crowd.examined(&new, &examined);
            if let Some(to) = if is_all { Some(last) } else { new.last().copied() } {
                crowd.reached(to);
            }
            self.account(&examined.routed, started);
            return Ok((examined.routed.len(), !(is_all && is_whole)));
        }
    }

    /// How long the next step of a large event has to wait at most; `None` if it need not.
    fn crowd_waits(&self, crowd: &LargeEvents, now: Instant) -> Option<Duration> {
        let left = Self::CROWD_WAITS.saturating_sub(now.saturating_duration_since(crowd.last_step));
        if left.is_zero() || crowd.next_has_waited() >= Self::CROWD_HELD {
            self.signals.crowd_goes_on();
            return None;
        }
        self.signals.crowd_must_wait().then_some(left)
    }

    /// Tells of a pass that began then.
    fn account(&self, events: &[RoutedEvent], began: Instant) {
        if events.is_empty() {
            return;
        }
        self.metrics.pass(Self::NAME, began.elapsed());
        let sagas: usize = events.iter().map(|event| event.sagas.len()).sum();
        let each = events.iter().flat_map(|event| &event.sagas);
        self.signals.wake_schedule_for(each.map(|saga| (saga.subscription_id, 1)));
        self.metrics.routed(events.len() as u64, sagas as u64);
        // An event that nobody takes is what an operator searches for, whether or not successes are logged.
        let (good, bad) = (self.log.wants(false), self.log.wants(true));
        if !bad {
            return;
        }
        for event in events {
            // What operators are told is for whoever subscribes to it.
            let missed = event.unwanted && event.tenant != Tenant::RESERVED;
            if missed || event.unmatched.total() > 0 {
                let unmatched = event.unmatched;
                let of_this_type = match unmatched.total() {
                    0 => String::new(),
                    _ => format!(" ({unmatched})"),
                };
                let what =
                    if event.unwanted { "matched no subscription" } else { "not sent to some subscriptions" };
                tracing::info!(
                    target: DELIVERY_LOG_TARGET,
                    stage = Self::NAME,
                    delivery_status = "Unrouted",
                    correlation_id = event.correlation_id.as_str(),
                    tenant = event.tenant.as_str(),
                    event_id = event.event_id.0,
                    event_type = event.event_type.as_str(),
                    paused = unmatched.paused,
                    disabled = unmatched.disabled,
                    unverified = unmatched.unverified,
                    "{what}{of_this_type}"
                );
            }
            for saga in event.sagas.iter().filter(|_| good) {
                tracing::info!(
                    target: DELIVERY_LOG_TARGET,
                    stage = Self::NAME,
                    delivery_status = "Pending",
                    tenant = event.tenant.as_str(),
                    correlation_id = event.correlation_id.as_str(),
                    saga_id = saga.saga_id.0,
                    event_id = event.event_id.0,
                    subscription_id = saga.subscription_id.0,
                    "routed"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
