//! `list_indexer`: keeps the coarse index that lists are read from.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::Timestamp;
use hooksaga_store::{Facet, IndexBatch, IndexStep, List, ListIndexStore, StoreResult};
use std::time::Duration;

const PROGRESS: &str = "/* list_indexer: progress */ SELECT below FROM list_progress WHERE list = ?1";

const DELIVERIES: &str = "/* list_indexer: deliveries */
SELECT g.id, g.created_at, g.subscription_id, e.tenant, e.event_type
  FROM webhook_delivery_sagas AS g CROSS JOIN events AS e ON e.id = g.event_id
 WHERE g.id >= ?1 ORDER BY g.id LIMIT ?2";

const EVENTS: &str = "/* list_indexer: events */
SELECT id, created_at, event_type FROM events WHERE id >= ?1 ORDER BY id LIMIT ?2";

const INSERT_BLOCK: &str = "/* list_indexer: insert_block */
INSERT OR FAIL INTO list_blocks (facet, value, block) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

const INSERT_TIMES: &str = "/* list_indexer: insert_times */
INSERT OR FAIL INTO list_block_times (list, block, first_at, last_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (list, block) DO UPDATE
   SET first_at = min(first_at, excluded.first_at), last_at = max(last_at, excluded.last_at)";

const MOVE: &str = "/* list_indexer: move */
UPDATE OR FAIL list_progress SET below = ?3 WHERE list = ?1 AND below = ?2";

const OLDEST_DELIVERY: &str = "/* list_indexer: oldest_delivery */
SELECT id / 256 FROM webhook_delivery_sagas ORDER BY id LIMIT 1";

const OLDEST_EVENT: &str = "/* list_indexer: oldest_event */
SELECT id / 256 FROM events ORDER BY id LIMIT 1";

const TRIM_BLOCKS: &str = "/* list_indexer: trim_blocks */
DELETE FROM list_blocks WHERE (facet, value, block) IN
    (SELECT facet, value, block FROM list_blocks INDEXED BY idx_list_block
      WHERE facet = ?1 AND block < ?2 ORDER BY block LIMIT ?3)";

const TRIM_TIMES: &str = "/* list_indexer: trim_times */
DELETE FROM list_block_times WHERE list = ?1 AND block IN
    (SELECT block FROM list_block_times WHERE list = ?1 AND block < ?2 ORDER BY block LIMIT ?3)";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] =
    &[PROGRESS, DELIVERIES, EVENTS, INSERT_BLOCK, INSERT_TIMES, MOVE, TRIM_BLOCKS];

pub(crate) struct ListIndexer(pub(crate) RoleHandle);

#[async_trait]
impl ListIndexStore for ListIndexer {
    /// Reads beside the writer, which then has only the few values of each block to write.
    async fn index(&self, list: List, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        let (from, batch) = self.0.read(move |tx| read(tx, list, limit, settled)).await?;
        let step = batch.step(limit);
        let Some(below) = batch.below else { return Ok(step) };
        self.0.write(move |tx| write(tx, list, &batch, from, below)).await?;
        Ok(step)
    }

    async fn trim(&self, list: List, limit: u32) -> StoreResult<u64> {
        self.0.write(move |tx| trim(tx, list, limit)).await
    }
}

fn read(tx: &Tx<'_>, list: List, limit: u32, settled: Duration) -> DbResult<(i64, IndexBatch)> {
    let from: i64 = tx.prepare(PROGRESS)?.query_row([list.number()], |row| row.get(0))?;
    let settled_before = tx.now.before(settled);
    let mut batch = IndexBatch::default();
    let sql = match list {
        List::Deliveries => DELIVERIES,
        List::Events => EVENTS,
    };
    let mut statement = tx.prepare(sql)?;
    let mut found = statement.query((from, limit))?;
    while let Some(row) = found.next()? {
        let values = match list {
            List::Deliveries => vec![
                (Facet::DeliverySubscription, row.get::<_, i64>(2)?.to_string()),
                (Facet::DeliveryTenant, row.get(3)?),
                (Facet::DeliveryType, row.get(4)?),
            ],
            List::Events => vec![(Facet::EventType, row.get(2)?)],
        };
        if !batch.add(row.get(0)?, rows::time(row, 1)?, settled_before, values) {
            break;
        }
    }
    Ok((from, batch))
}

fn write(tx: &Tx<'_>, list: List, batch: &IndexBatch, from: i64, below: i64) -> DbResult<()> {
    if tx.execute(MOVE, (list.number(), from, below))? == 0 {
        // Another copy of this component was quicker.
        return Ok(());
    }
    let mut insert = tx.prepare(INSERT_BLOCK)?;
    for (facet, value, block) in &batch.blocks {
        insert.execute((facet, value, block))?;
    }
    let mut insert = tx.prepare(INSERT_TIMES)?;
    for (block, (first, last)) in &batch.times {
        insert.execute((list.number(), block, Timestamp::as_micros(*first), Timestamp::as_micros(*last)))?;
    }
    Ok(())
}

fn trim(tx: &Tx<'_>, list: List, limit: u32) -> DbResult<u64> {
    let sql = match list {
        List::Deliveries => OLDEST_DELIVERY,
        List::Events => OLDEST_EVENT,
    };
    let oldest: Vec<i64> = rows::all(tx, sql, [], |row| row.get(0))?;
    let Some(oldest) = oldest.first() else { return Ok(0) };
    let mut removed = tx.execute(TRIM_TIMES, (list.number(), oldest, limit))?;
    for facet in Facet::of(list) {
        removed += tx.execute(TRIM_BLOCKS, (facet.number(), oldest, limit))?;
    }
    Ok(removed as u64)
}
