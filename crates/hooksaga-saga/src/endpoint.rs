//! What an orchestrator has observed about one subscription's endpoint, and what follows from it.
//!
//! Kept in memory: losing it costs a few round trips, never a delivery. Time is passed in, so that every
//! decision can be tested without waiting.

use crate::{Demand, ErrorCode, Outcome, allotment::QUICK};
use std::time::{Duration, Instant};

/// The window that every endpoint starts with.
const FIRST_WINDOW: u32 = 4;
/// The shortest silence after which an endpoint with open jobs counts as hanging.
const SILENCE: Duration = Duration::from_millis(500);
/// How long responses show, at least, that the endpoint answers. Whoever answers quickly shows it again within milliseconds.
const CONFIRMED_FOR: Duration = Duration::from_millis(150);
/// So many show it. Hundreds of endpoints may each have given one or two of late, and begin to hang together.
const CONFIRMED_BY: usize = 4;
/// The last of them shows it for two mean response times, and all of them for eight: an endpoint that always has a request open
/// gives eight in that time.
const CONFIRMED_FOR_MEANS: [u32; 2] = [2, 8];
/// Close to where it was last refused, a window grows this many times more slowly.
const CAUTION: u32 = 8;
/// Close to where it was last refused, a window grows after at least this many deliveries.
const CAUTIOUS_AT_LEAST: u32 = 40;

/// What one result says about its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointReaction {
    /// It accepted the delivery.
    Served,
    /// It gave another response, which says nothing about its load.
    Refused,
    /// It says that it is given too much: 429, 502, 503, 504.
    Throttled,
    /// It gave no response in time, or there was no connection.
    Unreachable,
}

impl EndpointReaction {
    /// What the outcome of an attempt says about its endpoint.
    pub fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Delivered => Self::Served,
            Outcome::Failed(code) => Self::of_failure(code),
        }
    }

    /// What a failed attempt says about its endpoint.
    pub fn of_failure(code: &ErrorCode) -> Self {
        match code.as_str() {
            "HTTP_429" | "HTTP_502" | "HTTP_503" | "HTTP_504" => Self::Throttled,
            _ if code.means_unreachable() => Self::Unreachable,
            _ => Self::Refused,
        }
    }
}

/// How an endpoint stands, as far as the allotment is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was heard of it yet, and it has not been silent for long.
    New,
    /// Its last results were responses, a moment ago. `latency` is how long one of its jobs holds a worker slot, on average.
    Answering { latency: Duration },
    /// Its last result was a response, but there were not several lately. Whether it still answers is not known, however quick it
    /// was: many such endpoints may have begun to hang together.
    Unconfirmed,
    /// Its last result was none, or it has open jobs and has been silent for too long.
    Unreachable,
}

/// One subscription's endpoint as this process has seen it. The default has never been tried.
///
/// The window is how many jobs it may have open as far as the endpoint itself is concerned. It doubles per
/// round trip until the endpoint throttles or cannot be reached; that halves it, once per round trip, and from
/// then on it grows by one per window-full of deliveries, and more slowly close to where it was last refused.
#[derive(Clone, Debug)]
pub struct Endpoint {
    open: u32,
    /// How many were open after the last admission: a window that is not used says nothing, and does not grow.
    peak: u32,
    window: u32,
    /// Deliveries since the window last grew or shrank.
    credit: u32,
    /// Jobs that were open when the window last shrank: their results say nothing about the smaller window.
    before_shrink: u32,
    /// Where the endpoint last said that it was too much; 0 if it never did.
    refused_at: u32,
    /// Mean time of its responses: a longer silence is unusual.
    answer_time: Option<Duration>,
    /// Mean time of all its results, timeouts included: how long a job holds a slot.
    slot_time: Option<Duration>,
    unreachable: bool,
    /// When it gave its last responses, the latest first.
    responses: [Option<Instant>; CONFIRMED_BY],
    /// Since when jobs have been open without any result.
    silent_since: Option<Instant>,
    last_activity: Option<Instant>,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self {
            open: 0,
            peak: 0,
            window: FIRST_WINDOW,
            credit: 0,
            before_shrink: 0,
            refused_at: 0,
            answer_time: None,
            slot_time: None,
            unreachable: false,
            responses: [None; CONFIRMED_BY],
            silent_since: None,
            last_activity: None,
        }
    }
}

impl Endpoint {
    /// One that another process saw fail, and that this one has not tried: its last failure was this.
    pub fn failing(code: &ErrorCode) -> Self {
        match EndpointReaction::of_failure(code) {
            EndpointReaction::Unreachable => {
                Self { unreachable: true, window: 1, refused_at: FIRST_WINDOW, ..Self::default() }
            }
            EndpointReaction::Throttled => Self { window: 1, refused_at: FIRST_WINDOW, ..Self::default() },
            EndpointReaction::Served | EndpointReaction::Refused => Self::default(),
        }
    }

    /// Jobs were created for it.
    pub fn admitted(&mut self, jobs: u32, now: Instant) {
        self.set_open(self.open.saturating_add(jobs), now);
    }

    /// The database has counted its open jobs. Where other processes apply results, too, and the next count may be this far
    /// away, fewer than were known of show that it answers: attempts that hang would not have ended so soon.
    pub fn counted(&mut self, open: u32, hears_after: Duration, now: Instant) {
        let is_soon = |since| now.saturating_duration_since(since) <= hears_after.saturating_mul(3);
        if open < self.open && !self.unreachable && self.silent_since.is_some_and(is_soon) {
            self.silent_since = Some(now);
        }
        self.set_open(open, now);
    }

    /// Corrects how many jobs are open.
    pub fn set_open(&mut self, open: u32, now: Instant) {
        if open != self.open {
            self.last_activity = Some(now);
        }
        self.open = open;
        self.peak = open;
        self.before_shrink = self.before_shrink.min(open);
        self.silent_since = if open == 0 { None } else { self.silent_since.or(Some(now)) };
    }

    /// A result of one of its jobs, which took `took` from the start of the attempt.
    pub fn answered(&mut self, answer: EndpointReaction, took: Duration, now: Instant) {
        let was_used = u64::from(self.peak) * 2 >= u64::from(self.window);
        let is_older = self.before_shrink > 0;
        self.open = self.open.saturating_sub(1);
        self.before_shrink = self.before_shrink.saturating_sub(1);
        self.silent_since = (self.open > 0).then_some(now);
        self.last_activity = Some(now);
        self.unreachable = answer == EndpointReaction::Unreachable;
        self.slot_time = Some(mean(self.slot_time, took));
        if !self.unreachable {
            self.answer_time = Some(mean(self.answer_time, took));
            self.responses.rotate_right(1);
            self.responses[0] = Some(now);
        }
        match answer {
            EndpointReaction::Served if was_used => self.grow(),
            EndpointReaction::Throttled | EndpointReaction::Unreachable if !is_older => self.shrink(),
            _ => {}
        }
    }

    fn grow(&mut self) {
        let needed = match self.refused_at {
            0 => 1,
            at if self.window.saturating_add(1) == at => {
                self.window.saturating_mul(CAUTION).max(CAUTIOUS_AT_LEAST)
            }
            _ => self.window,
        };
        self.credit = self.credit.saturating_add(1);
        if self.credit >= needed {
            self.credit = 0;
            self.window = self.window.saturating_add(1);
        }
    }

    fn shrink(&mut self) {
        self.refused_at = self.window.max(2);
        self.window = (self.window / 2).max(1);
        self.credit = 0;
        self.before_shrink = self.open;
    }

    /// How many of its jobs are open: created, and their results not applied yet.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// How many jobs it may have open as far as the endpoint itself is concerned.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// How it stands now. Where other processes apply results, too, it is known only so much later that it answers.
    pub fn standing(&self, hears_after: Duration, now: Instant) -> Standing {
        let mean = self.answer_time.unwrap_or_default();
        let is_past = |since, bound| now.saturating_duration_since(since) > bound;
        let silent = |since| is_past(since, mean.saturating_mul(4).max(SILENCE).saturating_add(hears_after));
        let is_confirmed = [self.responses[0], self.responses[CONFIRMED_BY - 1]]
            .into_iter()
            .zip(CONFIRMED_FOR_MEANS)
            .all(|(at, means)| {
                at.is_some_and(|at| !is_past(at, mean.saturating_mul(means).max(CONFIRMED_FOR)))
            });
        match self.slot_time {
            _ if self.unreachable || self.silent_since.is_some_and(silent) => Standing::Unreachable,
            Some(latency) if is_confirmed => Standing::Answering { latency },
            Some(_) => Standing::Unconfirmed,
            None => Standing::New,
        }
    }

    /// What it asks of the allotment. `waiting`, `last_turn` and `waits_since` as in [`Demand`], `hears_after` as for
    /// [`Self::standing`].
    pub fn demand(
        &self,
        waiting: u32,
        last_turn: u64,
        waits_since: u64,
        hears_after: Duration,
        now: Instant,
    ) -> Demand {
        let is_quick = self.answer_time.is_some_and(|mean| mean < QUICK);
        Demand {
            waiting,
            open: self.open,
            window: self.window,
            standing: self.standing(hears_after, now),
            last_response: self.responses[0].filter(|_| is_quick).map(|at| now.saturating_duration_since(at)),
            last_turn,
            waits_since,
        }
    }

    /// Nothing of it is open: it may be forgotten, the longest inactive first.
    pub fn is_idle(&self) -> bool {
        self.open == 0
    }

    /// When a job of it was last created or finished.
    pub fn last_activity(&self) -> Option<Instant> {
        self.last_activity
    }
}

/// An exponentially weighted mean: the newest counts an eighth.
fn mean(old: Option<Duration>, new: Duration) -> Duration {
    old.map_or(new, |old| old.saturating_mul(7).saturating_add(new) / 8)
}
