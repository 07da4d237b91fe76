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
use hooksaga_store::{Facet, IndexBatch, IndexStep, List, ListIndexStore, StoreResult};
use mysql_async::{Conn, Row, TxOpts, prelude::Queryable as _};
use std::time::Duration;

/// Whoever finds it locked does nothing.
pub(crate) const PROGRESS: &str = "/* list_indexer.progress */
SELECT below, UTC_TIMESTAMP(6) FROM list_progress WHERE list = ? FOR UPDATE SKIP LOCKED";

pub(crate) const DELIVERIES: &str = "/* list_indexer.deliveries */
SELECT s.id, s.created_at, s.subscription_id, e.tenant, e.event_type
FROM webhook_delivery_sagas s FORCE INDEX (PRIMARY)
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
WHERE s.id >= ? ORDER BY s.id LIMIT ?";

pub(crate) const EVENTS: &str = "/* list_indexer.events */
SELECT id, created_at, event_type FROM events FORCE INDEX (PRIMARY) WHERE id >= ? ORDER BY id LIMIT ?";

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

pub(crate) const OLDEST_DELIVERY: &str = "/* list_indexer.oldest_delivery */
SELECT id DIV 256 FROM webhook_delivery_sagas FORCE INDEX (PRIMARY) ORDER BY id LIMIT 1";

pub(crate) const OLDEST_EVENT: &str = "/* list_indexer.oldest_event */
SELECT id DIV 256 FROM events FORCE INDEX (PRIMARY) ORDER BY id LIMIT 1";

pub(crate) const TRIM_BLOCKS: &str = "/* list_indexer.trim_blocks */
DELETE b FROM (
    SELECT facet, value, block FROM list_blocks FORCE INDEX (idx_list_block)
    WHERE facet = ? AND block < ? ORDER BY block LIMIT ?
) o STRAIGHT_JOIN list_blocks b FORCE INDEX (PRIMARY)
    ON b.facet = o.facet AND b.value = o.value AND b.block = o.block";

pub(crate) const TRIM_TIMES: &str = "/* list_indexer.trim_times */
DELETE FROM list_block_times WHERE list = ? AND block < ? ORDER BY block LIMIT ?";

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
        self.pool.run(|connection| index(connection, list, limit, settled)).await
    }

    async fn trim(&self, list: List, limit: u32) -> StoreResult<u64> {
        self.pool.run(|connection| trim(connection, list, limit)).await
    }
}

async fn index(mut connection: Conn, list: List, limit: u32, settled: Duration) -> DbResult<IndexStep> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let progress: Option<(i64, Time)> = transaction.exec_first(PROGRESS, (list.number(),)).await?;
    let Some((from, now)) = progress else {
        transaction.rollback().await?;
        return Ok(IndexStep::default());
    };
    let sql = match list {
        List::Deliveries => DELIVERIES,
        List::Events => EVENTS,
    };
    let rows: Vec<Row> = transaction.exec(sql, (from, limit)).await?;
    let mut batch = IndexBatch::default();
    for mut row in rows {
        if !add(&mut batch, list, &mut row, now.0.before(settled))? {
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
        [Field::Int(list.number().into()), Field::Int(*block), Field::At(*first), Field::At(*last)]
    });
    for document in times {
        transaction.exec_drop(INSERT_TIMES, (document,)).await?;
    }
    transaction.exec_drop(MOVE, (below, list.number())).await?;
    transaction.commit().await?;
    Ok(batch.step(limit))
}

fn add(batch: &mut IndexBatch, list: List, row: &mut Row, settled_before: Timestamp) -> DbResult<bool> {
    let values = match list {
        List::Deliveries => vec![
            (Facet::DeliverySubscription, take::<i64>(row, 2)?.to_string()),
            (Facet::DeliveryTenant, take(row, 3)?),
            (Facet::DeliveryType, take(row, 4)?),
        ],
        List::Events => vec![(Facet::EventType, take(row, 2)?)],
    };
    Ok(batch.add(take(row, 0)?, take::<Time>(row, 1)?.0, settled_before, values))
}

async fn trim(mut connection: Conn, list: List, limit: u32) -> DbResult<u64> {
    let sql = match list {
        List::Deliveries => OLDEST_DELIVERY,
        List::Events => OLDEST_EVENT,
    };
    let oldest: Option<i64> = connection.exec_first(sql, ()).await?;
    let Some(oldest) = oldest else { return Ok(0) };
    connection.exec_drop(TRIM_TIMES, (list.number(), oldest, limit)).await?;
    let mut removed = connection.affected_rows();
    for facet in Facet::of(list) {
        connection.exec_drop(TRIM_BLOCKS, (facet.number(), oldest, limit)).await?;
        removed += connection.affected_rows();
    }
    Ok(removed)
}
