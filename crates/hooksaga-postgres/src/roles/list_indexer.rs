//! `list_indexer`: keeps the coarse index that lists are read from.

use crate::{error::DbResult, pool::RolePool, roles::rows::bigint, time::micros};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_store::{IndexStep, List, ListIndexStore, StoreResult, Trimmed};
use std::time::Duration;

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

/// Not the block that is still being filled.
pub(crate) const TRIM_LOOK: &str = "/* list_indexer.trim_look */
SELECT t.block, EXISTS (SELECT FROM webhook_delivery_sagas s
                        WHERE s.id >= t.block * 256 AND s.id < (t.block + 1) * 256)
FROM list_block_times t
WHERE t.list = 1 AND t.block > $1 AND t.block < (SELECT below / 256 FROM list_progress WHERE list = 1)
ORDER BY t.block LIMIT $2";

pub(crate) const TRIM_BLOCKS: &str = "/* list_indexer.trim_blocks */
WITH times AS (DELETE FROM list_block_times WHERE list = 1 AND block = ANY ($1::bigint[]))
DELETE FROM list_blocks WHERE facet IN (1, 2, 3) AND block = ANY ($1::bigint[])";

pub(crate) struct ListIndexer(pub(crate) RolePool);

#[async_trait]
impl ListIndexStore for ListIndexer {
    async fn index(&self, list: List, limit: u32, settled: Duration) -> StoreResult<IndexStep> {
        if list != List::Deliveries {
            return Ok(IndexStep::default());
        }
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(INDEX_DELIVERIES).await?;
                let row = client.query_one(&statement, &[&bigint(limit), &micros(settled)]).await?;
                Ok(IndexStep::of(row.try_get(0)?, limit))
            })
            .await
    }

    async fn trim(&self, list: List, after: i64, limit: u32) -> StoreResult<Trimmed> {
        if list != List::Deliveries {
            return Ok(Trimmed::default());
        }
        self.0.run(|client| async move { trim(&client, after, limit).await }).await
    }
}

async fn trim(client: &Client, after: i64, limit: u32) -> DbResult<Trimmed> {
    let statement = client.prepare_cached(TRIM_LOOK).await?;
    let (mut blocks, mut empty) = (Vec::new(), Vec::new());
    for row in client.query(&statement, &[&after, &bigint(limit)]).await? {
        let block: i64 = row.try_get(0)?;
        blocks.push(block);
        if !row.try_get::<_, bool>(1)? {
            empty.push(block);
        }
    }
    if !empty.is_empty() {
        let statement = client.prepare_cached(TRIM_BLOCKS).await?;
        client.execute(&statement, &[&empty]).await?;
    }
    Ok(Trimmed::of(&blocks, limit, empty.len() as u64))
}
