//! Wake-ups: a stage that leaves work for the next one says so, and the next one need not poll for it.
//!
//! Within the process a wake-up is a [`Notify`] per stage. A stage that this process does not run is marked
//! for other processes instead; [`crate::forward_wakeups`] sends the marks on. A stage that runs here is
//! never announced elsewhere: whoever woke it has a copy beside it that does the work.
//!
//! A wake-up of the scheduler can name the subscriptions that have something new, so that it need not scan all of them,
//! and how much. A wake-up of the worker names those that have new jobs, if the scheduler runs in the same process. The
//! scheduler publishes two facts: whether it waits for free slots (if not, workers collect results into larger batches),
//! and how many endpoints it is busy with (while there are many, the router pauses events with thousands of subscriptions).
//!
//! A wake-up is a hint. Several may be merged into one, and one may be lost in a crash, so every loop also
//! polls slowly.

use hooksaga_saga::SubscriptionId;
use hooksaga_store::Stage;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering},
    },
};
use tokio::sync::{Notify, watch};

/// The wake-ups of one process. Clones share them.
#[derive(Clone, Debug)]
pub struct Signals(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// One per stage, in the order of [`Stage::ALL`].
    wake: [Notify; Stage::ALL.len()],
    /// The stages that run here, as bits.
    local: u16,
    /// The stages to wake in other processes, as bits.
    outgoing: AtomicU16,
    outgoing_ready: Notify,
    /// Whether every wake-up meant for a stage here arrives (a lost one aside).
    hears_all: AtomicBool,
    to_schedule: Mutex<ToSchedule>,
    new_jobs: Mutex<NewJobs>,
    results_awaited: watch::Sender<bool>,
    /// Endpoints that the scheduler here is busy with.
    busy: AtomicUsize,
    /// The router waits until they are fewer.
    crowd_waits: AtomicBool,
    /// Processes with a worker on this database, as far as is known.
    copies: AtomicU32,
}

/// What the scheduler was told since it last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ToSchedule {
    /// There is something, and nobody says where.
    pub(crate) anywhere: bool,
    /// How many sagas each has that are new; `u32::MAX` if nobody counted them.
    pub(crate) subscriptions: BTreeMap<SubscriptionId, u32>,
}

/// Whose jobs may be claimed that could not be when the worker last claimed.
#[derive(Debug, Default)]
struct NewJobs {
    /// There are some, and nobody says whose.
    of_unknown: bool,
    subscriptions: BTreeSet<SubscriptionId>,
}

fn bit(stage: Stage) -> u16 {
    1 << stage as u16
}

const EVERY_STAGE: u16 = (1 << Stage::ALL.len()) - 1;

impl Signals {
    /// The next step of a large event waits while the scheduler is busy with so many endpoints. What is on its way is then
    /// delivered within a tenth of a second, and that is how long others wait at most.
    const CROWD: usize = 500;

    /// Signals for a process that runs these stages itself.
    pub fn new(local: &[Stage]) -> Self {
        let local = local.iter().fold(0, |bits, stage| bits | bit(*stage));
        Self(Arc::new(Shared {
            wake: std::array::from_fn(|_| Notify::new()),
            local,
            outgoing: AtomicU16::new(0),
            outgoing_ready: Notify::new(),
            hears_all: AtomicBool::new(local == EVERY_STAGE),
            to_schedule: Mutex::default(),
            new_jobs: Mutex::default(),
            // The default if the scheduler runs in another process: assume that it waits for results.
            results_awaited: watch::Sender::new(true),
            busy: AtomicUsize::new(0),
            crowd_waits: AtomicBool::new(false),
            copies: AtomicU32::new(1),
        }))
    }

    /// Says that a stage has work: wakes it here, or marks it to be woken elsewhere.
    pub fn wake(&self, stage: Stage) {
        if stage == Stage::Schedule {
            self.to_schedule().anywhere = true;
        }
        if stage == Stage::Worker {
            self.new_jobs().of_unknown = true;
        }
        self.notify(stage);
    }

    /// Says that these subscriptions have new jobs.
    pub(crate) fn wake_worker_for(&self, subscriptions: impl IntoIterator<Item = SubscriptionId>) {
        if self.is_local(Stage::Worker) {
            self.new_jobs().subscriptions.extend(subscriptions);
        }
        self.notify(Stage::Worker);
    }

    /// Whether others than these, which are in order, are known to have new jobs since the last claim.
    pub(crate) fn has_new_jobs_beside(&self, skipped: &[SubscriptionId]) -> bool {
        self.new_jobs().subscriptions.iter().any(|id| skipped.binary_search(id).is_err())
    }

    /// Whether there are new jobs since the last claim, and nobody says whose.
    pub(crate) fn has_jobs_of_unknown(&self) -> bool {
        self.new_jobs().of_unknown
    }

    /// The worker claims what there is.
    pub(crate) fn take_new_jobs(&self) {
        let mut new_jobs = self.new_jobs();
        new_jobs.of_unknown = false;
        new_jobs.subscriptions.clear();
    }

    fn new_jobs(&self) -> MutexGuard<'_, NewJobs> {
        // Nothing panics while it is held.
        self.0.new_jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that these subscriptions have something to schedule; wakes nobody if there are none.
    pub fn wake_schedule(&self, subscriptions: impl IntoIterator<Item = SubscriptionId>) {
        self.wake_schedule_for(subscriptions.into_iter().map(|id| (id, u32::MAX)));
    }

    /// The same, where it is known how many sagas are new: each is named with its number, once or several times.
    pub(crate) fn wake_schedule_for(&self, sagas: impl IntoIterator<Item = (SubscriptionId, u32)>) {
        let mut sagas = sagas.into_iter().peekable();
        if sagas.peek().is_some() {
            if self.is_local(Stage::Schedule) {
                let mut told = self.to_schedule();
                for (id, new) in sagas {
                    let known = told.subscriptions.entry(id).or_default();
                    *known = known.saturating_add(new);
                }
            }
            self.notify(Stage::Schedule);
        }
    }

    /// Wakes the scheduler for what it knows itself.
    pub(crate) fn nudge_schedule(&self) {
        self.notify(Stage::Schedule);
    }

    /// Takes what the scheduler was told.
    pub(crate) fn take_to_schedule(&self) -> ToSchedule {
        std::mem::take(&mut *self.to_schedule())
    }

    fn to_schedule(&self) -> MutexGuard<'_, ToSchedule> {
        // Nothing panics while it is held.
        self.0.to_schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The scheduler says whether somebody waits for results: for the room that they make.
    pub(crate) fn set_results_awaited(&self, awaited: bool) {
        self.0.results_awaited.send_if_modified(|now| std::mem::replace(now, awaited) != awaited);
    }

    /// Waits until somebody waits for results.
    pub(crate) async fn results_awaited(&self) {
        // The sender lives as long as this does.
        let _ = self.0.results_awaited.subscribe().wait_for(|awaited| *awaited).await;
    }

    /// The scheduler says how many endpoints it is busy with.
    pub(crate) fn set_busy(&self, endpoints: usize) {
        self.0.busy.store(endpoints, Ordering::Release);
        if !self.is_crowded() && self.0.crowd_waits.swap(false, Ordering::AcqRel) {
            self.notify(Stage::Router);
        }
    }

    /// Whether the scheduler here is busy with more endpoints than one more step of a large event should join. Where
    /// another process schedules, nobody here knows.
    fn is_crowded(&self) -> bool {
        let told = self.to_schedule().subscriptions.len();
        self.0.busy.load(Ordering::Acquire) + told >= Self::CROWD
    }

    /// Whether the next step of a large event has to wait. If so, the router is woken when it need not wait any longer.
    pub(crate) fn crowd_must_wait(&self) -> bool {
        // First, so that a scheduler that is done in between wakes it.
        self.0.crowd_waits.store(true, Ordering::Release);
        let crowded = self.is_crowded();
        if !crowded {
            self.crowd_goes_on();
        }
        crowded
    }

    /// The router waits no longer.
    pub(crate) fn crowd_goes_on(&self) {
        self.0.crowd_waits.store(false, Ordering::Release);
    }

    /// Whether the next step of a large event waits for those before it.
    pub(crate) fn crowd_waits(&self) -> bool {
        self.0.crowd_waits.load(Ordering::Acquire)
    }

    /// How many copies share the work, this one included.
    pub(crate) fn copies(&self) -> u32 {
        self.0.copies.load(Ordering::Relaxed)
    }

    /// The scheduler has counted the workers that are alive.
    pub(crate) fn set_copies(&self, copies: u32) {
        self.0.copies.store(copies.max(1), Ordering::Relaxed);
    }

    /// Says that a stage which runs here has more work than it can do now: another copy may.
    pub(crate) fn offer_elsewhere(&self, stage: Stage) {
        if self.copies() > 1 {
            self.announce(stage);
        }
    }

    fn notify(&self, stage: Stage) {
        if self.is_local(stage) {
            self.0.wake[stage as usize].notify_one();
        } else {
            self.announce(stage);
        }
    }

    /// Marks the stage to be woken in other processes.
    pub(crate) fn announce(&self, stage: Stage) {
        if self.0.outgoing.fetch_or(bit(stage), Ordering::AcqRel) & bit(stage) == 0 {
            self.0.outgoing_ready.notify_one();
        }
    }

    /// Waits until the stage is woken; returns at once if it was since the last return. One waiter per
    /// stage: a wake-up goes to one of several.
    pub async fn woken(&self, stage: Stage) {
        self.0.wake[stage as usize].notified().await;
    }

    /// Whether this process runs the stage.
    pub fn is_local(&self, stage: Stage) -> bool {
        self.0.local & bit(stage) != 0
    }

    /// Whether wake-ups arrive from everyone whom this process depends on for work. If not, its polls are
    /// what finds that work, and should be quicker.
    pub fn hears_all(&self) -> bool {
        self.0.hears_all.load(Ordering::Relaxed)
    }

    /// The listener for other processes' wake-ups works, or does not.
    pub(crate) fn set_listening(&self, listening: bool) {
        self.0.hears_all.store(listening || self.0.local == EVERY_STAGE, Ordering::Relaxed);
    }

    /// Waits until there is something to tell other processes.
    pub(crate) async fn outgoing_ready(&self) {
        self.0.outgoing_ready.notified().await;
    }

    /// Takes the stages to wake in other processes.
    pub(crate) fn take_outgoing(&self) -> Vec<Stage> {
        let bits = self.0.outgoing.swap(0, Ordering::AcqRel);
        Stage::ALL.iter().copied().filter(|stage| bits & bit(*stage) != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn is_woken(signals: &Signals, stage: Stage) -> bool {
        tokio::time::timeout(Duration::from_millis(1), signals.woken(stage)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_up_is_kept_until_it_is_taken_and_many_are_one() {
        let signals = Signals::new(&[Stage::Router, Stage::Apply]);
        assert!(!is_woken(&signals, Stage::Router).await);
        signals.wake(Stage::Router);
        signals.clone().wake(Stage::Router);
        assert!(is_woken(&signals, Stage::Router).await);
        assert!(!is_woken(&signals, Stage::Router).await);
        assert!(!is_woken(&signals, Stage::Apply).await);
        assert_eq!(signals.take_outgoing(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_scheduler_is_told_where_to_look_unless_it_may_be_anywhere() {
        let signals = Signals::new(Stage::ALL);
        let ids =
            |ids: &[i64]| ids.iter().map(|id| (SubscriptionId(*id), u32::MAX)).collect::<BTreeMap<_, _>>();
        signals.wake_schedule([]);
        assert!(!is_woken(&signals, Stage::Schedule).await);
        assert_eq!(signals.take_to_schedule(), ToSchedule::default());
        signals.wake_schedule(ids(&[2, 1]).into_keys());
        signals.wake_schedule(ids(&[2, 3]).into_keys());
        assert!(is_woken(&signals, Stage::Schedule).await);
        let told = ToSchedule { anywhere: false, subscriptions: ids(&[1, 2, 3]) };
        assert_eq!(signals.take_to_schedule(), told);
        signals.nudge_schedule();
        assert!(is_woken(&signals, Stage::Schedule).await);
        assert_eq!(signals.take_to_schedule(), ToSchedule::default(), "a nudge names nobody");
        signals.wake_schedule(ids(&[1]).into_keys());
        signals.wake(Stage::Schedule);
        assert_eq!(signals.take_to_schedule(), ToSchedule { anywhere: true, subscriptions: ids(&[1]) });
        assert_eq!(signals.take_to_schedule(), ToSchedule::default());
    }

    #[tokio::test(start_paused = true)]
    async fn results_are_awaited_unless_the_scheduler_says_otherwise() {
        let signals = Signals::new(&[Stage::Worker]);
        let awaited = |signals: Signals| async move {
            tokio::time::timeout(Duration::from_millis(1), signals.results_awaited()).await.is_ok()
        };
        assert!(awaited(signals.clone()).await);
        signals.set_results_awaited(false);
        assert!(!awaited(signals.clone()).await);
        let waiting = tokio::spawn({
            let signals = signals.clone();
            async move { signals.results_awaited().await }
        });
        tokio::task::yield_now().await;
        signals.set_results_awaited(true);
        waiting.await.expect("whoever waits is told");
    }

    #[tokio::test(start_paused = true)]
    async fn only_stages_that_run_elsewhere_are_marked_for_others() {
        let signals = Signals::new(&[Stage::Router]);
        signals.wake(Stage::Worker);
        signals.wake(Stage::Schedule);
        signals.wake(Stage::Worker);
        signals.wake(Stage::Router);
        signals.outgoing_ready().await;
        assert_eq!(signals.take_outgoing(), [Stage::Schedule, Stage::Worker]);
        assert_eq!(signals.take_outgoing(), []);
        signals.take_to_schedule();
        signals.wake_schedule([SubscriptionId(1)]);
        assert_eq!(signals.take_outgoing(), [Stage::Schedule]);
        assert_eq!(
            signals.take_to_schedule().subscriptions,
            BTreeMap::new(),
            "nobody here would ever take it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_new_is_added_up_where_it_was_counted() {
        let signals = Signals::new(Stage::ALL);
        let [a, b] = [1, 2].map(SubscriptionId);
        signals.wake_schedule_for([(a, 2), (b, 1), (a, 3)]);
        signals.wake_schedule_for([(a, 1)]);
        signals.wake_schedule([b]);
        assert_eq!(signals.take_to_schedule().subscriptions, BTreeMap::from([(a, 6), (b, u32::MAX)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_event_waits_while_the_scheduler_is_busy_and_is_told_when_it_is_not() {
        let signals = Signals::new(Stage::ALL);
        let most = Signals::CROWD;
        assert!(!signals.crowd_must_wait());
        signals.set_busy(most - 1);
        assert!(!signals.crowd_must_wait() && !signals.crowd_waits());
        signals.wake_schedule([SubscriptionId(1)]);
        assert!(signals.crowd_must_wait(), "what the scheduler has yet to take counts, too");
        signals.set_busy(most);
        signals.take_to_schedule();
        assert!(!is_woken(&signals, Stage::Router).await);
        assert!(signals.crowd_waits());
        signals.set_busy(most - 1);
        assert!(is_woken(&signals, Stage::Router).await && !signals.crowd_waits());
        signals.set_busy(most);
        signals.set_busy(0);
        assert!(!is_woken(&signals, Stage::Router).await, "nobody waits");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_too_much_here_is_offered_to_other_copies_and_to_nobody_if_there_are_none() {
        let signals = Signals::new(Stage::ALL);
        signals.offer_elsewhere(Stage::Worker);
        assert_eq!(signals.take_outgoing(), [], "it is alone");
        signals.set_copies(2);
        signals.offer_elsewhere(Stage::Worker);
        assert!(!is_woken(&signals, Stage::Worker).await);
        assert_eq!(signals.take_outgoing(), [Stage::Worker]);
        signals.set_copies(0);
        assert_eq!(signals.copies(), 1, "this one is alive");
    }
}
