//! `list_indexer`: keeps the coarse index that lists are read from.
//!
//! An application may append events in a transaction of its own, however long that stays open: an id may be taken now and
//! committed tomorrow. So events are indexed up to a [`Ceiling`], below which nobody can commit any more.

use crate::{error::DbResult, pool::RolePool, roles::rows::bigint, time::micros};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_store::{Facet, IndexStep, IndexedList, ListIndexStore, StoreResult, Trimmed};
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Everything in one statement: rows below `below` are indexed, and no others are. Whoever finds the progress locked does
/// nothing.
pub(crate) const INDEX_DELIVERIES: &str = "/* list_indexer.deliveries */
WITH at AS MATERIALIZED (
    SELECT below FROM list_progress WHERE list = 1 FOR UPDATE SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT id, event_id, subscription_id, created_at FROM webhook_delivery_sagas
    WHERE id >= (SELECT below FROM at) ORDER BY id LIMIT $1
), reach AS MATERIALIZED (
    SELECT coalesce(min(id) FILTER (WHERE created_at >= now() - $2::bigint * interval '1 microsecond'),
                    max(id) + 1) AS below
    FROM seen
), settled AS MATERIALIZED (
    SELECT s.id / 256 AS block, s.subscription_id, s.created_at, e.tenant, e.event_type
    FROM seen s JOIN events e ON e.id = s.event_id
    WHERE s.id < (SELECT below FROM reach)
), blocks AS (
    INSERT INTO list_blocks (facet, value, block)
    SELECT 1, subscription_id::text, block FROM settled
    UNION SELECT 2, tenant, block FROM settled
    UNION SELECT 3, event_type, block FROM settled
    UNION SELECT 5, tenant || '/' || event_type, block FROM settled
    ORDER BY 1, 2, 3
    ON CONFLICT DO NOTHING
), times AS (
    INSERT INTO list_block_times AS t (list, block, first_at, last_at)
    SELECT 1, block, min(created_at), max(created_at) FROM settled GROUP BY block ORDER BY block
    ON CONFLICT (list, block) DO UPDATE
    SET first_at = least(t.first_at, excluded.first_at), last_at = greatest(t.last_at, excluded.last_at)
), moved AS (
    UPDATE list_progress SET below = (SELECT below FROM reach)
    WHERE list = 1 AND (SELECT below FROM reach) > below
)
SELECT count(*) FROM settled";

/// The newest event there is.
pub(crate) const CEILING: &str = "/* list_indexer.ceiling */
SELECT coalesce((SELECT max(id) FROM events), 0)";

/// The transactions that may have written events: whoever inserts one takes this lock on the table before it takes an id,
/// and keeps it until its end is visible. `$1`: of these only; NULL for all.
pub(crate) const WRITERS: &str = "/* list_indexer.writers */
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = 'events'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ($1::text[] IS NULL OR virtualtransaction = ANY ($1::text[]))";

/// Events up to the ceiling `$2`, in one statement as above. Where these are fewer than `$1`, the ceiling is reached.
pub(crate) const INDEX_EVENTS: &str = "/* list_indexer.events */
WITH at AS MATERIALIZED (
    SELECT below FROM list_progress WHERE list = 2 FOR UPDATE SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT id / 256 AS block, id, tenant, event_type, created_at FROM events
    WHERE id >= (SELECT below FROM at) AND id <= $2 ORDER BY id LIMIT $1
), reach AS MATERIALIZED (
    SELECT CASE WHEN count(*) = $1 THEN max(id) ELSE $2 END + 1 AS below FROM seen
), blocks AS (
    INSERT INTO list_blocks (facet, value, block)
    SELECT 4, event_type, block FROM seen
    UNION SELECT 6, tenant || '/' || event_type, block FROM seen
    ORDER BY 1, 2, 3
    ON CONFLICT DO NOTHING
), times AS (
    INSERT INTO list_block_times AS t (list, block, first_at, last_at)
    SELECT 2, block, min(created_at), max(created_at) FROM seen GROUP BY block ORDER BY block
    ON CONFLICT (list, block) DO UPDATE
    SET first_at = least(t.first_at, excluded.first_at), last_at = greatest(t.last_at, excluded.last_at)
), moved AS (
    UPDATE list_progress SET below = (SELECT below FROM reach)
    WHERE list = 2 AND EXISTS (SELECT FROM at) AND (SELECT below FROM reach) > below
)
SELECT count(*) FROM seen";

/// Leaves out the block that is still being filled.
pub(crate) const TRIM_LOOK: &str = "/* list_indexer.trim_look */
SELECT t.block, EXISTS (SELECT FROM webhook_delivery_sagas s
                        WHERE s.id >= t.block * 256 AND s.id < (t.block + 1) * 256)
FROM list_block_times t
WHERE t.list = 1 AND t.block > $1 AND t.block < (SELECT below / 256 FROM list_progress WHERE list = 1)
ORDER BY t.block LIMIT $2";

pub(crate) const TRIM_LOOK_EVENTS: &str = "/* list_indexer.trim_look_events */
SELECT t.block, EXISTS (SELECT FROM events e WHERE e.id >= t.block * 256 AND e.id < (t.block + 1) * 256)
FROM list_block_times t
WHERE t.list = 2 AND t.block > $1 AND t.block < (SELECT below / 256 FROM list_progress WHERE list = 2)
ORDER BY t.block LIMIT $2";

/// `$2`: the list, `$3`: its facets.
pub(crate) const TRIM_BLOCKS: &str = "/* list_indexer.trim_blocks */
WITH times AS (DELETE FROM list_block_times WHERE list = $2 AND block = ANY ($1::bigint[]))
DELETE FROM list_blocks WHERE facet = ANY ($3::smallint[]) AND block = ANY ($1::bigint[])";

/// An event with an id up to `id` can only commit as long as one of the writers is open that were open after the ceiling was
/// taken. When all of them have ended, whatever is not there by then never comes.
#[derive(Clone)]
struct Ceiling {
    id: i64,
    taken: Instant,
    /// Those that are still open; `None` until they are asked for, in a later statement than the one that read `id`.
    writers: Option<Vec<String>>,
}

pub(crate) struct ListIndexerSql {
    pool: RolePool,
    ceiling: Mutex<Option<Ceiling>>,
}

impl ListIndexerSql {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, ceiling: Mutex::default() }
    }

    fn ceiling(&self) -> Option<Ceiling> {
        self.ceiling.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_ceiling(&self, ceiling: Option<Ceiling>) {
        *self.ceiling.lock().unwrap_or_else(PoisonError::into_inner) = ceiling;
    }

    async fn index_events(&self, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        let Some(ceiling) = self.ceiling() else {
            let id = self.pool.run(|client| async move { newest(&client).await }).await?;
            self.set_ceiling(Some(Ceiling { id, taken: Instant::now(), writers: None }));
            return Ok(IndexStep::default());
        };
        if ceiling.taken.elapsed() < settled {
            return Ok(IndexStep::default());
        }
        if ceiling.writers.as_ref().is_none_or(|writers| !writers.is_empty()) {
            let known = &ceiling.writers;
            let open =
                self.pool.run(|client| async move { writers(&client, known.as_deref()).await }).await?;
            self.set_ceiling(Some(Ceiling { writers: Some(open), ..ceiling }));
            return Ok(IndexStep::default());
        }
        let rows = self
            .pool
            .run(|client| async move {
                let statement = client.prepare_cached(INDEX_EVENTS).await?;
                Ok(client.query_one(&statement, &[&bigint(limit), &ceiling.id]).await?.try_get(0)?)
            })
            .await?;
        let step = IndexStep::of(rows, limit);
        if !step.more {
            self.set_ceiling(None);
        }
        Ok(step)
    }
}

async fn newest(client: &Client) -> DbResult<i64> {
    let statement = client.prepare_cached(CEILING).await?;
    Ok(client.query_one(&statement, &[]).await?.try_get(0)?)
}

async fn writers(client: &Client, known: Option<&[String]>) -> DbResult<Vec<String>> {
    let statement = client.prepare_cached(WRITERS).await?;
    let rows = client.query(&statement, &[&known]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

#[async_trait]
impl ListIndexStore for ListIndexerSql {
    async fn index(&self, list: IndexedList, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        if list == IndexedList::Events {
            return self.index_events(limit, settled).await;
        }
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(INDEX_DELIVERIES).await?;
                let row = client.query_one(&statement, &[&bigint(limit), &micros(settled)]).await?;
                Ok(IndexStep::of(row.try_get(0)?, limit))
            })
            .await
    }

    fn lists(&self) -> &'static [IndexedList] {
        &[IndexedList::Deliveries, IndexedList::Events]
    }

    async fn trim(&self, list: IndexedList, after: i64, limit: u32) -> StoreResult<Trimmed> {
        self.pool.run(|client| async move { trim(&client, list, after, limit).await }).await
    }
}

async fn trim(client: &Client, list: IndexedList, after: i64, limit: u32) -> DbResult<Trimmed> {
    let look = match list {
        IndexedList::Deliveries => TRIM_LOOK,
        IndexedList::Events => TRIM_LOOK_EVENTS,
    };
    let statement = client.prepare_cached(look).await?;
    let (mut blocks, mut empty) = (Vec::new(), Vec::new());
    for row in client.query(&statement, &[&after, &bigint(limit)]).await? {
        let block: i64 = row.try_get(0)?;
        blocks.push(block);
        if !row.try_get::<_, bool>(1)? {
            empty.push(block);
        }
    }
    if !empty.is_empty() {
        let facets: Vec<i16> = Facet::of(list).iter().map(|facet| facet.number()).collect();
        let statement = client.prepare_cached(TRIM_BLOCKS).await?;
        client.execute(&statement, &[&empty, &list.number(), &facets]).await?;
    }
    Ok(Trimmed::of(&blocks, limit, empty.len() as u64))
}
