//! Applies rate limits at admission and at the start of attempts.
//!
//! The rows of a batch are locked in their order, and the clock is read after that: a process that waited for another one
//! must not use the time at which it began to wait. Rows that are missing are inserted plainly: where another
//! process was faster, the whole call is tried again. However many rows there are, each step is one statement: others wait
//! for the locks meanwhile. Where nobody may wait, rows that others have locked are passed over.

use super::batch::{Batch, Field};
use crate::{
    error::{DbError, DbResult},
    time::SqlTime,
};
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::{ClockReading, HeldBuckets};
use mysql_async::{Transaction, prelude::Queryable as _};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Instant,
};

macro_rules! read_buckets {
    ($name:literal, $columns:literal, $lock:literal) => {
        concat!(
            "/* rate_limits.",
            $name,
            " */
SELECT ",
            $columns,
            "
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN rate_limits r FORCE INDEX (PRIMARY) ON r.subscription_id = u.id AND r.gate = ?",
            $lock
        )
    };
}
pub(crate) const LOCK_BUCKETS: &str = read_buckets!("lock", "r.subscription_id, r.full_at", " FOR UPDATE");
pub(crate) const LOCK_FREE_BUCKETS: &str =
    read_buckets!("lock_free", "r.subscription_id, r.full_at", " FOR UPDATE SKIP LOCKED");
/// Without a lock: to insert a row that somebody has locked would wait for that.
const EXISTING: &str = read_buckets!("existing", "r.subscription_id", "");

/// Subscriptions that were never asked about have full buckets.
const MAKE_BUCKETS: &str = "/* rate_limits.make */
INSERT INTO rate_limits (subscription_id, gate, full_at)
SELECT u.id, ?, UTC_TIMESTAMP(6) FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS u";

const CLOCK: &str = "/* rate_limits.clock */ SELECT UTC_TIMESTAMP(6)";

pub(crate) const STORE_BUCKETS: &str = "/* rate_limits.store */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', full_at DATETIME(6) PATH '$[1]')) AS t) u
STRAIGHT_JOIN rate_limits r FORCE INDEX (PRIMARY) ON r.subscription_id = u.id AND r.gate = ?
SET r.full_at = u.full_at";

/// Where a limit is applied.
pub(crate) const ADMISSION: &str = "admission";
pub(crate) const START: &str = "start";

/// Locked buckets, and the time at which they were.
pub(super) struct Buckets {
    pub(super) clock: ClockReading,
    /// `None`: full.
    full_at: BTreeMap<SubscriptionId, Option<Timestamp>>,
    gate: &'static str,
}

impl Buckets {
    pub(super) async fn lock(
        transaction: &mut Transaction<'_>,
        gate: &'static str,
        ids: impl IntoIterator<Item = SubscriptionId>,
        held: HeldBuckets,
    ) -> DbResult<Self> {
        let mut missing: BTreeSet<SubscriptionId> = ids.into_iter().collect();
        let mut full_at = BTreeMap::new();
        let lock = match held {
            HeldBuckets::PassOver => LOCK_FREE_BUCKETS,
            HeldBuckets::WaitFor => LOCK_BUCKETS,
        };
        for document in documents(&missing) {
            let found: Vec<(i64, SqlTime)> = transaction.exec(lock, (document, gate)).await?;
            full_at.extend(found.into_iter().map(|(id, at)| (SubscriptionId(id), Some(at.0))));
        }
        missing.retain(|id| !full_at.contains_key(id));
        if held == HeldBuckets::PassOver {
            for document in documents(&missing) {
                let held: Vec<i64> = transaction.exec(EXISTING, (document, gate)).await?;
                let held: HashSet<i64> = held.into_iter().collect();
                missing.retain(|id| !held.contains(&id.0));
            }
        }
        for document in documents(&missing) {
            transaction.exec_drop(MAKE_BUCKETS, (gate, document)).await?;
        }
        full_at.extend(missing.into_iter().map(|id| (id, None)));
        let asked = Instant::now();
        let now: Option<SqlTime> = transaction.query_first(CLOCK).await?;
        let clock = ClockReading::of_call(now.ok_or_else(|| DbError::unreadable("no clock"))?.0, asked);
        Ok(Self { clock, full_at, gate })
    }

    /// When it will be full again, if it is not. `None` where somebody else holds it.
    pub(super) fn full_at(&self, id: SubscriptionId) -> Option<Option<Timestamp>> {
        self.full_at.get(&id).copied()
    }

    pub(super) async fn store(
        &self,
        transaction: &mut Transaction<'_>,
        changed: &[(SubscriptionId, Timestamp)],
    ) -> DbResult<()> {
        for document in Batch::of(changed, |(id, at)| [Field::Int(id.0), Field::At(*at)]) {
            transaction.exec_drop(STORE_BUCKETS, (document, self.gate)).await?;
        }
        Ok(())
    }
}

fn documents(ids: &BTreeSet<SubscriptionId>) -> Vec<String> {
    Batch::ids(ids.iter().map(|id| id.0))
}
