//! One attempt: what is known before it is sent, and how its result is reported.

use crate::{CallbackRequest, DeliveryClient, Shutdown};
use hooksaga_saga::{
    EndpointReaction, ErrorCode, Outcome, StartWindow, SubscriptionId, Timestamp, retry_after,
};
use hooksaga_store::{ClockReading, JobReport, LeaseRef, Trace};
use std::time::Duration;
use tokio::time::Instant;

/// For how long an attempt that came too late to start, or found no file descriptor, is given back: whatever is
/// slow or short may recover.
const LATE_DELAY: Duration = Duration::from_secs(1);

/// For how long an attempt whose moment has passed is given back: it needs another one.
const MISSED_DELAY: Duration = Duration::from_millis(20);

/// The database's clock, as a claim read it, or the start of limited attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// What it said.
    pub(super) read: Timestamp,
    /// When it was asked, by this process's clock.
    pub(super) asked: Instant,
}

impl Clock {
    /// What it says by now; ahead by what it took to read it, at most.
    fn now(self) -> Timestamp {
        self.read.after(self.asked.elapsed())
    }
}

/// What stays known of a job after its request is gone.
#[derive(Debug)]
pub(super) struct JobInfo {
    pub(super) lease: LeaseRef,
    pub(super) attempt: u32,
    pub(super) trace: Trace,
    /// When its event was accepted, by the database's clock.
    pub(super) accepted_at: Timestamp,
    /// By this process's clock, and no later than by the database's.
    pub(super) lease_end: Instant,
}

/// What is to be written about a job.
#[derive(Debug)]
pub(super) enum Settled {
    Finished {
        about: JobInfo,
        report: JobReport,
    },
    GivenBack {
        about: JobInfo,
        delay: Duration,
    },
    /// Its subscription is paused or not verified.
    Parked {
        about: JobInfo,
    },
}

impl Settled {
    /// The endpoint gave a response, whatever it was.
    pub(super) fn shows_an_answer(&self) -> bool {
        match self {
            Self::Finished { report, .. } => {
                EndpointReaction::of(&report.outcome) != EndpointReaction::Unreachable
            }
            Self::GivenBack { .. } | Self::Parked { .. } => false,
        }
    }
}

impl JobInfo {
    /// The job was not sent, and may be claimed again after `delay`.
    pub(super) fn give_back(self, delay: Duration) -> Settled {
        Settled::GivenBack { about: self, delay }
    }

    /// The job was not sent, and may be claimed again when its subscription is active and verified.
    pub(super) fn park(self) -> Settled {
        Settled::Parked { about: self }
    }

    /// The job has failed without being sent.
    pub(super) fn failed_unsent(self, code: ErrorCode) -> Settled {
        let report = JobReport {
            lease: self.lease,
            outcome: Outcome::Failed(code),
            started_at: None,
            callback_url: None,
            response_status: None,
            retry_at: None,
            duration: Duration::ZERO,
            response_excerpt: None,
        };
        Settled::Finished { about: self, report }
    }
}

/// A request to send now.
#[derive(Debug)]
pub(super) struct PreparedAttempt {
    pub(super) about: JobInfo,
    pub(super) subscription: SubscriptionId,
    pub(super) request: CallbackRequest,
    /// Later than this it might outlive its lease.
    pub(super) start_by: Instant,
    /// At any other time it would exceed a rate limit.
    pub(super) window: Option<StartWindow>,
    pub(super) clock: Clock,
}

impl PreparedAttempt {
    /// Its start is counted for a moment so long after this reading of the clock.
    pub(super) fn start_after(&mut self, clock: ClockReading, ahead: Duration) {
        self.window = Some(StartWindow::new(clock.asked, clock.answered, ahead));
        self.clock = Clock { read: clock.time, asked: clock.asked.into() };
    }

    /// Sends it, unless it is too late, time to stop, or no connection can be opened from here.
    pub(super) async fn carry_out(
        self,
        client: &DeliveryClient,
        timeout: Duration,
        shutdown: &Shutdown,
    ) -> Settled {
        let Self { about, request, start_by, window, clock, .. } = self;
        let opens = window.map(|window| Instant::from(window.opens));
        let too_late = opens.is_some_and(|time| time > start_by);
        if let Some(time) = opens.filter(|_| !too_late) {
            tokio::select! {
                () = tokio::time::sleep_until(time) => {}
                () = shutdown.wait() => {}
            }
        }
        if shutdown.is_triggered() {
            return about.give_back(Duration::ZERO);
        }
        let now = Instant::now();
        if too_late || now > start_by {
            return about.give_back(LATE_DELAY);
        }
        // The last look at the clock before it is sent: a process that stands still right after this is late unseen.
        if window.is_some_and(|window| now > Instant::from(window.closes)) {
            return about.give_back(MISSED_DELAY);
        }
        let (started_at, callback_url) = (clock.now(), request.url.clone());
        let Ok(done) = client.post(request, timeout).await else {
            return about.give_back(LATE_DELAY);
        };
        let report = JobReport {
            lease: about.lease,
            outcome: done.outcome,
            started_at: Some(started_at),
            callback_url: Some(callback_url),
            response_status: done.response_status,
            retry_at: done.retry_after.and_then(|text| retry_after(&text, clock.now())),
            duration: done.duration,
            response_excerpt: done.excerpt,
        };
        Settled::Finished { about, report }
    }
}
