//! What waits for its commit: bounded, first come first served.

use super::{IngestError, IngestLimits, stopped};
use hooksaga_store::{Appended, NewEvent, StoreResult};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, oneshot};

type AppendResult = Result<Vec<Appended>, IngestError>;

/// Events that one caller wants stored together.
#[derive(Debug)]
pub(super) struct Submit {
    events: Vec<NewEvent>,
    bytes: usize,
    reply: oneshot::Sender<AppendResult>,
}

impl Submit {
    pub(super) fn new(events: Vec<NewEvent>) -> (Self, oneshot::Receiver<AppendResult>) {
        let (reply, answer) = oneshot::channel();
        let bytes = events.iter().map(size).sum();
        (Self { events, bytes, reply }, answer)
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn events(&self) -> &[NewEvent] {
        &self.events
    }

    /// What is still to be told its result, and its events.
    pub(super) fn split(mut self) -> (Self, Vec<NewEvent>) {
        let events = std::mem::take(&mut self.events);
        (self, events)
    }

    /// Moves its events to the end of a batch; returns how many.
    pub(super) fn move_events_to(&mut self, batch: &mut Vec<NewEvent>) -> usize {
        let length = self.events.len();
        batch.append(&mut self.events);
        length
    }

    pub(super) fn answer(self, answer: StoreResult<Vec<Appended>>) {
        // Whoever asked may be gone; the events are stored all the same.
        let _ = self.reply.send(answer.map_err(IngestError::Store));
    }
}

/// What an event takes up in memory, about.
fn size(event: &NewEvent) -> usize {
    const BOOKKEEPING: usize = 256;
    let external_id = event.external_id.as_ref().map_or(0, |id| id.as_str().len());
    event.payload.len()
        + event.tenant.as_str().len()
        + event.event_type.as_str().len()
        + event.correlation_id.as_str().len()
        + external_id
        + BOOKKEEPING
}

#[derive(Debug)]
pub(super) struct Queue {
    limits: IngestLimits,
    state: Mutex<State>,
    /// There is something to take, or the queue is closed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    submits: VecDeque<Submit>,
    events: usize,
    bytes: usize,
    /// Nobody is left who could submit.
    closed: bool,
    /// Nobody is left who commits.
    abandoned: bool,
}

impl Queue {
    pub(super) fn new(limits: IngestLimits) -> Self {
        Self { limits, state: Mutex::default(), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; if something did, the counts are still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, submit: Submit) -> Result<(), IngestError> {
        {
            let mut state = self.state();
            if state.abandoned {
                return Err(stopped());
            }
            let full = state.events + submit.len() > self.limits.queued_events
                || state.bytes + submit.bytes > self.limits.queued_bytes;
            if full && !state.submits.is_empty() {
                return Err(IngestError::Overloaded);
            }
            state.events += submit.len();
            state.bytes += submit.bytes;
            state.submits.push_back(submit);
        }
        self.changed.notify_waiters();
        Ok(())
    }

    /// The next batch, as soon as `at_least` events wait or no more will come; `None` once the queue is closed
    /// and empty. Of several who wait, the one that sees enough takes the batch, and the others wait on.
    pub(super) async fn next_batch(&self, at_least: usize) -> Option<Vec<Submit>> {
        loop {
            // From here on it hears of every change, also of one before it is awaited.
            let changed = self.changed.notified();
            let closed = {
                let mut state = self.state();
                if state.events >= at_least || state.closed {
                    let batch = state.take_batch(&self.limits);
                    if !batch.is_empty() {
                        if !state.submits.is_empty() {
                            self.changed.notify_waiters();
                        }
                        return Some(batch);
                    }
                }
                state.closed
            };
            if closed {
                return None;
            }
            changed.await;
        }
    }

    /// No more submits will come.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_waiters();
    }

    /// No more commits will come: callers that wait see their reply channel closed.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        state.submits.clear();
    }
}

impl State {
    /// Whole submits up to the limits of a batch, at least one if there is any. Those whose caller is
    /// gone are dropped.
    fn take_batch(&mut self, limits: &IngestLimits) -> Vec<Submit> {
        let (mut batch, mut events, mut bytes) = (Vec::new(), 0, 0);
        while let Some(next) = self.submits.front() {
            let fits = events + next.len() <= limits.batch_events && bytes + next.bytes <= limits.batch_bytes;
            if !fits && !batch.is_empty() {
                break;
            }
            let Some(submit) = self.submits.pop_front() else { break };
            self.events -= submit.len();
            self.bytes -= submit.bytes;
            if !submit.reply.is_closed() {
                events += submit.len();
                bytes += submit.bytes;
                batch.push(submit);
            }
        }
        batch
    }
}
