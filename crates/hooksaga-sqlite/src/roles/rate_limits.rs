//! Applies rate limits at admission and at the start of attempts.

use crate::{error::DbResult, session::Tx};
use hooksaga_saga::{Gate, RateLimit, SubscriptionId, Timestamp};
use rusqlite::OptionalExtension;

/// The statements of one gate: each belongs to the role that asks there.
pub(super) struct GateStatements {
    gate: Gate,
    pub(super) read: &'static str,
    pub(super) store: &'static str,
}

macro_rules! bucket {
    ($gate:expr, $store:literal, $name:literal) => {
        GateStatements {
            gate: $gate,
            read: concat!(
                "/* ",
                $store,
                ".read_bucket */
SELECT full_at FROM rate_limits WHERE subscription_id = ?1 AND gate = '",
                $name,
                "'"
            ),
            store: concat!(
                "/* ",
                $store,
                ".store_bucket */
INSERT INTO rate_limits (subscription_id, gate, full_at) VALUES (?1, '",
                $name,
                "', ?2)
ON CONFLICT (subscription_id, gate) DO UPDATE SET full_at = excluded.full_at"
            ),
        }
    };
}

pub(super) const ADMISSION: GateStatements = bucket!(Gate::Admission, "orchestrator", "admission");
pub(super) const START: GateStatements = bucket!(Gate::Start, "worker", "start");

impl GateStatements {
    pub(super) fn full_at(&self, tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<Timestamp>> {
        let found = tx.prepare(self.read)?.query_row([id.0], |row| row.get(0)).optional()?;
        Ok(found.map(Timestamp::from_micros))
    }

    /// The bucket after this many, which must be allowed, have passed.
    pub(super) fn pass(
        &self,
        tx: &Tx<'_>,
        id: SubscriptionId,
        limit: RateLimit,
        full_at: Option<Timestamp>,
        jobs: u32,
    ) -> DbResult<Timestamp> {
        let full_at = limit.pass(self.gate, full_at, jobs, tx.now).full_at;
        tx.execute(self.store, (id.0, full_at.as_micros()))?;
        Ok(full_at)
    }
}
