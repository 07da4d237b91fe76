//! Fairness: how many jobs one subscription may have open at a time.

use std::time::Duration;

/// The admission window of one subscription.
///
/// It doubles while results come back quickly, grows by one while they take their time, and halves when they
/// take too long, so that an endpoint that hangs holds a handful of worker slots while one that answers gets, in
/// the end, as many as it can use. Kept in memory by each orchestrator: losing it costs a few round trips,
/// never a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(u32);

/// What a batch of results says about an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    Quick,
    Neutral,
    Slow,
}

impl Feedback {
    const QUICK: Duration = Duration::from_secs(1);
    const SLOW: Duration = Duration::from_secs(5);

    /// What one attempt says. `unreachable`: it timed out or no connection came about.
    pub fn of(duration: Duration, unreachable: bool) -> Self {
        match duration {
            _ if unreachable => Self::Slow,
            d if d < Self::QUICK => Self::Quick,
            d if d < Self::SLOW => Self::Neutral,
            _ => Self::Slow,
        }
    }

    /// What a batch says: the worst of its attempts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Slow, _) | (_, Self::Slow) => Self::Slow,
            (Self::Neutral, _) | (_, Self::Neutral) => Self::Neutral,
            (Self::Quick, Self::Quick) => Self::Quick,
        }
    }
}

impl Window {
    /// Where every subscription starts, and the smallest it gets: fifty endpoints that hang hold 200 of
    /// the default 512 worker slots.
    pub const FLOOR: Self = Self(4);
    /// The largest it gets. Below the default number of worker slots: an endpoint that was quick and begins to
    /// hang leaves slots to the others while its window shrinks.
    pub const CEILING: Self = Self(480);

    /// How many jobs it admits whose results are not applied yet.
    pub const fn size(self) -> u32 {
        self.0
    }

    /// The window after a batch of results.
    #[must_use]
    pub fn after(self, feedback: Feedback) -> Self {
        let size = match feedback {
            Feedback::Quick => self.0.saturating_mul(2),
            Feedback::Neutral => self.0.saturating_add(1),
            Feedback::Slow => self.0 / 2,
        };
        Self(size.clamp(Self::FLOOR.0, Self::CEILING.0))
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::FLOOR
    }
}
