//! `list_indexer`: keeps the coarse index that lists are read from.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::Timestamp;
use hooksaga_store::{Facet, IndexBatch, IndexStep, IndexedList, ListIndexStore, StoreResult, Trimmed};
use std::time::Duration;

const PROGRESS: &str = "/* list_indexer.progress */ SELECT below FROM list_progress WHERE list = ?1";

const DELIVERIES: &str = "/* list_indexer.deliveries */
SELECT g.id, g.created_at, g.subscription_id, e.tenant, e.event_type
  FROM webhook_delivery_sagas AS g CROSS JOIN events AS e ON e.id = g.event_id
 WHERE g.id >= ?1 ORDER BY g.id LIMIT ?2";

const EVENTS: &str = "/* list_indexer.events */
SELECT id, created_at, tenant, event_type FROM events WHERE id >= ?1 ORDER BY id LIMIT ?2";

const INSERT_BLOCK: &str = "/* list_indexer.insert_block */
INSERT OR FAIL INTO list_blocks (facet, value, block) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

const INSERT_TIMES: &str = "/* list_indexer.insert_times */
INSERT OR FAIL INTO list_block_times (list, block, first_at, last_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (list, block) DO UPDATE
   SET first_at = min(first_at, excluded.first_at), last_at = max(last_at, excluded.last_at)";

const MOVE: &str = "/* list_indexer.move */
UPDATE OR FAIL list_progress SET below = ?3 WHERE list = ?1 AND below = ?2";

/// Leaves out the block that is still being filled.
const TRIM_DELIVERIES: &str = "/* list_indexer.trim_deliveries */
SELECT t.block, EXISTS (SELECT 1 FROM webhook_delivery_sagas AS g
                         WHERE g.id >= t.block * 256 AND g.id < (t.block + 1) * 256)
  FROM list_block_times AS t
 WHERE t.list = 1 AND t.block > ?1 AND t.block < (SELECT below / 256 FROM list_progress WHERE list = 1)
 ORDER BY t.block LIMIT ?2";

const TRIM_EVENTS: &str = "/* list_indexer.trim_events */
SELECT t.block, EXISTS (SELECT 1 FROM events AS e WHERE e.id >= t.block * 256 AND e.id < (t.block + 1) * 256)
  FROM list_block_times AS t
 WHERE t.list = 2 AND t.block > ?1 AND t.block < (SELECT below / 256 FROM list_progress WHERE list = 2)
 ORDER BY t.block LIMIT ?2";

const TRIM_BLOCKS: &str = "/* list_indexer.trim_blocks */
DELETE FROM list_blocks INDEXED BY idx_list_block WHERE facet = ?1 AND block = ?2";

const TRIM_TIMES: &str = "/* list_indexer.trim_times */
DELETE FROM list_block_times WHERE list = ?1 AND block = ?2";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[
    PROGRESS,
    DELIVERIES,
    EVENTS,
    INSERT_BLOCK,
    INSERT_TIMES,
    MOVE,
    TRIM_DELIVERIES,
    TRIM_EVENTS,
    TRIM_BLOCKS,
    TRIM_TIMES,
];

pub(crate) struct ListIndexerSql(pub(crate) RoleHandle);

#[async_trait]
impl ListIndexStore for ListIndexerSql {
    /// Reads beside the writer, which then has only the few values of each block to write.
    async fn index(&self, list: IndexedList, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        let (from, batch) = self.0.read(move |tx| read(tx, list, limit, settled)).await?;
        let step = batch.step(limit);
        let Some(below) = batch.below else { return Ok(step) };
        self.0.write(move |tx| write(tx, list, &batch, from, below)).await?;
        Ok(step)
    }

    fn lists(&self) -> &'static [IndexedList] {
        &[IndexedList::Deliveries, IndexedList::Events]
    }

    async fn trim(&self, list: IndexedList, after: i64, limit: u32) -> StoreResult<Trimmed> {
        let looked_at = self.0.read(move |tx| read_blocks(tx, list, after, limit)).await?;
        let blocks: Vec<i64> = looked_at.iter().map(|(block, _)| *block).collect();
        let empty: Vec<i64> = looked_at.iter().filter(|(_, holds)| !holds).map(|(block, _)| *block).collect();
        let step = Trimmed::of(&blocks, limit, empty.len() as u64);
        if !empty.is_empty() {
            self.0.write(move |tx| forget(tx, list, &empty)).await?;
        }
        Ok(step)
    }
}

fn read(tx: &Tx<'_>, list: IndexedList, limit: u32, settled: Duration) -> DbResult<(i64, IndexBatch)> {
    let from: i64 = tx.prepare(PROGRESS)?.query_row([list.number()], |row| row.get(0))?;
    let settled_before = tx.now.before(settled);
    let mut batch = IndexBatch::default();
    let sql = match list {
        IndexedList::Deliveries => DELIVERIES,
        IndexedList::Events => EVENTS,
    };
    let mut statement = tx.prepare(sql)?;
    let mut found = statement.query((from, limit))?;
    while let Some(row) = found.next()? {
        let values = match list {
            IndexedList::Deliveries => Facet::of_delivery(row.get(2)?, row.get(3)?, row.get(4)?).to_vec(),
            IndexedList::Events => Facet::of_event(&row.get::<_, String>(2)?, row.get(3)?).to_vec(),
        };
        if !batch.add(row.get(0)?, rows::time(row, 1)?, settled_before, values) {
            break;
        }
    }
    Ok((from, batch))
}

fn write(tx: &Tx<'_>, list: IndexedList, batch: &IndexBatch, from: i64, below: i64) -> DbResult<()> {
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

/// Blocks, and whether they hold anything.
fn read_blocks(tx: &Tx<'_>, list: IndexedList, after: i64, limit: u32) -> DbResult<Vec<(i64, bool)>> {
    let sql = match list {
        IndexedList::Deliveries => TRIM_DELIVERIES,
        IndexedList::Events => TRIM_EVENTS,
    };
    rows::all(tx, sql, (after, limit), |row| Ok((row.get(0)?, row.get(1)?)))
}

fn forget(tx: &Tx<'_>, list: IndexedList, empty: &[i64]) -> DbResult<()> {
    let (mut blocks, mut times) = (tx.prepare(TRIM_BLOCKS)?, tx.prepare(TRIM_TIMES)?);
    for block in empty {
        for facet in Facet::of(list) {
            blocks.execute((facet.number(), block))?;
        }
        times.execute((list.number(), block))?;
    }
    Ok(())
}
