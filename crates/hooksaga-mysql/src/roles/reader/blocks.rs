//! Pages of a list by its coarse index: the newest rows, which are not indexed yet, then block by block.

use super::rows_of;
use crate::{
    error::{DbError, DbResult},
    roles::filter::Filter,
    time::SqlTime,
};
use hooksaga_store::{
    BLOCKS_AT_ONCE, BlockFilter, BlockPager, Page, PageRequest, PagerStep, QUERY_LIMIT, StoreError,
    ranges_between,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::{ops::Range, time::Instant};

const PROGRESS: &str = "/* reader.list_progress */ SELECT below FROM list_progress WHERE list = ?";

/// What is listed.
pub(super) struct Listed<'a, T> {
    /// For the rows that are not indexed yet.
    pub(super) select: &'a str,
    /// For a range of ids.
    pub(super) select_range: &'a str,
    /// The column of the ids, with its table.
    pub(super) id: &'a str,
    pub(super) read: fn(Row) -> DbResult<T>,
}

/// One page of the rows in `filter`, which is queried for one range of ids at a time.
pub(super) async fn page<T>(
    connection: &mut Conn,
    listed: Listed<'_, T>,
    blocks: &BlockFilter,
    request: PageRequest,
    filter: impl Fn(Range<i64>) -> Filter,
) -> DbResult<Page<T>> {
    let begun = Instant::now();
    let indexed: Option<i64> = connection.exec_first(PROGRESS, (blocks.list.number(),)).await?;
    let (mut pager, mut rows) = (BlockPager::new(indexed.unwrap_or(0), request), Vec::new());
    let is_timed = blocks.created_after.is_some() || blocks.created_before.is_some();
    let between = match is_timed && !blocks.values.is_empty() {
        true => blocks_between(connection, blocks).await?,
        false => 0..i64::MAX,
    };
    while let Some(step) = pager.step() {
        if begun.elapsed() > QUERY_LIMIT {
            return Err(DbError::Store(StoreError::TooSlow("too many blocks".to_owned())));
        }
        let (select, ids, most) = match step {
            PagerStep::Newest(ids, most) => (listed.select, ids, most),
            PagerStep::Rows(ids, most) => (listed.select_range, ids, most),
            PagerStep::Blocks(next) => {
                pager.found_blocks(
                    &next_blocks(connection, blocks, between.start..next.min(between.end)).await?,
                );
                continue;
            }
        };
        let found = rows_of(connection, select, listed.id, &filter(ids), most).await?;
        pager.found_rows(found.len());
        rows.extend(found);
    }
    super::cut(rows, request.limit as usize, listed.read)
}

/// A page of a list whose filter has an index of its own: it reads no block, but the ids of those that can hold
/// something of the times.
pub(super) async fn page_between<T>(
    connection: &mut Conn,
    listed: Listed<'_, T>,
    blocks: &BlockFilter,
    request: PageRequest,
    filter: impl Fn(Range<i64>) -> Filter,
) -> DbResult<Page<T>> {
    let (most, mut rows) = (request.limit as usize + 1, Vec::new());
    for ids in id_ranges(connection, blocks, request.top()).await? {
        if rows.len() < most && !ids.is_empty() {
            let missing = most - rows.len();
            rows.extend(rows_of(connection, listed.select, listed.id, &filter(ids), missing).await?);
        }
    }
    super::cut(rows, request.limit as usize, listed.read)
}

/// Ids below `top` that rows of the times can have ([`ranges_between`]).
async fn id_ranges(connection: &mut Conn, wanted: &BlockFilter, top: i64) -> DbResult<[Range<i64>; 2]> {
    let list = wanted.list.number();
    let below: Option<i64> = connection.exec_first(PROGRESS, (list,)).await?;
    let below = below.unwrap_or(0);
    let (first, last) = end_blocks(connection, wanted).await?;
    Ok(ranges_between(top, below, first, last))
}

/// From the first to the last block that can hold something of the times.
async fn blocks_between(connection: &mut Conn, wanted: &BlockFilter) -> DbResult<Range<i64>> {
    Ok(match end_blocks(connection, wanted).await? {
        (Some(first), Some(last)) => first..last + 1,
        _ => 0..0,
    })
}

/// The first and the last block that can hold something of the times.
async fn end_blocks(connection: &mut Conn, wanted: &BlockFilter) -> DbResult<(Option<i64>, Option<i64>)> {
    let list = wanted.list.number();
    let (after, before) = (wanted.created_after.map(SqlTime), wanted.created_before.map(SqlTime));
    let first = end_block(connection, list, "last_at >= ", after, "block").await?;
    let last = end_block(connection, list, "first_at < ", before, "block DESC").await?;
    Ok((first, last))
}

/// The first block in this order that can hold something of a time.
async fn end_block(
    connection: &mut Conn,
    list: i16,
    condition: &'static str,
    time: Option<SqlTime>,
    order: &str,
) -> DbResult<Option<i64>> {
    let mut filter = Filter::new();
    filter.add("list = ", list);
    filter.add_some(condition, time);
    let sql = format!(
        "/* reader.end_block */ SELECT block FROM list_block_times FORCE INDEX (PRIMARY) {} ORDER BY {order} LIMIT 1",
        filter.where_clause()
    );
    Ok(connection.exec_first(sql, filter.parameters()).await?)
}

/// Blocks among these, newest first, that hold all that the filter asks for. The server looks for the time of each: so
/// they are those alone that can have it.
async fn next_blocks(connection: &mut Conn, wanted: &BlockFilter, among: Range<i64>) -> DbResult<Vec<i64>> {
    let mut filter = Filter::new();
    let mut values = wanted.values.iter();
    let from = match values.next() {
        Some((facet, value)) => {
            filter.add("b.facet = ", facet.number());
            filter.add_identifier("b.value = ", Some(value));
            "list_blocks b FORCE INDEX (PRIMARY)"
        }
        None => {
            filter.add("b.list = ", wanted.list.number());
            "list_block_times b FORCE INDEX (PRIMARY)"
        }
    };
    filter.add("b.block >= ", among.start);
    filter.add("b.block < ", among.end);
    for (facet, value) in values {
        filter.add(
            "EXISTS (SELECT 1 FROM list_blocks o WHERE o.block = b.block AND o.facet = ",
            facet.number(),
        );
        filter.add_identifier("o.value = ", Some(value));
        filter.close();
    }
    if wanted.values.is_empty() {
        filter.add_some("b.last_at >= ", wanted.created_after.map(SqlTime));
        filter.add_some("b.first_at < ", wanted.created_before.map(SqlTime));
    } else if wanted.created_after.is_some() || wanted.created_before.is_some() {
        filter.add(
            "EXISTS (SELECT 1 FROM list_block_times t WHERE t.block = b.block AND t.list = ",
            wanted.list.number(),
        );
        filter.add_some("t.last_at >= ", wanted.created_after.map(SqlTime));
        filter.add_some("t.first_at < ", wanted.created_before.map(SqlTime));
        filter.close();
    }
    let sql = format!(
        "/* reader.blocks */ SELECT b.block FROM {from} {} ORDER BY b.block DESC LIMIT {BLOCKS_AT_ONCE}",
        filter.where_clause()
    );
    Ok(connection.exec(sql, filter.parameters()).await?)
}
