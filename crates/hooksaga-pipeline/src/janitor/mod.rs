//! The janitor: removes finished history, so that the database may run for years.
//!
//! Promises: an event goes, with all that belongs to it, within minutes after its retention time is over, and never before
//! (`hooksaga_saga::may_go` decides, the schema guards); an event that must stay does not block others. It works in small
//! transactions with rests between them, so that live traffic hardly notices it. Any number of copies may run.
//!
//! It scans the events in the order of their creation, as they grow old enough. It leaves an event if
//! something of it is open, a dead letter is kept, or the database refuses. A second scan returns to those, from the
//! beginning: at most twice a minute, and less often if it takes long.
//!
//! With an archive, events are written there first, and are on disk before they are removed. A crash in between repeats their
//! lines and loses nothing. An event that changes in between stays, and is written again when it is removed.
//!
//! Not done here: deciding what may go.

mod archive;
mod line;

pub use archive::Archive;

use crate::{Driver, Metrics, Progress, Shutdown, Signals, driver::Rhythm, step_size::StepSize};
use hooksaga_saga::{EventId, Retention, Timestamp};
use hooksaga_store::{
    ArchivedDelivery, DeliveryPlace, JanitorStore, OldEvent, Removed, RemovedRecords, StoreError, StoreResult,
};
use line::Lines;
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

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

/// An event in the order of creation.
type EventPosition = (Timestamp, EventId);

/// How far the scans of the old events have come.
#[derive(Debug, Default)]
struct Scans {
    /// Everything up to here was looked at once.
    front: Option<EventPosition>,
    /// The scan of what was left; `None` while it rests.
    again: Option<SecondScan>,
    /// It does not begin before.
    rest_until: Option<Instant>,
    /// Events with very many deliveries, which go some at a time. They are archived.
    large: Vec<Large>,
    /// What was removed since it was last told.
    removed: Removed,
    /// How long this step has rested, but for its part of a large event.
    rested: Duration,
    /// How long that part took, with its rest.
    large_took: Duration,
}

impl Scans {
    /// A large event that may be gone on with.
    fn due(&self, now: Instant) -> Option<Large> {
        self.large.iter().rev().find(|large| large.not_before.is_none_or(|at| at <= now)).copied()
    }

    fn is_large(&self, id: EventId) -> bool {
        self.large.iter().any(|large| large.id == id)
    }
}

/// An event that goes some deliveries at a time.
#[derive(Clone, Copy, Debug)]
struct Large {
    id: EventId,
    /// When it was found, by the database's clock.
    as_of: Timestamp,
    /// Everything up to here is gone.
    after: Option<DeliveryPlace>,
    /// After a failure it is left alone for a while.
    not_before: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct SecondScan {
    after: Option<EventPosition>,
    began: Instant,
}

impl Janitor {
    const NAME: &str = "janitor";
    /// How often it looks what has grown old, and for what it left, at most.
    const EVERY: Duration = Duration::from_secs(30);
    /// Looking for what it left takes at most one part in this many of the time.
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
    /// Rests are as long as what they follow, within this.
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
        driver
            .run(|| async {
                let began = Instant::now();
                let progress = self.run_once().await.inspect_err(|_| self.step_size.failed())?;
                if progress == Progress::Worked {
                    // Half of the time belongs to others, where other background work leaves them more: this has to keep
                    // up with what comes in. Some of the rest came after each removal. It is over in a moment when the
                    // order to stop comes.
                    let (rested, large_took) = {
                        let scans = self.scans();
                        (scans.rested, scans.large_took)
                    };
                    let took = began.elapsed().saturating_sub(rested).saturating_sub(large_took);
                    let rest = self.step_size.rest_after(took) / 2;
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
                let large = self.remove_large(retention).await?;
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
        let after = self.scans().front;
        let (last, is_end) = self.look(retention, after).await?;
        let mut scans = self.scans();
        scans.front = last.or(after);
        Ok(!is_end || scans.due(Instant::now()).is_some())
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
        let again = again.unwrap_or(SecondScan { after: None, began: now });
        let (last, is_end) = self.look(retention, again.after).await?;
        let mut scans = self.scans();
        if is_end || last >= front {
            let now = Instant::now();
            let took = now.saturating_duration_since(again.began);
            scans.again = None;
            scans.rest_until = Some(now + Self::EVERY.max(took * Self::PART));
            return Ok(scans.due(now).is_some());
        }
        scans.again = Some(SecondScan { after: last, ..again });
        Ok(true)
    }

    /// Looks at the old events behind a place, and removes those that may go. Returns the last one, and whether there were
    /// no more. Events that cannot be removed are left, and hold up nothing behind them.
    async fn look(
        &self,
        retention: &Retention,
        after: Option<EventPosition>,
    ) -> StoreResult<(Option<EventPosition>, bool)> {
        let size = self.step_size.rows();
        let found = self.store.old_events(retention, after, size).await?;
        let going: Vec<OldEvent> = {
            // What goes in parts is in the archive already.
            let scans = self.scans();
            found.may_go.into_iter().filter(|event| !scans.is_large(event.id)).collect()
        };
        for batch in batches(&going) {
            if self.stop.get().is_some_and(Shutdown::is_triggered) {
                return Ok((after, false));
            }
            match self.take(batch, retention, found.as_of).await {
                Err(error) if error.is_of_rows() => self.left(batch, &error),
                done => done?,
            }
        }
        Ok((found.last, found.is_end))
    }

    /// Archives and removes a batch. Where that fails it goes by halves, so that one event keeps no other.
    async fn take(&self, batch: &[OldEvent], retention: &Retention, as_of: Timestamp) -> StoreResult<()> {
        let (mut parts, mut failures, mut result) = (vec![(batch, false)], 0, Ok(()));
        while let Some((part, mut is_archived)) = parts.pop() {
            let done = self.take_part(part, &mut is_archived, retention, as_of).await;
            let Err(error) = done else { continue };
            // Those that took long are fewer.
            failures += if matches!(error, StoreError::Refused(_) | StoreError::Other(_)) { 1 } else { 4 };
            if !error.is_of_rows() || failures > Self::MOST_FAILURES {
                return Err(error);
            }
            if part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([(second, is_archived), (first, is_archived)]);
            } else {
                result = Err(error);
            }
        }
        result
    }

    async fn take_part(
        &self,
        part: &[OldEvent],
        is_archived: &mut bool,
        retention: &Retention,
        as_of: Timestamp,
    ) -> StoreResult<()> {
        if let Some(archive) = &self.archive
            && !*is_archived
        {
            self.write_to(archive, part).await?;
            *is_archived = true;
        }
        if let [event] = part
            && event.rows > Self::MOST_ROWS
        {
            self.scans().large.push(Large { id: event.id, as_of, after: None, not_before: None });
            return Ok(());
        }
        let ids: Vec<EventId> = part.iter().map(|event| event.id).collect();
        self.remove(&ids, retention, as_of).await
    }

    /// Removes events in one transaction, and rests.
    async fn remove(&self, ids: &[EventId], retention: &Retention, as_of: Timestamp) -> StoreResult<()> {
        let began = Instant::now();
        let result = self.store.remove(ids, retention, as_of).await;
        if let Ok(removed) = &result {
            self.account(*removed);
        }
        self.rest(began.elapsed()).await;
        result.map(|_| ())
    }

    /// Rests after a transaction for as long as that took, within bounds, unless it is to stop.
    async fn rest(&self, took: Duration) {
        let began = Instant::now();
        let rest = tokio::time::sleep(took.clamp(Self::SHORTEST_REST, Self::LONGEST_REST));
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

    /// Writes a batch to the archive; it is on disk when this returns.
    async fn write_to(&self, archive: &Archive, batch: &[OldEvent]) -> StoreResult<()> {
        let failed = |error: io::Error| {
            StoreError::Setup(format!(
                "cannot write to retention.archive ({}): {error}; nothing is removed until it can be written",
                archive.folder().display()
            ))
        };
        archive.begin().await.map_err(failed)?;
        let ids: Vec<EventId> = batch.iter().map(|event| event.id).collect();
        let events = self.store.archived_events(&ids).await?;
        let mut lines = Lines::default();
        if let [event] = events.as_slice() {
            // As many deliveries as it may have: some at a time.
            lines.begin(event);
            let (mut after, mut is_end) = (None, false);
            while !is_end {
                let page = self.store.archived_page(event.id, after, Self::PAGE).await?;
                is_end = page.len() < Self::PAGE as usize;
                after = page.last().map(ArchivedDelivery::place).or(after);
                page.iter().for_each(|delivery| lines.delivery(delivery));
                if lines.len() > Self::MOST_TEXT {
                    archive.append(lines.take()).await.map_err(failed)?;
                }
            }
            lines.end();
        } else {
            let mut deliveries: HashMap<EventId, Vec<ArchivedDelivery>> = HashMap::with_capacity(ids.len());
            for delivery in self.store.archived_deliveries(&ids).await? {
                deliveries.entry(delivery.event_id).or_default().push(delivery);
            }
            for event in &events {
                lines.begin(event);
                let own = deliveries.remove(&event.id).unwrap_or_default();
                own.iter().for_each(|delivery| lines.delivery(delivery));
                lines.end();
            }
        }
        archive.append(lines.take()).await.map_err(failed)?;
        archive.commit().await.map_err(failed)
    }

    /// Removes some deliveries of an event that has very many. Returns whether there was any.
    async fn remove_large(&self, retention: &Retention) -> StoreResult<bool> {
        let began = Instant::now();
        let Some(Large { id, as_of, after, .. }) = self.scans().due(began) else { return Ok(false) };
        let result = self.store.remove_part(id, retention, as_of, after, Self::MOST_SAGAS).await;
        if let Ok(part) = &result {
            self.account(part.removed);
        }
        self.rest(began.elapsed()).await;
        let mut scans = self.scans();
        // It has rested for this part.
        (scans.large_took, scans.rested) = (began.elapsed(), Duration::ZERO);
        match result {
            Ok(part) => {
                if part.resume_after.is_none() {
                    scans.large.retain(|large| large.id != id);
                }
                for large in scans.large.iter_mut().filter(|large| large.id == id) {
                    large.after = part.resume_after;
                }
            }
            Err(error) if error.is_of_rows() => {
                self.metrics.store_error(Self::NAME, &error);
                tracing::warn!(
                    component = Self::NAME,
                    %error,
                    event_id = id.0,
                    "an event with very many deliveries cannot be removed; trying again later"
                );
                let not_before = Some(Instant::now() + Self::EVERY);
                for large in scans.large.iter_mut().filter(|large| large.id == id) {
                    large.not_before = not_before;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(true)
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

/// Cuts events into batches of bounded rows and bytes; a larger event is a batch of its own.
fn batches(events: &[OldEvent]) -> Vec<&[OldEvent]> {
    const MOST_BYTES: u64 = 8 << 20;
    let mut batches = Vec::new();
    let (mut start, mut rows, mut bytes) = (0, 0_u32, 0_u64);
    for (place, event) in events.iter().enumerate() {
        rows = rows.saturating_add(event.rows);
        bytes = bytes.saturating_add(event.payload_bytes);
        if place > start && (rows > Janitor::MOST_ROWS || bytes > MOST_BYTES) {
            batches.push(&events[start..place]);
            (start, rows, bytes) = (place, event.rows, event.payload_bytes);
        }
    }
    if start < events.len() {
        batches.push(&events[start..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: i64, rows: u32, payload_bytes: u64) -> OldEvent {
        OldEvent { id: EventId(id), rows, payload_bytes }
    }

    fn ids(batches: &[&[OldEvent]]) -> Vec<Vec<i64>> {
        batches.iter().map(|batch| batch.iter().map(|event| event.id.0).collect()).collect()
    }

    #[test]
    fn batches_are_bounded_by_rows_and_bytes() {
        let small: Vec<_> = (1..=5).map(|id| event(id, 3, 10)).collect();
        assert_eq!(ids(&batches(&small)), [vec![1, 2, 3, 4, 5]]);
        let rows =
            [event(1, 1500, 1), event(2, 600, 1), event(3, 1400, 1), event(4, 100_000, 1), event(5, 3, 1)];
        assert_eq!(ids(&batches(&rows)), [vec![1], vec![2, 3], vec![4], vec![5]]);
        let bytes = [event(1, 1, 6 << 20), event(2, 1, 6 << 20), event(3, 1, 1)];
        assert_eq!(ids(&batches(&bytes)), [vec![1], vec![2, 3]]);
        assert!(batches(&[]).is_empty());
    }
}
