//! Pages of a list by its coarse index: the newest rows, which are not indexed yet, then block by block.

use super::rows_of;
use crate::{
    error::{DbError, DbResult},
    roles::filter::Filter,
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_store::{
    BLOCKS_AT_ONCE, BlockFilter, BlockPager, Page, PageRequest, PagerStep, QUERY_LIMIT, StoreError,
    ranges_between,
};
use std::{ops::Range, time::Instant};
use tokio_postgres::Row;

const PROGRESS: &str = "/* reader.list_progress */ SELECT below FROM list_progress WHERE list = $1";

/// How far the list is indexed, and the first and the last block that can hold something from `$2` on and before `$3`.
const BETWEEN: &str = "/* reader.blocks_between */
SELECT below,
    (SELECT block FROM list_block_times WHERE list = $1 AND ($2::timestamptz IS NULL OR last_at >= $2)
     ORDER BY block LIMIT 1),
    (SELECT block FROM list_block_times WHERE list = $1 AND ($3::timestamptz IS NULL OR first_at < $3)
     ORDER BY block DESC LIMIT 1)
FROM list_progress WHERE list = $1";

/// What is listed.
pub(super) struct Listed<'a, T> {
    pub(super) select: &'a str,
    /// The column of the ids, with its table.
    pub(super) id: &'a str,
    pub(super) read: fn(&Row) -> DbResult<T>,
}

/// One page of the rows in `filter`, which is queried for one range of ids at a time.
pub(super) async fn page<T>(
    client: &Client,
    listed: Listed<'_, T>,
    blocks: &BlockFilter,
    request: PageRequest,
    filter: impl Fn(Range<i64>) -> Filter,
) -> DbResult<Page<T>> {
    let begun = Instant::now();
    let statement = client.prepare_cached(PROGRESS).await?;
    let indexed: i64 = client.query_one(&statement, &[&blocks.list.number()]).await?.try_get(0)?;
    let (mut pager, mut rows) = (BlockPager::new(indexed, request), Vec::new());
    while let Some(step) = pager.step() {
        if begun.elapsed() > QUERY_LIMIT {
            return Err(DbError::Store(StoreError::TooSlow("too many blocks".to_owned())));
        }
        match step {
            PagerStep::Newest(ids, most) | PagerStep::Rows(ids, most) => {
                let filter = filter(ids);
                let found = rows_of(client, listed.select, listed.id, &filter, most).await?;
                pager.found_rows(found.len());
                rows.extend(found);
            }
            PagerStep::Blocks(next) => pager.found_blocks(&next_blocks(client, blocks, next).await?),
        }
    }
    super::cut(&rows, request.limit as usize, listed.read)
}

/// A page of a list whose filter has an index of its own: it reads no block, but the ids of those that can hold
/// something of the times.
pub(super) async fn page_between<T>(
    client: &Client,
    listed: Listed<'_, T>,
    blocks: &BlockFilter,
    request: PageRequest,
    filter: impl Fn(Range<i64>) -> Filter,
) -> DbResult<Page<T>> {
    let (most, mut rows) = (request.limit as usize + 1, Vec::new());
    for ids in id_ranges(client, blocks, request.top()).await? {
        if rows.len() < most && !ids.is_empty() {
            rows.extend(rows_of(client, listed.select, listed.id, &filter(ids), most - rows.len()).await?);
        }
    }
    super::cut(&rows, request.limit as usize, listed.read)
}

/// Ids below `top` that rows of the times can have ([`ranges_between`]).
async fn id_ranges(client: &Client, wanted: &BlockFilter, top: i64) -> DbResult<[Range<i64>; 2]> {
    let statement = client.prepare_cached(BETWEEN).await?;
    let (after, before) = (wanted.created_after.map(SqlTime), wanted.created_before.map(SqlTime));
    let row = client.query_one(&statement, &[&wanted.list.number(), &after, &before]).await?;
    let (below, first, last): (i64, Option<i64>, Option<i64>) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(ranges_between(top, below, first, last))
}

/// Blocks before `next`, newest first, that hold all that the filter asks for.
async fn next_blocks(client: &Client, wanted: &BlockFilter, next: i64) -> DbResult<Vec<i64>> {
    let (sql, filter) = blocks_before(wanted, next);
    let statement = client.prepare_cached(&sql).await?;
    let rows = client.query(&statement, &filter.parameters()).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(crate) fn blocks_before(wanted: &BlockFilter, next: i64) -> (String, Filter) {
    let mut filter = Filter::new();
    let mut values = wanted.values.iter();
    let from = match values.next() {
        Some((facet, value)) => {
            filter.add("b.facet = ", facet.number());
            filter.add("b.value = ", value.clone());
            "list_blocks b"
        }
        None => {
            filter.add("b.list = ", wanted.list.number());
            "list_block_times b"
        }
    };
    filter.add("b.block < ", next);
    for (facet, value) in values {
        filter.add_fixed("EXISTS (SELECT FROM list_blocks o WHERE o.block = b.block");
        filter.add("o.facet = ", facet.number());
        filter.add_around("o.value = ", value.clone(), ")");
    }
    if wanted.values.is_empty() {
        filter.add_some("b.last_at >= ", wanted.created_after.map(SqlTime));
        filter.add_some("b.first_at < ", wanted.created_before.map(SqlTime));
    } else if wanted.created_after.is_some() || wanted.created_before.is_some() {
        filter.add_fixed("EXISTS (SELECT FROM list_block_times t WHERE t.block = b.block");
        filter.add_some("t.last_at >= ", wanted.created_after.map(SqlTime));
        filter.add_some("t.first_at < ", wanted.created_before.map(SqlTime));
        filter.add_around("t.list = ", wanted.list.number(), ")");
    }
    let sql = format!(
        "/* reader.blocks */ SELECT b.block FROM {from} {} ORDER BY b.block DESC LIMIT {BLOCKS_AT_ONCE}",
        filter.where_clause()
    );
    (sql, filter)
}
