//! Adds a batch of results to the counts of its minute: a row per subscription.

use crate::time::SqlTime;
use hooksaga_saga::{Applied, Latencies, SagaStatus, Timestamp};
use hooksaga_store::QueuedResult;
use std::collections::BTreeMap;

/// The counts are part of the text. The durations of attempts are counted in the same row, which is written anyway.
pub(crate) fn count_statement(values: &str) -> String {
    format!(
        "/* orchestrator.count */
INSERT INTO delivery_counts
    (minute, subscription_id, shard, delivered, failed, dead_lettered, ms_10, ms_20, ms_50, ms_100, ms_200, ms_500,
     ms_1000, ms_2000, ms_5000, ms_10000, ms_20000, ms_more, slowest_ms) VALUES {values}
ON DUPLICATE KEY UPDATE delivered = delivered + VALUES(delivered), failed = failed + VALUES(failed),
    dead_lettered = dead_lettered + VALUES(dead_lettered),
    ms_10 = ms_10 + VALUES(ms_10),
    ms_20 = ms_20 + VALUES(ms_20),
    ms_50 = ms_50 + VALUES(ms_50),
    ms_100 = ms_100 + VALUES(ms_100),
    ms_200 = ms_200 + VALUES(ms_200),
    ms_500 = ms_500 + VALUES(ms_500),
    ms_1000 = ms_1000 + VALUES(ms_1000),
    ms_2000 = ms_2000 + VALUES(ms_2000),
    ms_5000 = ms_5000 + VALUES(ms_5000),
    ms_10000 = ms_10000 + VALUES(ms_10000),
    ms_20000 = ms_20000 + VALUES(ms_20000),
    ms_more = ms_more + VALUES(ms_more),
    slowest_ms = GREATEST(slowest_ms, VALUES(slowest_ms))"
    )
}

/// What one subscription adds.
#[derive(Default)]
struct Counts {
    delivered: i64,
    failed: i64,
    dead: i64,
    latencies: Latencies,
}

/// The statement that adds up the results whose write changed a saga, per subscription. `None` if there are none.
pub(super) fn count(
    read: &[QueuedResult],
    applied: &[Applied],
    changed: &[bool],
    now: Timestamp,
    shard: u32,
) -> Option<String> {
    let mut counts: BTreeMap<i64, Counts> = BTreeMap::new();
    for ((read, applied), changed) in read.iter().zip(applied).zip(changed) {
        let (Applied::Changed { saga, .. }, true) = (applied, changed) else { continue };
        let counts = counts.entry(read.finished.subscription_id.0).or_default();
        match saga.status {
            SagaStatus::Completed => counts.delivered += 1,
            _ => counts.failed += 1,
        }
        counts.dead += i64::from(saga.status == SagaStatus::DeadLettered);
        if let Some(took_ms) = Latencies::measured(&read.finished.result.outcome, read.duration) {
            counts.latencies.add(took_ms);
        }
    }
    if counts.is_empty() {
        return None;
    }
    let minute = Timestamp::from_micros(now.as_micros() - now.as_micros().rem_euclid(60_000_000));
    let minute = SqlTime(minute).literal();
    let values = counts.into_iter().map(|(subscription, Counts { delivered, failed, dead, latencies })| {
        let ranges = latencies.ranges.map(|count| count.to_string()).join(",");
        // As much as the column holds.
        let slowest = latencies.slowest_ms.min(i32::MAX.unsigned_abs());
        format!("({minute},{subscription},{shard},{delivered},{failed},{dead},{ranges},{slowest})")
    });
    Some(count_statement(&values.collect::<Vec<_>>().join(",")))
}
