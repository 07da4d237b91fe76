//! Applies rate limits at admission and at the start of attempts.

use crate::{error::DbResult, session::Tx};
use hooksaga_saga::{SubscriptionId, Timestamp};
use rusqlite::OptionalExtension;

/// The statements of one gate: each belongs to the role that asks there.
pub(super) struct GateStatements {
    pub(super) read: &'static str,
    pub(super) store: &'static str,
}

macro_rules! bucket {
    ($store:literal, $name:literal) => {
        GateStatements {
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

pub(super) const ADMISSION: GateStatements = bucket!("orchestrator", "admission");
pub(super) const START: GateStatements = bucket!("worker", "start");

impl GateStatements {
    pub(super) fn full_at(&self, tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<Timestamp>> {
        let found = tx.prepare(self.read)?.query_row([id.0], |row| row.get(0)).optional()?;
        Ok(found.map(Timestamp::from_micros))
    }

    pub(super) fn store(&self, tx: &Tx<'_>, id: SubscriptionId, full_at: Timestamp) -> DbResult<()> {
        tx.execute(self.store, (id.0, full_at.as_micros())).map(drop)
    }
}
