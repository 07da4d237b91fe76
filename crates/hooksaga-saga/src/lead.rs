//! How far ahead of time a process asks for starts of rate-limited attempts.
//!
//! Such a start is counted for a moment on the database's clock, and has to happen then: later, it would add to what was
//! counted for a later second. The answer comes with a commit, which may take long. So a process asks for moments
//! that lie further ahead than its commits take, and starts nothing whose moment has passed: what was counted for that is
//! lost, and the next question looks further ahead. While the database is quick, there is no lead, and nothing waits.

use crate::RateLimit;
use std::time::{Duration, Instant};

/// An answer that takes no longer needs no lead: enough is left of [`StartWindow::LENGTH`] to begin.
const QUICK: Duration = Duration::from_millis(20);

/// While a process asks for nothing, its lead is halved after each of these.
const HALF_LIFE: Duration = Duration::from_millis(500);

/// A question is about starts between this and twice this from now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lead(Duration);

impl Lead {
    /// The moments begin now.
    pub const NONE: Self = Self(Duration::ZERO);
    /// Where commits take longer, nothing can be started.
    pub const MOST: Self = Self(Duration::from_secs(4));

    /// At most [`Self::MOST`].
    pub fn new(lead: Duration) -> Self {
        Self(lead).min(Self::MOST)
    }

    /// From now to the first moment asked for.
    pub fn shortest(self) -> Duration {
        self.0
    }

    /// From now to the last moment asked for. Twice as long: until the next answer comes, there is something to start.
    pub fn longest(self) -> Duration {
        self.0 * 2
    }

    /// The lead of the next question after one whose answer took so long: twice that at least. It gets shorter step by step:
    /// one quick commit does not promise another.
    #[must_use]
    pub fn after(self, took: Duration) -> Self {
        let needed = if took <= QUICK { Duration::ZERO } else { took * 2 };
        let shorter = self.0 - self.0.saturating_sub(needed) / 8;
        Self::new(shorter.max(needed))
    }

    /// What is left of it after a while without a question: half a second later half of it. What commits took then says little
    /// about the next one, and a lead that is too short costs no more than the moments of one answer.
    #[must_use]
    pub fn aged(self, quiet: Duration) -> Self {
        let halvings = u32::try_from(quiet.as_millis() / HALF_LIFE.as_millis()).unwrap_or(u32::MAX);
        let left = 2_u32.checked_pow(halvings).map_or(Duration::ZERO, |part| self.0 / part);
        if left <= QUICK { Self::NONE } else { Self(left) }
    }

    /// The lead with which a question reaches what the others have reserved, where this one was told to wait so long. Else
    /// a process with a longer lead would leave nothing to those with a shorter one. It is no longer than the longest of
    /// theirs: they reserve until twice their lead, and so does this.
    #[must_use]
    pub fn joining(self, limit: RateLimit, wait: Duration) -> Self {
        let behind = wait.saturating_sub(limit.time_for(1));
        if behind.is_zero() { Self::NONE } else { Self::new(self.0 + behind / 2) }
    }
}

/// When, by this process's clock, something may start that was counted for one moment of the database's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartWindow {
    /// Not before this.
    pub opens: Instant,
    /// Not after this.
    pub closes: Instant,
}

impl StartWindow {
    /// How late a start may be. Less than the twentieth of a second that [`RateLimit`] leaves room for: clocks do not run
    /// at exactly the same speed.
    pub const LENGTH: Duration = Duration::from_millis(45);

    /// How long a window is open at least, however long the database's clock took to read.
    pub const SHORTEST: Duration = Duration::from_millis(20);

    /// The moment is so long after that at which the database's clock was read, which was between these two. So a start in
    /// the window is never before its moment, and late by no more than [`Self::LENGTH`]; or, if the clock took longer than
    /// 25 ms to read, by no more than that and [`Self::SHORTEST`]: a database that is far away must not stop everything.
    pub fn new(asked: Instant, answered: Instant, ahead: Duration) -> Self {
        let (opens, closes) = (answered + ahead, asked + ahead + Self::LENGTH);
        Self { opens, closes: closes.max(opens + Self::SHORTEST) }
    }
}
