//! How much the janitor rests: less while it falls behind.

use hooksaga_saga::JanitorRest;
use std::time::Duration;
use tokio::time::Instant;

/// What it rests at present, and by what that was judged.
#[derive(Debug)]
pub(super) struct Pace {
    rest: JanitorRest,
    /// When history was found overdue, and by how much.
    judged: Option<(Instant, Duration)>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rest: JanitorRest::FULL, judged: None }
    }
}

impl Pace {
    /// Shortest time between two judgements: from one step to the next, chance decides.
    const EVERY: Duration = Duration::from_secs(10);

    /// Takes note of how long the oldest history that may go has been overdue.
    pub(super) fn see(&mut self, overdue: Duration, now: Instant) {
        match self.judged {
            Some((at, _)) if now.saturating_duration_since(at) < Self::EVERY => return,
            Some((_, earlier)) => self.rest = self.rest.next(earlier, overdue),
            None => {}
        }
        self.judged = Some((now, overdue));
    }

    pub(super) fn rest(&self) -> JanitorRest {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_judged_every_ten_seconds() {
        let (mut pace, began, seconds) = (Pace::default(), Instant::now(), Duration::from_secs);
        let rest = |pace: &Pace| pace.rest().of(seconds(4)).as_secs();
        for at in 0..20 {
            // It falls behind by a second in five.
            pace.see(seconds(1000 + at / 5), began + seconds(at));
        }
        assert_eq!(rest(&pace), 3, "once in 20 seconds");
        for at in 20..60 {
            pace.see(seconds(1000 + at / 5), began + seconds(at));
        }
        assert_eq!(rest(&pace), 1);
        pace.see(Duration::ZERO, began + seconds(60));
        assert_eq!(rest(&pace), 4);
    }
}
