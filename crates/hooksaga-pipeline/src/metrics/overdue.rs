//! How far the janitor is behind.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Unit,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// For how long the oldest history that may go had been overdue, and when that was found. It grows while nobody looks: a
/// janitor that fails is seen. 0 where no janitor removes history.
#[derive(Clone, Debug, Default)]
pub(super) struct HistoryOverdue(Arc<Mutex<Option<(Instant, Duration)>>>);

impl HistoryOverdue {
    pub(super) fn set(&self, overdue: Duration, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, overdue));
    }

    fn get(&self, now: Instant) -> Duration {
        let found = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.map_or(Duration::ZERO, |(at, overdue)| overdue + now.saturating_duration_since(at))
    }
}

impl Collector for HistoryOverdue {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "How long the oldest history that may go has been overdue";
        let gauge = ConstGauge::new(self.get(Instant::now()).as_secs_f64());
        gauge.encode(encoder.encode_descriptor(
            "history_overdue",
            help,
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_the_janitor_finds_nothing_out() {
        let (overdue, now, seconds) = (HistoryOverdue::default(), Instant::now(), Duration::from_secs);
        assert_eq!(overdue.get(now), Duration::ZERO, "nobody removes anything");
        overdue.set(seconds(5), now);
        assert_eq!(overdue.get(now + seconds(60)), seconds(65));
        overdue.set(Duration::ZERO, now + seconds(61));
        assert_eq!(overdue.get(now + seconds(62)), seconds(1));
    }
}
