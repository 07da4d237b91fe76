//! One connection: what it waits for, and whether it may stay when others want its place.

use std::{
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No request in progress: none has come, or its headers are not complete.
    Idle,
    /// A request is being handled.
    Request,
    /// Its response is being written.
    Response,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// Since when: of a request and its response, since the request began.
    since: Instant,
    /// Whether a request has ever come.
    has_asked: bool,
    /// The handler waits for more of the request's body.
    waits_for_body: bool,
    /// The client takes nothing more of what is being written.
    write_blocked: bool,
    /// Since when the client has been waited for without a byte of progress.
    quiet_since: Option<Instant>,
    /// All of the response's body has been handed over.
    body_done: bool,
}

impl State {
    /// Notes that the client is waited for, or no longer.
    fn note_wait(&mut self) {
        let waits = self.waits_for_body || self.write_blocked;
        self.quiet_since = waits.then(|| self.quiet_since.unwrap_or_else(Instant::now));
    }
}

/// One connection, as the listener sees it.
#[derive(Debug)]
pub(super) struct Peer {
    state: Mutex<State>,
    pub(super) leaving: AtomicBool,
    /// Its task, which is aborted when another connection needs its place. Nothing polls for that.
    pub(super) task: OnceLock<AbortHandle>,
    /// Wakes its task.
    pub(super) waker: OnceLock<Waker>,
}

impl Peer {
    pub(super) fn new() -> Self {
        let state = State {
            phase: Phase::Idle,
            since: Instant::now(),
            has_asked: false,
            waits_for_body: false,
            write_blocked: false,
            quiet_since: None,
            body_done: true,
        };
        Self {
            state: Mutex::new(state),
            leaving: AtomicBool::new(false),
            task: OnceLock::new(),
            waker: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock().phase == Phase::Idle
    }

    /// A request has come.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        state.phase = Phase::Request;
        state.since = Instant::now();
        state.has_asked = true;
        state.waits_for_body = false;
        state.body_done = false;
        state.note_wait();
    }

    pub(super) fn set_waits_for_body(&self, waits: bool) {
        let mut state = self.lock();
        state.waits_for_body = waits;
        state.note_wait();
    }

    /// The response is there, to be written.
    pub(super) fn respond(&self) {
        let mut state = self.lock();
        state.phase = Phase::Response;
        state.waits_for_body = false;
        state.note_wait();
    }

    /// All of the response's body has been handed over.
    pub(super) fn body_done(&self) {
        self.lock().body_done = true;
    }

    pub(super) fn set_write_blocked(&self, blocked: bool) {
        let mut state = self.lock();
        state.write_blocked = blocked;
        state.note_wait();
    }

    /// Everything that was handed over has been written.
    pub(super) fn flushed(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Response && state.body_done {
            state.phase = Phase::Idle;
            state.since = Instant::now();
        }
    }

    /// Until when a client that has just come has time to send its first request; `None` if it has sent one.
    pub(super) fn has_time_until(&self, fresh: Duration) -> Option<Instant> {
        let State { has_asked, since, .. } = *self.lock();
        (!has_asked).then(|| since + fresh)
    }

    /// Says how to wake its task. A task's waker stays the same.
    pub(super) fn set_waker(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// Which connection is closed first: idle ones before those that the server waits for, the longest first. `None`: it
    /// may stay.
    pub(super) fn rank(&self, now: Instant, patience: EvictAfter) -> Option<Rank> {
        if self.leaving.load(Ordering::Relaxed) {
            return None;
        }
        let state = *self.lock();
        let waits = state.waits_for_body || state.write_blocked;
        let lasted = now.duration_since(state.since);
        match state.phase {
            Phase::Idle if lasted >= patience.idle => Some((false, state.since)),
            Phase::Request | Phase::Response if waits && lasted >= patience.stalled => {
                Some((true, state.since))
            }
            _ => None,
        }
    }

    /// Whether the client neither has a request in progress nor moves one on.
    pub(super) fn is_quiet(&self, now: Instant, patience: EvictAfter) -> bool {
        let state = *self.lock();
        match state.phase {
            Phase::Idle => now.duration_since(state.since) >= patience.idle,
            Phase::Request | Phase::Response => {
                state.quiet_since.is_some_and(|since| now.duration_since(since) >= patience.stalled)
            }
        }
    }

    /// Whether the client has not taken its response for a while.
    pub(super) fn keeps_response(&self, now: Instant, stalled: Duration) -> Option<Instant> {
        let state = *self.lock();
        let keeps = state.phase == Phase::Response
            && state.write_blocked
            && now.duration_since(state.since) >= stalled
            && !self.leaving.load(Ordering::Relaxed);
        keeps.then_some(state.since)
    }
}

/// Whether a connection is in the middle of a request, and since when it waits.
pub(super) type Rank = (bool, Instant);

/// How long a connection keeps its place although others want it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictAfter {
    /// Without a request: whoever has just come must have time to send one.
    pub(super) idle: Duration,
    /// While it keeps a request waiting.
    pub(super) stalled: Duration,
}
