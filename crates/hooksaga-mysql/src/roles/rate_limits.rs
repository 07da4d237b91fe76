//! Applies rate limits at admission and at the start of attempts.
//!
//! The rows of a batch are locked in their order, and the clock is read after that: a process that waited for another one
//! must not use the time at which it began to wait. A row that is missing is inserted plainly: where another
//! process was faster, the whole call is tried again.

use crate::{
    error::{DbError, DbResult},
    time::SqlTime,
};
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::ClockReading;
use mysql_async::{Transaction, prelude::Queryable as _};
use std::{collections::BTreeMap, time::Instant};

pub(crate) const LOCK_BUCKET: &str = "/* rate_limits.lock */
SELECT full_at FROM rate_limits WHERE subscription_id = ? AND gate = ? FOR UPDATE";

/// A subscription that was never asked about has a full bucket.
const MAKE_BUCKET: &str = "/* rate_limits.make */
INSERT INTO rate_limits (subscription_id, gate, full_at) VALUES (?, ?, UTC_TIMESTAMP(6))";

const CLOCK: &str = "/* rate_limits.clock */ SELECT UTC_TIMESTAMP(6)";

pub(crate) const STORE_BUCKET: &str = "/* rate_limits.store */
UPDATE rate_limits SET full_at = ? WHERE subscription_id = ? AND gate = ?";

/// Where a limit is applied.
pub(crate) const ADMISSION: &str = "admission";
pub(crate) const START: &str = "start";

/// Locked buckets, and the time at which they were.
pub(super) struct Buckets {
    pub(super) clock: ClockReading,
    full_at: BTreeMap<SubscriptionId, Timestamp>,
    gate: &'static str,
}

impl Buckets {
    pub(super) async fn lock(
        transaction: &mut Transaction<'_>,
        gate: &'static str,
        ids: impl IntoIterator<Item = SubscriptionId>,
    ) -> DbResult<Self> {
        let mut wanted: Vec<SubscriptionId> = ids.into_iter().collect();
        wanted.sort_unstable();
        let mut found = BTreeMap::new();
        for id in wanted {
            let full_at: Option<SqlTime> = transaction.exec_first(LOCK_BUCKET, (id.0, gate)).await?;
            match full_at {
                Some(full_at) => drop(found.insert(id, full_at.0)),
                None => transaction.exec_drop(MAKE_BUCKET, (id.0, gate)).await?,
            }
        }
        let asked = Instant::now();
        let now: Option<SqlTime> = transaction.query_first(CLOCK).await?;
        let clock = ClockReading::of_call(now.ok_or_else(|| DbError::unreadable("no clock"))?.0, asked);
        Ok(Self { clock, full_at: found, gate })
    }

    pub(super) fn full_at(&self, id: SubscriptionId) -> Option<Timestamp> {
        self.full_at.get(&id).copied()
    }

    pub(super) async fn store(
        &self,
        transaction: &mut Transaction<'_>,
        id: SubscriptionId,
        full_at: Timestamp,
    ) -> DbResult<()> {
        transaction.exec_drop(STORE_BUCKET, (SqlTime(full_at), id.0, self.gate)).await?;
        Ok(())
    }
}
