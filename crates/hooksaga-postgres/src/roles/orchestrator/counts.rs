//! Adds a batch of results to the counts of its minute: a row per subscription.

use hooksaga_saga::{Applied, Latencies, SagaStatus};
use hooksaga_store::QueuedResult;
use std::collections::BTreeMap;

/// Adds rows of [`Counts`] to the counters. `$shard` and `$counts` are parameters; `$condition` comes behind the rows.
macro_rules! add_counts {
    ($shard:literal, $counts:literal, $condition:literal) => {
        concat!(
            "INSERT INTO delivery_counts AS c
        (minute, subscription_id, shard, delivered, failed, dead_lettered, ms_10, ms_20, ms_50, ms_100, ms_200, ms_500,
         ms_1000, ms_2000, ms_5000, ms_10000, ms_20000, ms_more, slowest_ms)
    SELECT date_trunc('minute', now(), 'UTC'), n[i], ",
            $shard,
            "::int, n[i + 1], n[i + 2], n[i + 3], n[i + 4], n[i + 5], n[i + 6], n[i + 7], n[i + 8], n[i + 9], n[i + 10],
           n[i + 11], n[i + 12], n[i + 13], n[i + 14], n[i + 15], n[i + 16]
    FROM (SELECT ",
            $counts,
            "::bigint[] AS n) counts CROSS JOIN LATERAL generate_series(1, cardinality(n), 17) AS i
    ",
            $condition,
            "
    ON CONFLICT (minute, subscription_id, shard) DO UPDATE
    SET delivered = c.delivered + excluded.delivered,
        failed = c.failed + excluded.failed,
        dead_lettered = c.dead_lettered + excluded.dead_lettered,
        ms_10 = c.ms_10 + excluded.ms_10,
        ms_20 = c.ms_20 + excluded.ms_20,
        ms_50 = c.ms_50 + excluded.ms_50,
        ms_100 = c.ms_100 + excluded.ms_100,
        ms_200 = c.ms_200 + excluded.ms_200,
        ms_500 = c.ms_500 + excluded.ms_500,
        ms_1000 = c.ms_1000 + excluded.ms_1000,
        ms_2000 = c.ms_2000 + excluded.ms_2000,
        ms_5000 = c.ms_5000 + excluded.ms_5000,
        ms_10000 = c.ms_10000 + excluded.ms_10000,
        ms_20000 = c.ms_20000 + excluded.ms_20000,
        ms_more = c.ms_more + excluded.ms_more,
        slowest_ms = greatest(c.slowest_ms, excluded.slowest_ms)"
        )
    };
}
pub(super) use add_counts;

/// For a batch of which not everything was written.
pub(crate) const COUNT_RESULTS: &str =
    concat!("/* orchestrator.count_results */\n", add_counts!("$1", "$2", ""));

/// In the order of subscriptions: each is its id, then what [`add_counts`] adds.
#[derive(Default)]
pub(super) struct Counts(BTreeMap<i64, [i64; Self::NUMBERS]>);

impl Counts {
    /// Delivered, failed, dead letters; attempts by range of their time; the slowest.
    const NUMBERS: usize = 16;

    pub(super) fn of<'a>(written: impl Iterator<Item = (&'a QueuedResult, &'a Applied)>) -> Self {
        let mut counts = Self::default();
        for (read, applied) in written {
            counts.add(read, applied);
        }
        counts
    }

    pub(super) fn add(&mut self, read: &QueuedResult, applied: &Applied) {
        let Applied::Changed { saga, .. } = applied else { return };
        let numbers = self.0.entry(read.finished.subscription_id.0).or_default();
        let [delivered, failed, dead, times @ .., slowest] = numbers;
        *(if saga.status == SagaStatus::Completed { delivered } else { failed }) += 1;
        *dead += i64::from(saga.status == SagaStatus::DeadLettered);
        // Nothing where no request was sent.
        if let Some(ms) = Latencies::measured(&read.finished.result.outcome, read.duration) {
            times[Latencies::range_of(ms)] += 1;
            *slowest = (*slowest).max(i64::from(ms));
        }
    }

    /// Row after row.
    pub(super) fn rows(&self) -> Vec<i64> {
        let row = |(id, numbers): (&i64, &[i64; Self::NUMBERS])| std::iter::once(*id).chain(*numbers);
        self.0.iter().flat_map(row).collect()
    }
}
