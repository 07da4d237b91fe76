//! Whether results can be written at present. While they cannot, everything that a worker sends is sent again when its lease
//! expires, so the worker must stop claiming.
//!
//! While a write of results fails, or takes longer than a second, nothing is claimed: a connection that is dead shows only
//! when the response has been waited for. When a write was given up (its leases are over, or the database refuses it), one
//! job at a time is claimed and sent as a probe, after waits that grow from a second to a minute. The first result that is
//! written opens the gate again.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How many jobs may be claimed now, as far as results are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimAllowance {
    Open,
    /// One, to see whether its result can be written.
    Probe,
    /// No claim for this long; then it is to be asked again.
    Closed(Duration),
}

#[derive(Debug, Default)]
pub(super) struct ResultGate(Mutex<Results>);

/// How results fare.
#[derive(Debug, Default)]
struct Results {
    state: State,
    /// Since when a batch is being written, whatever becomes of it.
    writing_since: Option<Instant>,
}

/// A batch that is being written.
pub(super) struct Writing<'a>(&'a ResultGate);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.results().writing_since = None;
    }
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Open,
    /// A write fails, and is tried again.
    Failing,
    /// Results were lost. The next probe is due at `probe_at`; if it fails, the one after it `wait` later.
    Lost { probe_at: Instant, wait: Duration },
    /// A probe is under way. If it has no result (it was parked or handed back), another follows.
    Probing { next: Instant, wait: Duration },
}

impl ResultGate {
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(60);
    /// How often a closed gate is checked.
    const LOOK: Duration = Duration::from_millis(200);
    /// A write that takes longer may never end.
    const SLOW: Duration = Duration::from_secs(1);

    fn results(&self) -> MutexGuard<'_, Results> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whether jobs may be claimed. `Probe` is returned once per probe.
    pub(super) fn pass(&self, now: Instant) -> ClaimAllowance {
        let mut results = self.results();
        if results.writing_since.is_some_and(|since| now.duration_since(since) > Self::SLOW) {
            return ClaimAllowance::Closed(Self::LOOK);
        }
        match results.state {
            State::Open => ClaimAllowance::Open,
            State::Failing => ClaimAllowance::Closed(Self::LOOK),
            State::Lost { probe_at: due, wait } | State::Probing { next: due, wait } if now >= due => {
                results.state = State::Probing { next: now + wait, wait: Self::longer(wait) };
                ClaimAllowance::Probe
            }
            State::Lost { .. } | State::Probing { .. } => ClaimAllowance::Closed(Self::LOOK),
        }
    }

    /// A batch is written from now on, until what this returns is dropped.
    pub(super) fn writes(&self, now: Instant) -> Writing<'_> {
        self.results().writing_since = Some(now);
        Writing(self)
    }

    /// A write of results failed, and is tried again.
    pub(super) fn fails(&self) {
        let mut results = self.results();
        if matches!(results.state, State::Open) {
            results.state = State::Failing;
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        matches!(self.results().state, State::Failing)
    }

    /// Results were given up.
    pub(super) fn lost(&self, now: Instant) {
        let mut results = self.results();
        let wait = match results.state {
            State::Open | State::Failing => Self::FIRST,
            State::Lost { wait, .. } | State::Probing { wait, .. } => wait,
        };
        results.state = State::Lost { probe_at: now + wait, wait: Self::longer(wait) };
    }

    /// Results were written.
    pub(super) fn written(&self) {
        self.results().state = State::Open;
    }

    fn longer(wait: Duration) -> Duration {
        (wait * 2).min(Self::LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_results_let_single_probes_through_until_one_is_written() {
        let (gate, began) = (ResultGate::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let closed = ClaimAllowance::Closed(ResultGate::LOOK);
        assert_eq!(gate.pass(at(0)), ClaimAllowance::Open);
        gate.fails();
        assert_eq!([gate.pass(at(0)), gate.pass(at(500))], [closed; 2], "the write is still being tried");
        gate.lost(at(500));
        assert_eq!(gate.pass(at(500)), closed);
        assert_eq!(
            [gate.pass(at(501)), gate.pass(at(501))],
            [ClaimAllowance::Probe, closed],
            "one at a time"
        );
        gate.fails();
        gate.lost(at(510));
        assert_eq!(gate.pass(at(513)), closed, "the waits grow");
        assert_eq!(gate.pass(at(514)), ClaimAllowance::Probe);
        // It had no result.
        assert_eq!(gate.pass(at(514 + 8)), ClaimAllowance::Probe);
        gate.written();
        assert_eq!(gate.pass(at(523)), ClaimAllowance::Open);
    }

    #[test]
    fn while_a_write_does_not_end_nothing_is_claimed() {
        let (gate, began) = (ResultGate::default(), Instant::now());
        let writing = gate.writes(began);
        assert_eq!(gate.pass(began + ResultGate::SLOW), ClaimAllowance::Open, "as long as writes may take");
        let later = began + ResultGate::SLOW * 2;
        assert_eq!(gate.pass(later), ClaimAllowance::Closed(ResultGate::LOOK));
        drop(writing);
        assert_eq!(gate.pass(later), ClaimAllowance::Open);
    }

    #[test]
    fn the_waits_end_at_a_minute() {
        let (gate, mut now) = (ResultGate::default(), Instant::now());
        for _ in 0..20 {
            gate.lost(now);
            now += ResultGate::LONGEST;
            assert_eq!(gate.pass(now), ClaimAllowance::Probe);
        }
    }
}
