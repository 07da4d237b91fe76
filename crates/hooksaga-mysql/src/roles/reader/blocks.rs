//! Pages of a list by its coarse index: the newest rows, which are not indexed yet, then block by block.

use super::{cut, rows_of};
use crate::{error::DbResult, roles::filter::Filter, time::SqlTime};
use hooksaga_store::{
    BLOCKS_AT_ONCE, BlockFilter, BlockPager, Conditions as _, Page, PageRequest, PagerStep, RANGES_AT_ONCE,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::ops::Range;

const PROGRESS: &str = "/* reader.list_progress */ SELECT below FROM list_progress WHERE list = ?";

/// A list whose filter can be answered by blocks.
pub(super) struct Listed<'a, T, F> {
    /// For the rows that are not of blocks.
    pub(super) select: &'a str,
    /// For a range of ids.
    pub(super) select_range: &'a str,
    /// The column of the ids, with its table.
    pub(super) id: &'a str,
    pub(super) row: fn(Row) -> DbResult<T>,
    /// What is asked for, of a range of ids.
    pub(super) filter: F,
    pub(super) blocks: &'a BlockFilter,
}

impl<T, F: Fn(Range<i64>) -> Filter + Sync> Listed<'_, T, F> {
    /// One page, block by block.
    pub(super) async fn page(&self, connection: &mut Conn, request: PageRequest) -> DbResult<Page<T>> {
        let blocks = self.blocks;
        let pager = BlockPager::new(indexed(connection, blocks).await?, request).several_at_once();
        let is_timed = blocks.created_after.is_some() || blocks.created_before.is_some();
        let among = match is_timed && !blocks.values.is_empty() {
            true => blocks_between(connection, blocks).await?,
            false => 0..i64::MAX,
        };
        self.read(connection, pager, among).await
    }

    /// A page of a list whose filter has an index of its own.
    pub(super) async fn page_between(
        &self,
        connection: &mut Conn,
        request: PageRequest,
    ) -> DbResult<Page<T>> {
        let indexed = indexed(connection, self.blocks).await?;
        let ends = end_blocks(connection, self.blocks).await?;
        self.read(connection, BlockPager::between(indexed, ends, request), 0..0).await
    }

    /// `among`: the blocks that are looked for.
    async fn read(
        &self,
        connection: &mut Conn,
        mut pager: BlockPager,
        among: Range<i64>,
    ) -> DbResult<Page<T>> {
        let mut rows = Vec::new();
        while let Some(step) = pager.step()? {
            let (select, filter, most) = match step {
                PagerStep::Span(ids, most) => (self.select, (self.filter)(ids), most),
                PagerStep::Rows(ranges, most) => (self.select_range, self.filter_of_ranges(&ranges), most),
                PagerStep::Blocks(next) => {
                    let among = among.start..next.min(among.end);
                    pager.found_blocks(&next_blocks(connection, self.blocks, among).await?);
                    continue;
                }
            };
            let found = rows_of(connection, select, self.id, &filter, most).await?;
            pager.found_rows(found.len());
            rows.extend(found);
        }
        cut(rows, pager.limit(), self.row)
    }

    /// Of rows whose ids are in one of these ranges, which are ordered newest first. So that there are few different
    /// statements, several ranges are as many as fit, and the last one stands for those that are missing.
    fn filter_of_ranges(&self, ranges: &[Range<i64>]) -> Filter {
        let (Some(newest), Some(oldest)) = (ranges.first(), ranges.last()) else {
            return (self.filter)(0..0);
        };
        let mut filter = (self.filter)(oldest.start..newest.end);
        if ranges.len() > 1 {
            let missing = RANGES_AT_ONCE.saturating_sub(ranges.len());
            let same = std::iter::repeat_n(oldest, missing);
            filter.add_ranges(self.id, ranges.iter().chain(same).cloned());
        }
        filter
    }
}

/// Ids below it are in the index.
async fn indexed(connection: &mut Conn, wanted: &BlockFilter) -> DbResult<i64> {
    Ok(connection.exec_first(PROGRESS, (wanted.list.number(),)).await?.unwrap_or(0))
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
            filter.add_text("b.value", Some(value));
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
        filter.add_text("o.value", Some(value));
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
