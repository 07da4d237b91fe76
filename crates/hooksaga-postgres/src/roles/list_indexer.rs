//! `list_indexer`: keeps the coarse index that lists are read from.

use crate::{error::DbResult, pool::RolePool, roles::rows::bigint, time::micros};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_store::{Facet, IndexStep, List, ListIndexStore, StoreResult};
use std::time::Duration;

/// Everything in one statement: rows that are indexed are behind `below`, and nothing else is. Whoever finds the progress
/// locked does nothing.
macro_rules! index {
    ($name:literal, $list:literal, $columns:literal, $from:literal, $settled:literal, $values:literal) => {
        concat!(
            "/* list_indexer.",
            $name,
            " */
WITH at AS MATERIALIZED (
    SELECT below FROM list_progress WHERE list = ",
            $list,
            " FOR UPDATE SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT ",
            $columns,
            " FROM ",
            $from,
            " WHERE id >= (SELECT below FROM at) ORDER BY id LIMIT $1
), reach AS MATERIALIZED (
    SELECT coalesce(min(id) FILTER (WHERE created_at >= now() - $2::bigint * interval '1 microsecond'),
                    max(id) + 1) AS below
    FROM seen
), settled AS MATERIALIZED (
    ",
            $settled,
            " WHERE s.id < (SELECT below FROM reach)
), blocks AS (
    INSERT INTO list_blocks (facet, value, block)
    ",
            $values,
            " ORDER BY 1, 2, 3
    ON CONFLICT DO NOTHING
), times AS (
    INSERT INTO list_block_times AS t (list, block, first_at, last_at)
    SELECT ",
            $list,
            ", block, min(created_at), max(created_at) FROM settled GROUP BY block ORDER BY block
    ON CONFLICT (list, block) DO UPDATE
    SET first_at = least(t.first_at, excluded.first_at), last_at = greatest(t.last_at, excluded.last_at)
), moved AS (
    UPDATE list_progress SET below = (SELECT below FROM reach)
    WHERE list = ",
            $list,
            " AND (SELECT below FROM reach) > below
)
SELECT count(*) FROM settled"
        )
    };
}

pub(crate) const INDEX_DELIVERIES: &str = index!(
    "deliveries",
    "1",
    "id, event_id, subscription_id, created_at",
    "webhook_delivery_sagas",
    "SELECT s.id / 256 AS block, s.subscription_id, s.created_at, e.tenant, e.event_type
    FROM seen s JOIN events e ON e.id = s.event_id",
    "SELECT 1, subscription_id::text, block FROM settled
    UNION SELECT 2, tenant, block FROM settled
    UNION SELECT 3, event_type, block FROM settled"
);

pub(crate) const INDEX_EVENTS: &str = index!(
    "events",
    "2",
    "id, event_type, created_at",
    "events",
    "SELECT s.id / 256 AS block, s.event_type, s.created_at FROM seen s",
    "SELECT DISTINCT 4, event_type, block FROM settled"
);

pub(crate) const OLDEST_DELIVERY: &str = "/* list_indexer.oldest_delivery */
SELECT id / 256 FROM webhook_delivery_sagas ORDER BY id LIMIT 1";

pub(crate) const OLDEST_EVENT: &str = "/* list_indexer.oldest_event */
SELECT id / 256 FROM events ORDER BY id LIMIT 1";

pub(crate) const TRIM_BLOCKS: &str = "/* list_indexer.trim_blocks */
DELETE FROM list_blocks
WHERE ctid = ANY (ARRAY(SELECT ctid FROM list_blocks WHERE facet = $1 AND block < $2 ORDER BY block LIMIT $3))";

pub(crate) const TRIM_TIMES: &str = "/* list_indexer.trim_times */
DELETE FROM list_block_times
WHERE ctid = ANY (ARRAY(SELECT ctid FROM list_block_times WHERE list = $1 AND block < $2 ORDER BY block LIMIT $3))";

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
        let sql = match list {
            List::Deliveries => INDEX_DELIVERIES,
            List::Events => INDEX_EVENTS,
        };
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(sql).await?;
                let row = client.query_one(&statement, &[&bigint(limit), &micros(settled)]).await?;
                Ok(IndexStep::of(row.try_get(0)?, limit))
            })
            .await
    }

    async fn trim(&self, list: List, limit: u32) -> StoreResult<u64> {
        self.pool.run(|client| async move { trim(&client, list, limit).await }).await
    }
}

async fn trim(client: &Client, list: List, limit: u32) -> DbResult<u64> {
    let oldest = match list {
        List::Deliveries => OLDEST_DELIVERY,
        List::Events => OLDEST_EVENT,
    };
    let oldest = client.query_opt(&client.prepare_cached(oldest).await?, &[]).await?;
    let Some(oldest) = oldest else { return Ok(0) };
    let (oldest, limit) = (oldest.try_get::<_, i64>(0)?, bigint(limit));
    let statement = client.prepare_cached(TRIM_TIMES).await?;
    let mut removed = client.execute(&statement, &[&list.number(), &oldest, &limit]).await?;
    let statement = client.prepare_cached(TRIM_BLOCKS).await?;
    for facet in Facet::of(list) {
        removed += client.execute(&statement, &[&facet.number(), &oldest, &limit]).await?;
    }
    Ok(removed)
}
