//! `list_indexer`: keeps the coarse index that lists are read from.

use crate::{
    error::DbResult,
    pool::RolePool,
    roles::{
        batch::{Batch, Field, identifier},
        rows::take,
    },
    time::Time,
};
use async_trait::async_trait;
use hooksaga_saga::Timestamp;
use hooksaga_store::{Facet, IndexBatch, IndexStep, List, ListIndexStore, StoreResult, Trimmed};
use mysql_async::{Conn, Row, TxOpts, prelude::Queryable as _};
use std::time::Duration;

/// A process that finds it locked does nothing.
pub(crate) const PROGRESS: &str = "/* list_indexer.progress */
SELECT below, UTC_TIMESTAMP(6) FROM list_progress WHERE list = ? FOR UPDATE SKIP LOCKED";

pub(crate) const DELIVERIES: &str = "/* list_indexer.deliveries */
SELECT s.id, s.created_at, s.subscription_id, e.tenant, e.event_type
FROM webhook_delivery_sagas s FORCE INDEX (PRIMARY)
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
WHERE s.id >= ? ORDER BY s.id LIMIT ?";

/// Nobody else writes here meanwhile: the progress is locked.
pub(crate) const INSERT_BLOCKS: &str = concat!(
    "/* list_indexer.insert_blocks */
INSERT INTO list_blocks (facet, value, block)
SELECT u.facet, CONVERT(UNHEX(u.value) USING ascii), u.block
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (facet SMALLINT PATH '$[0]', value VARCHAR(200) PATH '$[1]',
                                                  block BIGINT PATH '$[2]')) AS t) u
LEFT JOIN list_blocks b FORCE INDEX (PRIMARY)
    ON b.facet = u.facet AND b.value = ",
    identifier!("u.value"),
    " AND b.block = u.block
WHERE b.block IS NULL"
);

pub(crate) const INSERT_TIMES: &str = "/* list_indexer.insert_times */
INSERT INTO list_block_times (list, block, first_at, last_at)
SELECT u.list, u.block, u.first_at, u.last_at
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (list SMALLINT PATH '$[0]', block BIGINT PATH '$[1]',
    first_at DATETIME(6) PATH '$[2]', last_at DATETIME(6) PATH '$[3]')) AS t) u
ON DUPLICATE KEY UPDATE first_at = LEAST(list_block_times.first_at, VALUES(first_at)),
    last_at = GREATEST(list_block_times.last_at, VALUES(last_at))";

pub(crate) const MOVE: &str = "/* list_indexer.move */ UPDATE list_progress SET below = ? WHERE list = ?";

/// Not the block that is still being filled.
pub(crate) const TRIM_LOOK: &str = "/* list_indexer.trim_look */
SELECT t.block, EXISTS (SELECT 1 FROM webhook_delivery_sagas s FORCE INDEX (PRIMARY)
                        WHERE s.id >= t.block * 256 AND s.id < (t.block + 1) * 256)
FROM list_block_times t FORCE INDEX (PRIMARY)
WHERE t.list = 1 AND t.block > ? AND t.block < (SELECT below DIV 256 FROM list_progress WHERE list = 1)
ORDER BY t.block LIMIT ?";

pub(crate) const TRIM_BLOCKS: &str = "/* list_indexer.trim_blocks */
DELETE b FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (facet SMALLINT PATH '$[0]', block BIGINT PATH '$[1]')) AS t) u
STRAIGHT_JOIN list_blocks b FORCE INDEX (idx_list_block) ON b.facet = u.facet AND b.block = u.block";

pub(crate) const TRIM_TIMES: &str = "/* list_indexer.trim_times */
DELETE b FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (block BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN list_block_times b FORCE INDEX (PRIMARY) ON b.list = 1 AND b.block = u.block";

pub(crate) struct ListIndexer {
    pool: RolePool,
}

impl ListIndexer {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl ListIndexStore for ListIndexer {
    async fn index(&self, list: List, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        if list != List::Deliveries {
            return Ok(IndexStep::default());
        }
        self.pool.run(|connection| index(connection, limit, settled)).await
    }

    async fn trim(&self, list: List, after: i64, limit: u32) -> StoreResult<Trimmed> {
        if list != List::Deliveries {
            return Ok(Trimmed::default());
        }
        self.pool.run(|connection| trim(connection, after, limit)).await
    }
}

/// The number of the list.
const LIST: i16 = List::Deliveries.number();

async fn index(mut connection: Conn, limit: u32, settled: Duration) -> DbResult<IndexStep> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let progress: Option<(i64, Time)> = transaction.exec_first(PROGRESS, (LIST,)).await?;
    let Some((from, now)) = progress else {
        transaction.rollback().await?;
        return Ok(IndexStep::default());
    };
    let rows: Vec<Row> = transaction.exec(DELIVERIES, (from, limit)).await?;
    let mut batch = IndexBatch::default();
    for mut row in rows {
        if !add(&mut batch, &mut row, now.0.before(settled))? {
            break;
        }
    }
    let Some(below) = batch.below else {
        transaction.rollback().await?;
        return Ok(IndexStep::default());
    };
    let blocks = Batch::of(&batch.blocks, |(facet, value, block)| {
        [Field::Int((*facet).into()), Field::Text(value), Field::Int(*block)]
    });
    for document in blocks {
        transaction.exec_drop(INSERT_BLOCKS, (document,)).await?;
    }
    let times = Batch::of(&batch.times, |(block, (first, last))| {
        [Field::Int(LIST.into()), Field::Int(*block), Field::At(*first), Field::At(*last)]
    });
    for document in times {
        transaction.exec_drop(INSERT_TIMES, (document,)).await?;
    }
    transaction.exec_drop(MOVE, (below, LIST)).await?;
    transaction.commit().await?;
    Ok(batch.step(limit))
}

fn add(batch: &mut IndexBatch, row: &mut Row, settled_before: Timestamp) -> DbResult<bool> {
    let values = [
        (Facet::DeliverySubscription, take::<i64>(row, 2)?.to_string()),
        (Facet::DeliveryTenant, take(row, 3)?),
        (Facet::DeliveryType, take(row, 4)?),
    ];
    Ok(batch.add(take(row, 0)?, take::<Time>(row, 1)?.0, settled_before, values))
}

async fn trim(mut connection: Conn, after: i64, limit: u32) -> DbResult<Trimmed> {
    let rows: Vec<(i64, bool)> = connection.exec(TRIM_LOOK, (after, limit)).await?;
    let blocks: Vec<i64> = rows.iter().map(|(block, _)| *block).collect();
    let empty: Vec<i64> = rows.iter().filter(|(_, holds)| !holds).map(|(block, _)| *block).collect();
    // Whatever comes between: a block without times is not looked at again, so they go last.
    let entries = empty
        .iter()
        .flat_map(|block| Facet::of(List::Deliveries).iter().map(|facet| (facet.number(), *block)));
    for document in Batch::of(entries, |(facet, block)| [Field::Int(facet.into()), Field::Int(block)]) {
        connection.exec_drop(TRIM_BLOCKS, (document,)).await?;
    }
    for document in Batch::ids(empty.iter().copied()) {
        connection.exec_drop(TRIM_TIMES, (document,)).await?;
    }
    Ok(Trimmed::of(&blocks, limit, empty.len() as u64))
}
