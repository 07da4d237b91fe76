//! Adds a batch of results to the counts of its minute: a row per subscription.

use super::apply::Finished;
use crate::{error::DbResult, session::Tx};
use hooksaga_saga::{Latencies, Outcome, SagaStatus, SubscriptionId};
use std::collections::BTreeMap;

/// One shard is enough where there is one writer. How long attempts took is counted in the row that is written anyway.
pub(super) const COUNT: &str = "/* orchestrator.count */
INSERT OR FAIL INTO delivery_counts
    (minute, subscription_id, shard, delivered, failed, dead_lettered, ms_10, ms_20, ms_50, ms_100, ms_200, ms_500,
     ms_1000, ms_2000, ms_5000, ms_10000, ms_20000, ms_more, slowest_ms)
VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
ON CONFLICT (minute, subscription_id, shard) DO UPDATE SET
    delivered = delivered + excluded.delivered,
    failed = failed + excluded.failed,
    dead_lettered = dead_lettered + excluded.dead_lettered,
    ms_10 = ms_10 + excluded.ms_10,
    ms_20 = ms_20 + excluded.ms_20,
    ms_50 = ms_50 + excluded.ms_50,
    ms_100 = ms_100 + excluded.ms_100,
    ms_200 = ms_200 + excluded.ms_200,
    ms_500 = ms_500 + excluded.ms_500,
    ms_1000 = ms_1000 + excluded.ms_1000,
    ms_2000 = ms_2000 + excluded.ms_2000,
    ms_5000 = ms_5000 + excluded.ms_5000,
    ms_10000 = ms_10000 + excluded.ms_10000,
    ms_20000 = ms_20000 + excluded.ms_20000,
    ms_more = ms_more + excluded.ms_more,
    slowest_ms = max(slowest_ms, excluded.slowest_ms)";

const MINUTE: i64 = 60_000_000;

/// What this batch adds to the statistics.
#[derive(Default)]
pub(super) struct Counts(BTreeMap<SubscriptionId, SubscriptionTally>);

#[derive(Default)]
struct SubscriptionTally {
    delivered: u32,
    failed: u32,
    dead_lettered: u32,
    latencies: Latencies,
}

impl Counts {
    pub(super) fn add(&mut self, finished: &Finished, status: SagaStatus) {
        let outcome = &finished.job.result.outcome;
        let tally = self.0.entry(finished.job.subscription_id).or_default();
        match outcome {
            Outcome::Delivered => tally.delivered += 1,
            Outcome::Failed(_) => tally.failed += 1,
        }
        tally.dead_lettered += u32::from(status == SagaStatus::DeadLettered);
        if let Some(took_ms) = Latencies::measured(outcome, finished.duration) {
            tally.latencies.add(took_ms);
        }
    }

    pub(super) fn write(&self, tx: &Tx<'_>) -> DbResult<()> {
        let now = tx.now.as_micros();
        let minute = now - now.rem_euclid(MINUTE);
        let mut count = tx.prepare(COUNT)?;
        for (id, tally) in &self.0 {
            let counts = [tally.delivered, tally.failed, tally.dead_lettered].map(i64::from);
            let ranges = tally.latencies.ranges.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
            let values = [minute, id.0].into_iter().chain(counts).chain(ranges);
            let values = values.chain([tally.latencies.slowest_ms.into()]);
            count.execute(rusqlite::params_from_iter(values))?;
        }
        Ok(())
    }
}
