//! What one pass of a component achieved, so that its driver knows when to call it again.

use std::time::Duration;

/// The outcome of one `run_once`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Work was done and more may wait: call again at once.
    Worked,
    /// Work on `rows` rows was done and none was left when this pass looked: sleep, `until` at the latest if
    /// given.
    Drained { rows: usize, until: Option<Duration> },
    /// There was nothing to do: sleep, `until` at the latest if given.
    Idle { until: Option<Duration> },
}

impl Progress {
    /// Nothing to do, and no time known at which there will be.
    pub const IDLE: Self = Self::Idle { until: None };

    /// A pass that took `done` rows of at most `limit`: a full batch means that more may wait.
    pub fn of_batch(done: usize, limit: u32) -> Self {
        match done {
            0 => Self::IDLE,
            _ if u32::try_from(done).is_ok_and(|done| done < limit) => {
                Self::Drained { rows: done, until: None }
            }
            _ => Self::Worked,
        }
    }

    /// The same, but due again after `due` at the latest.
    #[must_use]
    pub fn or_after(self, due: Option<Duration>) -> Self {
        let earlier = |until: Option<Duration>| match (until, due) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match self {
            Self::Worked => Self::Worked,
            Self::Drained { rows, until } => Self::Drained { rows, until: earlier(until) },
            Self::Idle { until } => Self::Idle { until: earlier(until) },
        }
    }

    /// Whether the pass did anything.
    pub fn did_work(self) -> bool {
        !matches!(self, Self::Idle { .. })
    }
}
