//! `list_indexer`: keeps the coarse index that lists are read from.
//!
//! An application may append events in a transaction of its own, however long that stays open: an id may be taken now and
//! committed tomorrow. So events are indexed up to a [`Ceiling`], below which nobody can commit any more.

use crate::{error::DbResult, pool::RolePool, roles::rows::bigint, time::micros};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_store::{Facet, IndexStep, List, ListIndexStore, StoreResult, Trimmed};
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

/// The newest event there is, and a transaction after all that have begun.
pub(crate) const CEILING: &str = "/* list_indexer.ceiling */
SELECT coalesce((SELECT max(id) FROM events), 0), pg_snapshot_xmax(pg_current_snapshot())::text::bigint";

/// Whether all transactions before `$1` have ended.
pub(crate) const ENDED: &str = "/* list_indexer.ended */
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= $1::bigint";

/// Events up to the ceiling `$2`, in one statement as above. Where these are fewer than `$1`, the ceiling is reached.
pub(crate) const INDEX_EVENTS: &str = "/* list_indexer.events */
WITH at AS MATERIALIZED (
    SELECT below FROM list_progress WHERE list = 2 FOR UPDATE SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT id / 256 AS block, id, event_type, created_at FROM events
    WHERE id >= (SELECT below FROM at) AND id <= $2 ORDER BY id LIMIT $1
), reach AS MATERIALIZED (
    SELECT CASE WHEN count(*) = $1 THEN max(id) ELSE $2 END + 1 AS below FROM seen
), blocks AS (
    INSERT INTO list_blocks (facet, value, block)
    SELECT DISTINCT 4, event_type, block FROM seen ORDER BY 2, 3
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

/// Not the block that is still being filled.
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

/// An event with an id up to `id` can only commit as long as a transaction before `transaction` is open: it was begun when the
/// id was taken. The two do not happen at the same instant, and whoever waits for another transaction may have its id and no
/// transaction yet: so the ceiling is used some time after it was taken, and not in the step that finds those transactions ended.
#[derive(Clone, Copy)]
struct Ceiling {
    id: i64,
    transaction: i64,
    taken: Instant,
    ended: bool,
}

pub(crate) struct ListIndexer {
    pool: RolePool,
    ceiling: Mutex<Option<Ceiling>>,
}

impl ListIndexer {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, ceiling: Mutex::default() }
    }

    fn ceiling(&self) -> Option<Ceiling> {
        *self.ceiling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_ceiling(&self, ceiling: Option<Ceiling>) {
        *self.ceiling.lock().unwrap_or_else(PoisonError::into_inner) = ceiling;
    }

    async fn index_events(&self, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        match self.ceiling() {
            None => {
                let (id, transaction) = self.pool.run(|client| async move { newest(&client).await }).await?;
                self.set_ceiling(Some(Ceiling { id, transaction, taken: Instant::now(), ended: false }));
                Ok(IndexStep::default())
            }
            Some(ceiling) if ceiling.taken.elapsed() < settled => Ok(IndexStep::default()),
            Some(ceiling) if !ceiling.ended => {
                let ended = self
                    .pool
                    .run(|client| async move {
                        let statement = client.prepare_cached(ENDED).await?;
                        Ok(client.query_one(&statement, &[&ceiling.transaction]).await?.try_get(0)?)
                    })
                    .await?;
                self.set_ceiling(Some(Ceiling { ended, ..ceiling }));
                Ok(IndexStep::default())
            }
            Some(ceiling) => {
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
    }
}

async fn newest(client: &Client) -> DbResult<(i64, i64)> {
    let statement = client.prepare_cached(CEILING).await?;
    let row = client.query_one(&statement, &[]).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

#[async_trait]
impl ListIndexStore for ListIndexer {
    async fn index(&self, list: List, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        if list == List::Events {
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

    fn lists(&self) -> &'static [List] {
        &[List::Deliveries, List::Events]
    }

    async fn trim(&self, list: List, after: i64, limit: u32) -> StoreResult<Trimmed> {
        self.pool.run(|client| async move { trim(&client, list, after, limit).await }).await
    }
}

async fn trim(client: &Client, list: List, after: i64, limit: u32) -> DbResult<Trimmed> {
    let look = match list {
        List::Deliveries => TRIM_LOOK,
        List::Events => TRIM_LOOK_EVENTS,
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
