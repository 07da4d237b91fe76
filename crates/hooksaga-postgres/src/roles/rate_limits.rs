//! Applies rate limits at admission and at the start of attempts.
//!
//! The rows of a batch are locked in their order, and the clock is read after that: a process that waited for another one
//! must not use the time at which it began to wait. Where nobody may wait, rows that others have locked are passed over.

use crate::{
    error::{DbError, DbResult},
    time::SqlTime,
};
use deadpool_postgres::Transaction;
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::{ClockReading, HeldBuckets};
use std::{collections::HashMap, time::Instant};

macro_rules! lock_buckets {
    ($name:literal, $held:literal) => {
        concat!(
            "/* rate_limits.",
            $name,
            " */
SELECT subscription_id, full_at FROM rate_limits
WHERE subscription_id = ANY ($1::bigint[]) AND gate = $2
ORDER BY subscription_id FOR UPDATE",
            $held
        )
    };
}
pub(crate) const LOCK_BUCKETS: &str = lock_buckets!("lock", "");
pub(crate) const LOCK_FREE_BUCKETS: &str = lock_buckets!("lock_free", " SKIP LOCKED");

/// A subscription that was never asked about has a full bucket. Those that are there are left out first: an insert
/// that meets a row waits for whoever is writing it.
const MAKE_BUCKETS: &str = "/* rate_limits.make */
INSERT INTO rate_limits (subscription_id, gate, full_at)
SELECT u.id, $2, now() FROM unnest($1::bigint[]) AS u (id)
WHERE NOT EXISTS (SELECT FROM rate_limits r WHERE r.subscription_id = u.id AND r.gate = $2)
ORDER BY u.id ON CONFLICT DO NOTHING";

const CLOCK: &str = "/* rate_limits.clock */ SELECT clock_timestamp()";

/// By their keys: a join with the arrays would compare every row with every entry.
pub(crate) const STORE_BUCKETS: &str = "/* rate_limits.store */
UPDATE rate_limits SET full_at = ($3::timestamptz[])[array_position($1::bigint[], subscription_id)]
WHERE subscription_id = ANY ($1::bigint[]) AND gate = $2";

/// Where a limit is applied.
pub(crate) const ADMISSION: &str = "admission";
pub(crate) const START: &str = "start";

/// Locked buckets, and the time at which they were.
pub(super) struct Buckets {
    pub(super) clock: ClockReading,
    full_at: HashMap<i64, Timestamp>,
    gate: &'static str,
}

impl Buckets {
    pub(super) async fn lock(
        transaction: &Transaction<'_>,
        gate: &'static str,
        ids: &[i64],
        held: HeldBuckets,
    ) -> DbResult<Self> {
        let lock = match held {
            HeldBuckets::PassOver => LOCK_FREE_BUCKETS,
            HeldBuckets::WaitFor => LOCK_BUCKETS,
        };
        let lock = transaction.prepare_cached(lock).await?;
        let mut rows = transaction.query(&lock, &[&ids, &gate]).await?;
        if rows.len() < ids.len() {
            let make = transaction.prepare_cached(MAKE_BUCKETS).await?;
            transaction.execute(&make, &[&ids, &gate]).await?;
            rows = transaction.query(&lock, &[&ids, &gate]).await?;
        }
        let clock = transaction.prepare_cached(CLOCK).await?;
        let asked = Instant::now();
        let now = transaction.query_one(&clock, &[]).await?.try_get::<_, SqlTime>(0)?.0;
        let clock = ClockReading::of_call(now, asked);
        let mut full_at = HashMap::with_capacity(rows.len());
        for row in &rows {
            full_at.insert(row.try_get(0)?, row.try_get::<_, SqlTime>(1)?.0);
        }
        if held == HeldBuckets::WaitFor && full_at.len() < ids.len() {
            return Err(DbError::unreadable("a rate limit was not stored"));
        }
        Ok(Self { clock, full_at, gate })
    }

    /// `None` where somebody else holds it.
    pub(super) fn full_at(&self, id: SubscriptionId) -> Option<Timestamp> {
        self.full_at.get(&id.0).copied()
    }

    pub(super) async fn store(
        &self,
        transaction: &Transaction<'_>,
        changed: &[(SubscriptionId, Timestamp)],
    ) -> DbResult<()> {
        if changed.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = changed.iter().map(|(id, _)| id.0).collect();
        let times: Vec<SqlTime> = changed.iter().map(|(_, at)| SqlTime(*at)).collect();
        let statement = transaction.prepare_cached(STORE_BUCKETS).await?;
        transaction.execute(&statement, &[&ids, &self.gate, &times]).await?;
        Ok(())
    }
}
