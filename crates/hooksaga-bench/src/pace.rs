//! Speeds beside the ceiling.

use super::measure::Throughput;

/// A speed, and the ceiling that was measured right before it: on a machine whose own speed changes from minute to
/// minute, what of the ceiling is reached says more than either.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) ceiling: f64,
    pub(super) reached: Throughput,
}

impl Pace {
    /// What of the ceiling is reached.
    pub(super) fn share(&self) -> f64 {
        self.reached.per_second / self.ceiling
    }

    /// The middle one of several rounds, by the share of the ceiling, with the repeats of all of them.
    pub(super) fn middle(mut rounds: Vec<Self>) -> Option<Self> {
        rounds.sort_unstable_by(|one, other| one.share().total_cmp(&other.share()));
        let mut middle = *rounds.get(rounds.len() / 2)?;
        middle.reached.repeats = rounds.iter().map(|round| round.reached.repeats).sum();
        Some(middle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_by_share_of_the_ceiling_and_hides_no_repeats() {
        let round = |ceiling, per_second, repeats| Pace {
            ceiling,
            reached: Throughput { per_second, cpu: None, database_cpu: None, repeats },
        };
        let middle = Pace::middle(vec![round(100.0, 30.0, 1), round(10.0, 4.0, 0), round(50.0, 10.0, 2)]);
        let middle = middle.map(|pace| (pace.ceiling, pace.reached.per_second, pace.reached.repeats));
        assert_eq!(middle, Some((100.0, 30.0, 3)));
        assert!(Pace::middle(Vec::new()).is_none());
    }
}
