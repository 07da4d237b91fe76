//! Gives due sagas their jobs.
//!
//! A pass works on subscriptions that are known to have something due: the router and the operator name them, retries are
//! remembered until they fall due, and where a pass took all that it was allotted more may wait. Work that no wake-up
//! named is found by a full scan of all waiting subscriptions, page by page: with the driver's polls, at most once a
//! second, and whenever this stage is woken without a name.

use super::{Orchestrator, lanes::Lanes};
use crate::{DELIVERY_LOG_TARGET, Progress};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Move, ScheduledSaga, Stage, StoreResult};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

pub(super) const NAME: &str = "schedule";
/// Jobs per pass.
pub(super) const BATCH: u32 = 1000;

/// A full scan of the subscriptions that wait, page by page.
#[derive(Debug, Default)]
pub(super) struct FullScan(Mutex<FullScanState>);

#[derive(Debug, Default)]
struct FullScanState {
    /// Somebody has work that is not known here.
    wanted: bool,
    /// Where the next page begins, while a scan is under way.
    under_way: Option<Option<SubscriptionId>>,
    began: Option<Instant>,
    /// How long the statements of this scan took so far.
    spent: Duration,
    /// How long those of the last whole scan took, within bounds.
    took: Duration,
}

impl FullScan {
    /// Subscriptions per page.
    const PAGE: u32 = 1000;
    const EVERY: Duration = Duration::from_secs(1);
    /// Scans take at most one part in this many of the time, however many subscriptions wait.
    const COST: u32 = 10;
    /// A slow scan delays the next one by at most [`Self::COST`] times this.
    const LONGEST: Duration = Duration::from_millis(500);

    fn state(&self) -> MutexGuard<'_, FullScanState> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a scan that begins after now.
    fn want(&self) {
        self.state().wanted = true;
    }

    /// Where the next page begins; `None` if none is due.
    fn next_page(&self, now: Instant) -> Option<Option<SubscriptionId>> {
        let mut state = self.state();
        if state.under_way.is_none() {
            let since = state.began.map_or(Duration::MAX, |at| now.saturating_duration_since(at));
            // What was asked for does not wait, unless scans are long.
            let pause = state.took * Self::COST;
            let due = since >= if state.wanted { pause } else { pause.max(Self::EVERY) };
            if !due {
                return None;
            }
            state.wanted = false;
            state.began = Some(now);
            state.spent = Duration::ZERO;
            state.under_way = Some(None);
        }
        state.under_way
    }

    /// A page was read, which took `spent`.
    fn read(&self, resume_after: Option<SubscriptionId>, spent: Duration) {
        let mut state = self.state();
        state.spent += spent;
        state.under_way = resume_after.map(Some);
        if resume_after.is_none() {
            state.took = state.spent.min(Self::LONGEST);
        }
    }

    /// A page could not be read: the next one starts from the beginning.
    fn failed(&self) {
        let mut state = self.state();
        state.under_way = None;
        state.wanted = true;
    }

    /// How long until a scan that was asked for may begin; `None` if none was.
    fn until_wanted(&self, now: Instant) -> Option<Duration> {
        let state = self.state();
        let due = state.began.map(|at| at + state.took * Self::COST).filter(|_| state.wanted);
        due.map(|due| due.saturating_duration_since(now))
    }
}

impl Orchestrator {
    /// One pass: jobs for due sagas, then those sagas to InProgress. A crash in between leaves due sagas
    /// whose jobs exist; the next pass moves them.
    pub async fn schedule_once(&self) -> StoreResult<Progress> {
        self.schedule_and_move(Move::Now).await
    }

    /// The same as one of many passes: moves may be left for later, unless other copies find their sagas due meanwhile.
    pub(super) async fn schedule_repeatedly(&self) -> StoreResult<Progress> {
        self.schedule_and_move(if self.signals.copies() > 1 { Move::Now } else { Move::Later }).await
    }

    async fn schedule_and_move(&self, when: Move) -> StoreResult<Progress> {
        let done = self.schedule_pass(when).await;
        if done.is_err() {
            // What the pass was told of is still to be done.
            self.full_scan.want();
        }
        done
    }

    async fn schedule_pass(&self, when: Move) -> StoreResult<Progress> {
        let started = Instant::now();
        // Before the pass, so that what falls due or is announced while it runs is not forgotten.
        self.note_waiting(self.due.take_past(started));
        let told = self.signals.take_to_schedule();
        if !self.lanes.wait(told.subscriptions) {
            self.full_scan.want();
        }
        self.signals.set_busy(self.lanes.busy(started));
        if told.anywhere {
            self.full_scan.want();
        }
        let scanning = self.scan_page(started).await?;
        if self.lanes.wants_failing() {
            self.read_failing().await;
        }
        if self.lanes.wants_load(started) {
            self.read_load(started).await;
        }
        let (moved, scheduled) = tokio::join!(self.move_rest(), self.create_jobs(when, started));
        let scheduled = scheduled?;
        moved?;
        let now = Instant::now();
        self.signals.set_busy(self.lanes.busy(now));
        // Whoever took all that it was allotted may have more, and room for it.
        if scanning || !self.lanes.allot(1, now).is_empty() {
            return Ok(Progress::Worked);
        }
        self.signals.set_results_awaited(self.lanes.anybody_waits(now) || self.signals.crowd_waits());
        Ok(Progress::of_batch(scheduled, u32::MAX)
            .or_after(self.due.until_next(now))
            .or_after(self.store.until_move())
            .or_after(self.full_scan.until_wanted(now)))
    }

    /// These subscriptions may have due sagas. What there is no room to remember is found by a scan.
    fn note_waiting(&self, subscriptions: impl IntoIterator<Item = SubscriptionId>) {
        if !self.lanes.may_wait(subscriptions) {
            self.full_scan.want();
        }
    }

    /// Creates the jobs that are allotted now. Returns how many sagas were scheduled.
    async fn create_jobs(&self, when: Move, started: Instant) -> StoreResult<usize> {
        let allotted = self.lanes.allot(self.jobs.get(), Instant::now());
        if allotted.is_empty() {
            return Ok(0);
        }
        let created = || {
            self.signals.wake_worker_for(allotted.iter().map(|one| one.subscription_id));
            when
        };
        let scheduled = self.jobs.noting(self.store.create_jobs(&allotted, &created).await)?;
        let now = Instant::now();
        self.lanes.created(&allotted, &scheduled, now);
        // What a rate limit holds back goes on when it lets something through.
        self.due.add(scheduled.limited.iter().map(|one| (one.subscription_id, one.wait)), now);
        if !scheduled.sagas.is_empty() {
            self.metrics.pass(NAME, started.elapsed());
            self.account_scheduled(&scheduled.sagas);
        }
        Ok(scheduled.sagas.len())
    }

    /// Moves the sagas whose move was left for later, when it is time.
    async fn move_rest(&self) -> StoreResult<()> {
        if self.store.until_move() == Some(Duration::ZERO) {
            self.store.move_rest().await?;
        }
        Ok(())
    }

    /// Reads the next page of a scan, if one is due. Returns whether there are more.
    async fn scan_page(&self, now: Instant) -> StoreResult<bool> {
        let Some(after) = self.full_scan.next_page(now) else { return Ok(false) };
        let asked = Instant::now();
        let page =
            self.store.waiting(after, FullScan::PAGE).await.inspect_err(|_| self.full_scan.failed())?;
        self.full_scan.read(page.resume_after, asked.elapsed());
        self.note_waiting(page.subscriptions);
        Ok(page.resume_after.is_some())
    }

    /// Learns which endpoints were failing before this process began. If that cannot be read, they count as new until the
    /// next pass asks again.
    async fn read_failing(&self) {
        match self.store.failing(Lanes::MOST_FAILING).await {
            Ok(failing) => self.lanes.failing(&failing),
            Err(error) => {
                self.metrics.store_error(NAME, &error);
                tracing::warn!(%error, "cannot read which endpoints were failing; they may be tried as if they were new");
            }
        }
    }

    /// Learns what the workers can do and what is open. If that fails, this process goes on with what it knows.
    async fn read_load(&self, began: Instant) {
        self.lanes.load_begins();
        let mut load = self.store.load().await;
        if let Err(error) = &load {
            self.metrics.store_error(NAME, error);
            tracing::warn!(%error, "cannot read the load; endpoints may be given too many or too few jobs");
        }
        if let Ok(load) = &load {
            self.signals.set_copies(load.workers);
        }
        if let Ok(load) = &mut load
            && !self.signals.is_local(Stage::Worker)
        {
            // The components are in processes of their own: another one may schedule, too.
            load.workers = load.workers.max(2);
        }
        self.lanes.loaded(load.ok(), began, Instant::now());
    }

    fn account_scheduled(&self, sagas: &[ScheduledSaga]) {
        let created = sagas.iter().filter(|saga| saga.job_id.is_some()).count();
        self.metrics.scheduled(created as u64);
        if !self.log.wants(false) {
            return;
        }
        for saga in sagas {
            tracing::info!(
                target: DELIVERY_LOG_TARGET,
                stage = NAME,
                delivery_status = "InProgress",
                tenant = saga.trace.tenant.as_str(),
                correlation_id = saga.trace.correlation_id.as_str(),
                saga_id = saga.saga_id.0,
                job_id = saga.job_id.map(|id| id.0),
                subscription_id = saga.subscription_id.0,
                "scheduled"
            );
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
