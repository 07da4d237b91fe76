//! Ingestion by group commit.
//!
//! Submits that arrive while a commit runs form the next batch; when no commit runs, a submit is committed at
//! once. So a single caller waits for one commit, and a thousand callers share one. Between the commits of many callers
//! it rests for a moment, see [`crate::batch_pauses`].
//!
//! Promises: a submit returns only after its events are durable. The events of a submit stay together in one
//! transaction. The queue is bounded in events and bytes; beyond that a submit is refused at once with
//! [`IngestError::Overloaded`]. An error that one submit causes fails that submit only, and a submit whose
//! `external_id` another open transaction holds delays no other (`held_ids`). If a
//! caller is dropped before its events are being written, they are left out.
//!
//! Not done here: validating events (the caller has), routing them.

mod held_ids;
mod queue;
#[cfg(test)]
mod tests;

use crate::{DELIVERY_LOG_TARGET, DeliveryLog, IngestResult, Metrics, Signals, batch_pauses::rest_after};
use held_ids::{HeldIds, store_apart};
use hooksaga_store::{Appended, IngestStore, NewEvent, Stage, StoreError, StoreResult};
use queue::{Queue, Submit};
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::Instant};

/// Why events were not stored.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// Too much waits already: try again a little later.
    #[error("more events are waiting to be stored than this server takes on; try again later")]
    Overloaded,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How much ingestion takes on.
#[derive(Clone, Copy, Debug)]
pub struct IngestLimits {
    /// Events that may wait for their commit.
    pub queued_events: usize,
    /// Bytes that may wait; a single submit larger than this is taken when nothing else waits.
    pub queued_bytes: usize,
    /// Events in one commit; a single submit may have more.
    pub batch_events: usize,
    /// Bytes in one commit; a single submit may have more.
    pub batch_bytes: usize,
    /// Commits that may run at the same time.
    pub commits_in_flight: usize,
}

impl Default for IngestLimits {
    fn default() -> Self {
        Self {
            queued_events: 16_384,
            queued_bytes: 64 << 20,
            batch_events: 1000,
            batch_bytes: 4 << 20,
            commits_in_flight: 2,
        }
    }
}

/// A handle on ingestion. Clones share it.
#[derive(Clone, Debug)]
pub struct Ingest(Arc<Handles>);

/// Closes the queue when the last handle is gone.
#[derive(Debug)]
struct Handles {
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Ingest {
    /// A handle, and the task behind it, which the caller runs.
    pub fn start(
        store: Arc<dyn IngestStore>,
        signals: Signals,
        metrics: Arc<Metrics>,
        limits: IngestLimits,
        log: DeliveryLog,
    ) -> (Self, IngestTask) {
        let queue = Arc::new(Queue::new(limits));
        let writer = Writer {
            store,
            signals,
            metrics: metrics.clone(),
            log,
            queue: queue.clone(),
            held: HeldIds::default(),
        };
        let task = IngestTask { writer: Arc::new(writer), commits_in_flight: limits.commits_in_flight };
        (Self(Arc::new(Handles { queue, metrics })), task)
    }

    /// Stores events; the results are in their order and durable.
    pub async fn submit(&self, events: Vec<NewEvent>) -> Result<Vec<Appended>, IngestError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let count = events.len() as u64;
        let (submit, answer) = Submit::new(events);
        let result = match self.0.queue.push(submit) {
            Ok(()) => answer.await.unwrap_or_else(|_| Err(stopped())),
            Err(error) => Err(error),
        };
        match &result {
            Err(IngestError::Overloaded) => self.0.metrics.ingested(IngestResult::Overloaded, count),
            Err(IngestError::Store(_)) => self.0.metrics.ingested(IngestResult::Failed, count),
            Ok(_) => {}
        }
        result
    }
}

fn stopped() -> IngestError {
    StoreError::Unavailable("ingestion has stopped".to_owned()).into()
}

/// Commits what is submitted.
pub struct IngestTask {
    writer: Arc<Writer>,
    commits_in_flight: usize,
}

impl IngestTask {
    /// Runs until every [`Ingest`] is gone and everything submitted has its result.
    pub async fn run(self) {
        let mut writers = JoinSet::new();
        for place in 0..self.commits_in_flight.max(1) {
            let writer = self.writer.clone();
            writers.spawn(async move {
                let mut apart = JoinSet::new();
                let mut next = writer.next_batch(place).await;
                while let Some(batch) = next {
                    let (began, events) = (Instant::now(), batch.iter().map(Submit::len).sum());
                    writer.commit(batch, &mut apart).await;
                    // A rest is over when as many wait as were committed: longer would only let the machine idle. Nor is it
                    // longer beside other copies: clients wait for these commits.
                    next = tokio::select! {
                        batch = writer.queue.next_batch(writer.enough(place).max(events)) => batch,
                        () = rest_after(events, began, 1) => writer.next_batch(place).await,
                    };
                }
                apart.join_all().await;
            });
        }
        writers.join_all().await;
    }
}

impl Drop for IngestTask {
    /// Callers that still wait, or come later, get an error instead of waiting forever.
    fn drop(&mut self) {
        self.writer.queue.abandon();
    }
}

struct Writer {
    store: Arc<dyn IngestStore>,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
    queue: Arc<Queue>,
    held: HeldIds,
}

impl Writer {
    const NAME: &str = "ingest";
    /// Beside other copies a second commit at a time is made for this many events.
    const CROWD: usize = 64;
    /// It is also made for what has waited this long: the first commit may be slow.
    const SLOW: Duration = Duration::from_millis(50);

    /// How many events the writer at this place waits for. Several copies commit at the same time as it is: with one commit
    /// at a time in each, batches stay as large as those of a single copy.
    fn enough(&self, place: usize) -> usize {
        if place > 0 && self.signals.copies() > 1 { Self::CROWD } else { 1 }
    }

    async fn next_batch(&self, place: usize) -> Option<Vec<Submit>> {
        tokio::select! {
            batch = self.queue.next_batch(self.enough(place)) => return batch,
            () = tokio::time::sleep(Self::SLOW), if self.enough(place) > 1 => {}
        }
        self.queue.next_batch(1).await
    }

    async fn commit(self: &Arc<Self>, batch: Vec<Submit>, apart: &mut JoinSet<()>) {
        // What was held a moment ago does not come into a batch.
        let (held, mut batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|submit| self.held.has(submit.events()));
        store_apart(self, held.into_iter().map(Submit::split), apart).await;
        if batch.is_empty() {
            return;
        }
        let mut events = Vec::with_capacity(batch.iter().map(Submit::len).sum());
        let lengths: Vec<_> = batch.iter_mut().map(|submit| submit.move_events_to(&mut events)).collect();

        match self.append(&events).await {
            Ok(results) => {
                let mut results = results.into_iter();
                for (submit, length) in batch.into_iter().zip(lengths) {
                    submit.answer(Ok(results.by_ref().take(length).collect()));
                }
            }
            // One of them is held up: each alone, and nobody waits for it.
            Err(StoreError::Contended(_)) => {
                let mut events = events.into_iter();
                let alone = batch.into_iter().zip(lengths);
                let alone = alone.map(|(submit, length)| (submit, events.by_ref().take(length).collect()));
                store_apart(self, alone, apart).await;
            }
            // One of them is to blame: each alone, so that the others are stored.
            Err(error) if !error.is_transient() && batch.len() > 1 => {
                let mut rest = events.as_slice();
                for (submit, length) in batch.into_iter().zip(lengths) {
                    let (own, others) = rest.split_at(length);
                    submit.answer(self.append(own).await);
                    rest = others;
                }
            }
            Err(error) => batch.into_iter().for_each(|submit| submit.answer(Err(error.clone()))),
        }
    }

    /// One transaction, with everything that follows from it.
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
        let started = Instant::now();
        let results = self
            .store
            .append(events)
            .await
            .inspect_err(|error| self.metrics.store_error(Self::NAME, error))?;
        if results.len() != events.len() {
            let text = format!("the store returned {} results for {} events", results.len(), events.len());
            return Err(StoreError::Other(text));
        }
        // Also after a duplicate: perhaps the commit that stored it was never announced.
        if results.iter().any(|result| !matches!(result, Appended::Conflict { .. })) {
            self.signals.wake(Stage::Router);
        }
        self.metrics.ingest_commit(started.elapsed(), events.len());
        self.account(events, &results);
        Ok(results)
    }

    fn account(&self, events: &[NewEvent], results: &[Appended]) {
        let (mut created, mut duplicate, mut conflict) = (0, 0, 0);
        let logged = self.log.wants(false);
        for (event, result) in events.iter().zip(results) {
            let (counter, status, id, what) = match result {
                Appended::Created(head) => (&mut created, "Ingested", head.id, "event accepted"),
                Appended::Duplicate(head) => {
                    (&mut duplicate, "Duplicate", head.id, "event accepted before: the same external_id")
                }
                Appended::Conflict { existing } => {
                    (&mut conflict, "Conflict", *existing, "event refused: another one has its external_id")
                }
            };
            *counter += 1;
            if logged {
                tracing::info!(
                    target: DELIVERY_LOG_TARGET,
                    stage = "ingest",
                    delivery_status = status,
                    tenant = event.tenant.as_str(),
                    correlation_id = event.correlation_id.as_str(),
                    event_id = id.0,
                    event_type = %event.event_type,
                    "{what}"
                );
            }
        }
        self.metrics.ingested(IngestResult::Created, created);
        self.metrics.ingested(IngestResult::Duplicate, duplicate);
        self.metrics.ingested(IngestResult::Conflict, conflict);
    }
}
