//! `list_indexer`: maintains the coarse index that lists are read from.
//!
//! An application may append events in a transaction of its own, which may stay open for any time: an id may be assigned now
//! and committed tomorrow. So events are read with locks that do not wait: a row that is not committed yet ends the step. An
//! id is assigned a moment before its row can be locked, so only events up to a [`Ceiling`] are read. (`created_at`
//! does not help: an application may set its session's clock.) In a Galera Cluster a row may be on another
//! node, whose locks are not visible: there events are not indexed.

use crate::{
    cluster::may_be_node,
    error::{DbError, DbResult},
    pool::RolePool,
    roles::batch::{Batch, Field, identifier},
    time::SqlTime,
};
use async_trait::async_trait;
use hooksaga_saga::Timestamp;
use hooksaga_store::{Facet, IndexBatch, IndexStep, IndexedList, ListIndexStore, StoreResult, Trimmed};
use mysql_async::{Conn, Transaction, TxOpts, prelude::Queryable as _};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A process that finds it locked does nothing.
pub(crate) const PROGRESS: &str = "/* list_indexer.progress */
SELECT below, UTC_TIMESTAMP(6) FROM list_progress WHERE list = ? FOR UPDATE SKIP LOCKED";

pub(crate) const DELIVERIES: &str = "/* list_indexer.deliveries */
SELECT s.id, s.created_at, s.subscription_id, e.tenant, e.event_type
FROM webhook_delivery_sagas s FORCE INDEX (PRIMARY)
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
WHERE s.id >= ? ORDER BY s.id LIMIT ?";

pub(crate) const NEWEST: &str = "/* list_indexer.newest */ SELECT MAX(id) FROM events";

pub(crate) const EVENTS: &str = "/* list_indexer.events */
SELECT id FROM events FORCE INDEX (PRIMARY) WHERE id >= ? ORDER BY id LIMIT ?";

pub(crate) const COMMITTED_EVENTS: &str = "/* list_indexer.committed_events */
SELECT id, created_at, tenant, event_type FROM events FORCE INDEX (PRIMARY)
WHERE id >= ? AND id < ? ORDER BY id /*!80000 FOR SHARE */ /*M!100300 LOCK IN SHARE MODE */ NOWAIT";

/// No other process writes here meanwhile: the progress is locked.
pub(crate) const INSERT_BLOCKS: &str = concat!(
    "/* list_indexer.insert_blocks */
INSERT INTO list_blocks (facet, value, block)
SELECT u.facet, CONVERT(UNHEX(u.value) USING ascii), u.block
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (facet SMALLINT PATH '$[0]', value VARCHAR(402) PATH '$[1]',
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

/// Leaves out the block that is still being filled.
pub(crate) const TRIM_LOOK: &str = "/* list_indexer.trim_look */
SELECT t.block, EXISTS (SELECT 1 FROM webhook_delivery_sagas s FORCE INDEX (PRIMARY)
                        WHERE s.id >= t.block * 256 AND s.id < (t.block + 1) * 256)
FROM list_block_times t FORCE INDEX (PRIMARY)
WHERE t.list = 1 AND t.block > ? AND t.block < (SELECT below DIV 256 FROM list_progress WHERE list = 1)
ORDER BY t.block LIMIT ?";

pub(crate) const TRIM_LOOK_EVENTS: &str = "/* list_indexer.trim_look_events */
SELECT t.block, EXISTS (SELECT 1 FROM events e FORCE INDEX (PRIMARY)
                        WHERE e.id >= t.block * 256 AND e.id < (t.block + 1) * 256)
FROM list_block_times t FORCE INDEX (PRIMARY)
WHERE t.list = 2 AND t.block > ? AND t.block < (SELECT below DIV 256 FROM list_progress WHERE list = 2)
ORDER BY t.block LIMIT ?";

pub(crate) const TRIM_BLOCKS: &str = "/* list_indexer.trim_blocks */
DELETE b FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (facet SMALLINT PATH '$[0]', block BIGINT PATH '$[1]')) AS t) u
STRAIGHT_JOIN list_blocks b FORCE INDEX (idx_list_block) ON b.facet = u.facet AND b.block = u.block";

pub(crate) const TRIM_TIMES: &str = "/* list_indexer.trim_times */
DELETE b FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (block BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN list_block_times b FORCE INDEX (PRIMARY) ON b.list = ? AND b.block = u.block";

/// The newest event of a while ago.
#[derive(Clone, Copy)]
struct Ceiling {
    id: i64,
    taken: Instant,
}

/// Which rows may be indexed.
#[derive(Clone, Copy)]
enum SettledRows {
    /// Rows that are at least this old.
    After(Duration),
    /// Rows up to this id.
    UpTo(i64),
}

pub(crate) struct ListIndexerSql {
    pool: RolePool,
    ceiling: Mutex<Option<Ceiling>>,
}

impl ListIndexerSql {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, ceiling: Mutex::default() }
    }

    fn ceiling(&self) -> MutexGuard<'_, Option<Ceiling>> {
        // Nothing panics while it is held.
        self.ceiling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn index_events(&self, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        let known = *self.ceiling();
        let Some(Ceiling { id, taken }) = known else {
            let newest: Option<Option<i64>> = self
                .pool
                .run(|mut connection| async move { Ok(connection.query_first(NEWEST).await?) })
                .await?;
            let id = newest.flatten().unwrap_or(0);
            *self.ceiling() = Some(Ceiling { id, taken: Instant::now() });
            return Ok(IndexStep::default());
        };
        if taken.elapsed() < settled {
            return Ok(IndexStep::default());
        }
        let step = self
            .pool
            .run(|connection| index(connection, IndexedList::Events, limit, SettledRows::UpTo(id)))
            .await?;
        if step.is_some_and(|step| !step.more) {
            *self.ceiling() = None;
        }
        Ok(step.unwrap_or_default())
    }
}

#[async_trait]
impl ListIndexStore for ListIndexerSql {
    async fn index(&self, list: IndexedList, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        if list == IndexedList::Events {
            return self.index_events(limit, settled).await;
        }
        let step =
            self.pool.run(|connection| index(connection, list, limit, SettledRows::After(settled))).await?;
        Ok(step.unwrap_or_default())
    }

    fn lists(&self) -> &'static [IndexedList] {
        &[IndexedList::Deliveries, IndexedList::Events]
    }

    async fn trim(&self, list: IndexedList, after: i64, limit: u32) -> StoreResult<Trimmed> {
        self.pool.run(|connection| trim(connection, list, after, limit)).await
    }
}

/// `None` if another process is working on it, or if some of the rows are not committed yet.
async fn index(
    mut connection: Conn,
    list: IndexedList,
    limit: u32,
    settled: SettledRows,
) -> DbResult<Option<IndexStep>> {
    if list == IndexedList::Events && may_be_node(&connection) {
        return Ok(None);
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let progress: Option<(i64, SqlTime)> = transaction.exec_first(PROGRESS, (list.number(),)).await?;
    let Some((from, now)) = progress else {
        transaction.rollback().await?;
        return Ok(None);
    };
    let batch = match settled {
        SettledRows::After(age) => Some(deliveries(&mut transaction, from, limit, now.0.before(age)).await?),
        SettledRows::UpTo(last) => events(&mut transaction, from, limit, last).await?,
    };
    let Some(batch) = batch else {
        transaction.rollback().await?;
        return Ok(None);
    };
    let Some(below) = batch.below else {
        transaction.rollback().await?;
        return Ok(Some(IndexStep::default()));
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
    Ok(Some(batch.step(limit)))
}

async fn deliveries(
    transaction: &mut Transaction<'_>,
    from: i64,
    limit: u32,
    settled_before: Timestamp,
) -> DbResult<IndexBatch> {
    let rows: Vec<(i64, SqlTime, i64, String, String)> = transaction.exec(DELIVERIES, (from, limit)).await?;
    let mut batch = IndexBatch::default();
    for (id, created_at, subscription, tenant, event_type) in rows {
        let values = Facet::of_delivery(subscription, tenant, event_type);
        if !batch.add(id, created_at.0, settled_before, values) {
            break;
        }
    }
    Ok(batch)
}

/// `None`, if some of them are not committed yet.
async fn events(
    transaction: &mut Transaction<'_>,
    from: i64,
    limit: u32,
    ceiling: i64,
) -> DbResult<Option<IndexBatch>> {
    let mut batch = IndexBatch::default();
    let ids: Vec<i64> = transaction.exec(EVENTS, (from, limit)).await?;
    let Some(last) = ids.into_iter().take_while(|id| *id <= ceiling).last() else { return Ok(Some(batch)) };
    let rows =
        transaction.exec::<(i64, SqlTime, String, String), _, _>(COMMITTED_EVENTS, (from, last + 1)).await;
    match rows.map_err(DbError::from) {
        Ok(rows) => {
            for (id, created_at, tenant, event_type) in rows {
                // Whatever its clock says.
                let settled_before = created_at.0.after(Duration::from_micros(1));
                batch.add(id, created_at.0, settled_before, Facet::of_event(&tenant, event_type));
            }
            Ok(Some(batch))
        }
        Err(error) if error.is_locked_out() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn trim(mut connection: Conn, list: IndexedList, after: i64, limit: u32) -> DbResult<Trimmed> {
    let sql = match list {
        IndexedList::Deliveries => TRIM_LOOK,
        IndexedList::Events => TRIM_LOOK_EVENTS,
    };
    let rows: Vec<(i64, bool)> = connection.exec(sql, (after, limit)).await?;
    let blocks: Vec<i64> = rows.iter().map(|(block, _)| *block).collect();
    let empty: Vec<i64> = rows.iter().filter(|(_, holds)| !holds).map(|(block, _)| *block).collect();
    // The block's times are deleted last: a block without them is not examined again, so an interruption would leave
    // its entries behind.
    let entries = empty.iter().flat_map(|block| Facet::of(list).iter().map(|facet| (facet.number(), *block)));
    for document in Batch::of(entries, |(facet, block)| [Field::Int(facet.into()), Field::Int(block)]) {
        connection.exec_drop(TRIM_BLOCKS, (document,)).await?;
    }
    for document in Batch::ids(empty.iter().copied()) {
        connection.exec_drop(TRIM_TIMES, (document, list.number())).await?;
    }
    Ok(Trimmed::of(&blocks, limit, empty.len() as u64))
}
