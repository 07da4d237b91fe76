//! The janitor: removes finished history, so that the database may run for years.
//!
//! Promises: an event goes, with all that belongs to it, within minutes after its retention time is over, and never before
//! (`hooksaga_saga::may_go` decides, the schema guards); an event that must stay does not block others. It works in small
//! transactions with rests between them, so that live traffic hardly notices it. While it falls behind, it rests less. Any
//! number of copies may run.
//!
//! It scans the events in the order of their creation, as they grow old enough. It leaves an event if
//! something of it is open, a dead letter is kept, or the database refuses. A second scan returns to those, from the
//! beginning: at most twice a minute, and less often if it takes long.
//!
//! With an archive, events are written there first, and are on disk before they are removed. A crash in between repeats their
//! lines and loses nothing. An event that changes in between stays, and is written again when it is removed. A failed
//! removal alone does not cause a second line.
//!
//! Not done here: deciding what may go.

mod archive;
mod archive_line;
mod batches;
mod large_events;
mod pace;
mod scans;
#[cfg(test)]
mod tests;
mod unremovable;

pub use archive::Archive;

use crate::{Driver, Metrics, Progress, Shutdown, Signals, driver::Rhythm, step_size::StepSize};
use archive_line::ArchiveLines;
use batches::batches;
use hooksaga_saga::{EventId, Expiry, Retention};
use hooksaga_store::{
    ArchivedDelivery, EventPart, EventPlace, JanitorStore, OldEvent, Removed, RemovedRecords, ScanStep,
    StoreError, StoreResult,
};
use large_events::Large;
use scans::{Scanned, Scans, SecondScan};
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use unremovable::PendingRemovals;

pub struct Janitor {
    store: Arc<dyn JanitorStore>,
    /// `None` means that history stays for good.
    retention: Option<Retention>,
    /// What is removed is written here first.
    archive: Option<Archive>,
    step_size: StepSize,
    scans: Mutex<Scans>,
    /// It ends the rests.
    stop: OnceLock<Shutdown>,
    signals: Signals,
    metrics: Arc<Metrics>,
}

impl Janitor {
    const NAME: &str = "janitor";
    /// Shortest time between two scans for old events.
    const EVERY: Duration = Duration::from_secs(30);
    /// The second scan, for events that had to stay, may use 1/`PART` of the time.
    const PART: u32 = 10;
    /// Rows that go in one transaction.
    const MOST_ROWS: u32 = 2000;
    /// Sagas of a single event that go in one transaction.
    const MOST_SAGAS: u32 = 500;
    /// Deliveries that are read for the archive at a time, and the text that is held at most.
    const PAGE: u32 = 500;
    const MOST_TEXT: usize = 4 << 20;
    /// Counts and records per transaction.
    const RECORDS: u32 = 500;
    /// Failures after which the rest of a batch is left: enough to find one bad event in it by halves.
    const MOST_FAILURES: u32 = 16;
    /// Rests are as long as what they follow, within this, and shorter while it falls behind.
    const SHORTEST_REST: Duration = Duration::from_millis(1);
    const LONGEST_REST: Duration = Duration::from_millis(500);

    pub fn new(
        store: Arc<dyn JanitorStore>,
        retention: Option<Retention>,
        signals: Signals,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (step_size, scans, stop) = (StepSize::new(), Mutex::default(), OnceLock::new());
        Self { store, retention, archive: None, step_size, scans, stop, signals, metrics }
    }

    /// Writes what it removes to this archive first.
    #[must_use]
    pub fn archive_to(self, archive: Option<Archive>) -> Self {
        Self { archive, ..self }
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::Every(Self::EVERY),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        self.stop.get_or_init(|| shutdown.clone());
        if self.retention.is_some() {
            self.metrics.history_overdue(Duration::ZERO);
        }
        driver
            .run(|| async {
                let began = Instant::now();
                let progress = self.run_once().await.inspect_err(|error| self.step_size.failed(error))?;
                if progress == Progress::Worked {
                    // Half of the time belongs to others, where other background work leaves them more: this has to keep
                    // up with what comes in. Some of the rest came after each removal. It is over in a moment when the
                    // order to stop comes.
                    let (rested, large_took, pace) = {
                        let scans = self.scans();
                        (scans.rested, scans.large_took, scans.pace.rest())
                    };
                    let took = began.elapsed().saturating_sub(rested).saturating_sub(large_took);
                    let rest = pace.of(self.step_size.rest_after(took) / 2);
                    tokio::time::sleep(rest.saturating_sub(rested)).await;
                }
                Ok(progress)
            })
            .await;
    }

    /// One step: of a large event and of what has grown old, else of what was left.
    pub async fn run_once(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        {
            let mut scans = self.scans();
            (scans.rested, scans.large_took) = (Duration::ZERO, Duration::ZERO);
        }
        let mut more = match &self.retention {
            Some(retention) => {
                // Both: an event that takes long holds up no other.
                let large = self.remove_large().await?;
                let on = self.scan_on(retention).await?;
                large || on || self.scan_again(retention, started).await?
            }
            None => false,
        };
        if !more {
            more = self.store.roll_up_counts(Self::RECORDS).await?;
            let kept_for = self.retention.map(|retention| retention.finished);
            let removed = self.store.remove_records(kept_for, Self::RECORDS).await?;
            self.metrics.records_removed(&removed);
            more |= is_full(&removed, Self::RECORDS.into());
        }
        if more {
            self.metrics.pass(Self::NAME, started.elapsed());
            return Ok(Progress::Worked);
        }
        self.tell();
        let rest = self.scans().rest_until.map(|until| until.saturating_duration_since(started));
        Ok(Progress::IDLE.or_after(rest))
    }

    fn scans(&self) -> MutexGuard<'_, Scans> {
        self.scans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at events that have grown old. Returns whether there are more.
    async fn scan_on(&self, retention: &Retention) -> StoreResult<bool> {
        let after = {
            let scans = self.scans();
            if scans.pending.is_full() {
                // Some of it has to go first.
                return Ok(scans.due(Instant::now()).is_some());
            }
            scans.front
        };
        let Scanned { last, is_end, overdue } = self.scan(retention, after).await?;
        self.metrics.history_overdue(overdue);
        let (mut scans, now) = (self.scans(), Instant::now());
        scans.pace.see(overdue, now);
        scans.front = last.or(after);
        Ok(!is_end || scans.due(now).is_some())
    }

    /// Looks at events that were left, unless it is time to rest from that. Returns whether there are more.
    async fn scan_again(&self, retention: &Retention, now: Instant) -> StoreResult<bool> {
        let (front, again, rest_until) = {
            let scans = self.scans();
            (scans.front, scans.again, scans.rest_until)
        };
        // The very first scan has just looked at everything.
        let Some(rest_until) = rest_until else {
            self.scans().rest_until = Some(now + Self::EVERY);
            return Ok(false);
        };
        if again.is_none() && now < rest_until {
            return Ok(false);
        }
        let again = again.unwrap_or_else(|| self.begin_again(now));
        let Scanned { last, is_end, .. } = self.scan(retention, again.after).await?;
        let mut scans = self.scans();
        if is_end || last >= front {
            let now = Instant::now();
            let took = now.saturating_duration_since(again.began);
            scans.again = None;
            scans.pending.end_round();
            scans.rest_until = Some(now + Self::EVERY.max(took * Self::PART));
            return Ok(scans.due(now).is_some());
        }
        scans.again = Some(SecondScan { after: last, ..again });
        Ok(true)
    }

    fn begin_again(&self, now: Instant) -> SecondScan {
        let mut scans = self.scans();
        scans.pending.begin_round();
        if scans.pending.is_full() {
            tracing::warn!(
                component = Self::NAME,
                events = PendingRemovals::MOST,
                "too many archived events cannot be removed; archiving is paused until some can"
            );
        }
        SecondScan { after: None, began: now }
    }

    /// Scans the old events behind a place, and removes those that may go. Events that cannot be removed are left, and hold
    /// up nothing behind them.
    async fn scan(&self, retention: &Retention, after: Option<EventPlace>) -> StoreResult<Scanned> {
        let size = self.step_size.rows();
        let found = self.store.old_events(retention, ScanStep { after, limit: size }).await?;
        let scanned = Scanned::of(&found, retention);
        if let Some(archive) = &self.archive
            && !self.is_none_pending()
        {
            let file = archive.begin().await.map_err(|error| not_written(archive, &error))?;
            self.scans().pending.in_file(file);
        }
        for (events, archived_as_of) in self.sorted(found.may_go) {
            for batch in batches(&events) {
                if self.stop.get().is_some_and(Shutdown::is_triggered) {
                    return Ok(Scanned { last: after, is_end: false, ..scanned });
                }
                if self.archive.is_some() && archived_as_of.is_none() && self.scans().pending.is_full() {
                    continue;
                }
                let expiry = archived_as_of.unwrap_or(retention.as_of(found.as_of));
                match self.take(batch, expiry).await {
                    Err(error) if error.is_of_rows() => self.left(batch, &error),
                    done => done?,
                }
            }
        }
        Ok(scanned)
    }

    fn is_none_pending(&self) -> bool {
        self.scans().pending.is_empty()
    }

    /// Events in their order, by as of when they were found if they are in the archive. What goes in parts is left out: it is
    /// there already.
    fn sorted(&self, found: Vec<OldEvent>) -> Vec<(Vec<OldEvent>, Option<Expiry>)> {
        let mut scans = self.scans();
        let mut sorted: Vec<(Vec<OldEvent>, Option<Expiry>)> = Vec::new();
        for event in found {
            if scans.is_large(event.id) {
                continue;
            }
            let archived_as_of = scans.pending.see(event.id);
            match sorted.last_mut() {
                Some((events, as_of)) if *as_of == archived_as_of => events.push(event),
                _ => sorted.push((vec![event], archived_as_of)),
            }
        }
        sorted
    }

    /// Archives and removes a batch. If that fails, the batch is split in halves, so that one bad event does not block
    /// the others.
    async fn take(&self, batch: &[OldEvent], expiry: Expiry) -> StoreResult<()> {
        let (mut parts, mut failures, mut result) = (vec![batch], 0, Ok(()));
        while let Some(part) = parts.pop() {
            let done = self.take_part(part, expiry).await;
            let Err(error) = done else { continue };
            // Those that took long are fewer.
            failures += if matches!(error, StoreError::Refused(_) | StoreError::Other(_)) { 1 } else { 4 };
            if !error.is_of_rows() || failures > Self::MOST_FAILURES {
                return Err(error);
            }
            if part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            } else {
                result = Err(error);
            }
        }
        result
    }

    /// Either all of a part is in the archive, or nothing.
    async fn take_part(&self, part: &[OldEvent], expiry: Expiry) -> StoreResult<()> {
        let ids: Vec<EventId> = part.iter().map(|event| event.id).collect();
        let is_archived = ids.first().is_some_and(|first| self.scans().pending.see(*first).is_some());
        if let Some(archive) = &self.archive
            && !is_archived
        {
            let file = self.write_to(archive, &ids).await?;
            self.scans().pending.add(part, expiry, file);
        }
        if let [event] = part
            && event.rows > Self::MOST_ROWS
        {
            let mut scans = self.scans();
            scans.large.push(Large { id: event.id, expiry, after: None, not_before: None });
            scans.pending.forget(&ids);
            return Ok(());
        }
        self.remove(&ids, expiry).await?;
        self.scans().pending.forget(&ids);
        Ok(())
    }

    /// Removes events in one transaction, and rests.
    async fn remove(&self, ids: &[EventId], expiry: Expiry) -> StoreResult<()> {
        let began = Instant::now();
        let result = self.store.remove(ids, expiry).await;
        if let Ok(removed) = &result {
            self.account(*removed);
        }
        self.rest(began.elapsed()).await;
        result.map(|_| ())
    }

    /// Rests after a transaction for as long as that took or less, within bounds, unless it is to stop.
    async fn rest(&self, took: Duration) {
        let began = Instant::now();
        let rest = self.scans().pace.rest().of(took.clamp(Self::SHORTEST_REST, Self::LONGEST_REST));
        let rest = tokio::time::sleep(rest);
        match self.stop.get() {
            Some(stop) => {
                tokio::select! {
                    () = stop.wait() => {}
                    () = rest => {}
                }
            }
            None => rest.await,
        }
        self.scans().rested += began.elapsed();
    }

    /// Takes note that some of these events could not be removed. The second scan comes back to them.
    fn left(&self, batch: &[OldEvent], error: &StoreError) {
        self.metrics.store_error(Self::NAME, error);
        tracing::warn!(
            component = Self::NAME,
            %error,
            events = batch.len(),
            first_id = batch.first().map(|event| event.id.0),
            last_id = batch.last().map(|event| event.id.0),
            "some finished history cannot be removed; continuing with later events; will retry"
        );
    }

    fn account(&self, removed: Removed) {
        self.metrics.history_removed(&removed);
        add(&mut self.scans().removed, removed);
    }

    /// Writes a batch to the archive; it is on disk when this returns. Returns the number of its file.
    ///
    /// Another janitor may remove some of it meanwhile, and has archived that itself. An event that is still there after
    /// its deliveries were read had all of them then; of others there is no line.
    async fn write_to(&self, archive: &Archive, ids: &[EventId]) -> StoreResult<u64> {
        let failed = |error: io::Error| not_written(archive, &error);
        let file = archive.begin().await.map_err(failed)?;
        let mut lines = ArchiveLines::default();
        if let [id] = ids {
            let Some(event) = self.store.archived_events(ids).await?.pop() else { return Ok(file) };
            // As many deliveries as it may have: some at a time.
            lines.begin(&event);
            let (mut after, mut is_end) = (None, false);
            while !is_end {
                let page =
                    self.store.archived_page(EventPart { event: *id, after, limit: Self::PAGE }).await?;
                is_end = page.len() < Self::PAGE as usize;
                after = page.last().map(ArchivedDelivery::place).or(after);
                page.iter().for_each(|delivery| lines.delivery(delivery));
                if lines.len() > Self::MOST_TEXT {
                    archive.append(lines.take()).await.map_err(failed)?;
                }
            }
            lines.end();
            if self.store.archived_events(ids).await?.is_empty() {
                // Takes back what was appended.
                return archive.begin().await.map_err(failed);
            }
        } else {
            let mut deliveries: HashMap<EventId, Vec<ArchivedDelivery>> = HashMap::with_capacity(ids.len());
            for delivery in self.store.archived_deliveries(ids).await? {
                deliveries.entry(delivery.event_id).or_default().push(delivery);
            }
            for event in self.store.archived_events(ids).await? {
                lines.begin(&event);
                let own = deliveries.remove(&event.id).unwrap_or_default();
                own.iter().for_each(|delivery| lines.delivery(delivery));
                lines.end();
            }
        }
        archive.append(lines.take()).await.map_err(failed)?;
        archive.commit().await.map_err(failed)
    }

    /// Says what was removed.
    fn tell(&self) {
        let removed = std::mem::take(&mut self.scans().removed);
        if removed.events > 0 {
            tracing::info!(
                component = Self::NAME,
                events = removed.events,
                deliveries = removed.sagas,
                attempts = removed.jobs,
                dead_letters = removed.dead_letters,
                "finished history removed"
            );
        }
    }
}

fn not_written(archive: &Archive, error: &io::Error) -> StoreError {
    StoreError::Setup(format!(
        "cannot write to retention.archive ({}): {error}; nothing is removed until it can be written",
        archive.folder().display()
    ))
}

/// Whether one of these is as many as were asked for.
fn is_full(removed: &RemovedRecords, limit: u64) -> bool {
    [removed.redrives, removed.audit_records, removed.hours, removed.keys]
        .into_iter()
        .any(|rows| rows >= limit)
}

fn add(sum: &mut Removed, more: Removed) {
    sum.events += more.events;
    sum.sagas += more.sagas;
    sum.jobs += more.jobs;
    sum.dead_letters += more.dead_letters;
}
