//! Pages of a list by its coarse index: the newest rows, which are not indexed yet, then block by block.

use super::{cut, rows_of};
use crate::{
    error::{DbError, DbResult},
    roles::filter::Filter,
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_store::{
    BLOCKS_AT_ONCE, BlockFilter, BlockPager, Conditions as _, Page, PageRequest, PagerStep,
};
use std::{cmp::Reverse, ops::Range};
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

/// A list whose filter can be answered by blocks.
pub(super) struct Listed<'a, T, F> {
    pub(super) select: &'a str,
    /// The column of the ids, with its table.
    pub(super) id: &'a str,
    pub(super) row: fn(&Row) -> DbResult<T>,
    /// What is asked for, of a range of ids.
    pub(super) filter: F,
    pub(super) blocks: &'a BlockFilter,
}

impl<T, F: Fn(Range<i64>) -> Filter + Sync> Listed<'_, T, F> {
    /// One page, block by block.
    pub(super) async fn page(&self, client: &Client, request: PageRequest) -> DbResult<Page<T>> {
        let statement = client.prepare_cached(PROGRESS).await?;
        let indexed = client.query_one(&statement, &[&self.blocks.list.number()]).await?.try_get(0)?;
        self.read(client, BlockPager::new(indexed, request).several_at_once()).await
    }

    /// A page of a list whose filter has an index of its own.
    pub(super) async fn page_between(&self, client: &Client, request: PageRequest) -> DbResult<Page<T>> {
        let BlockFilter { list, created_after, created_before, .. } = self.blocks;
        let statement = client.prepare_cached(BETWEEN).await?;
        let (after, before) = (created_after.map(SqlTime), created_before.map(SqlTime));
        let row = client.query_one(&statement, &[&list.number(), &after, &before]).await?;
        let ends = (row.try_get(1)?, row.try_get(2)?);
        self.read(client, BlockPager::between(row.try_get(0)?, ends, request)).await
    }

    async fn read(&self, client: &Client, mut pager: BlockPager) -> DbResult<Page<T>> {
        let mut rows = Vec::new();
        while let Some(step) = pager.step()? {
            let found = match step {
                PagerStep::Span(ids, most) => {
                    rows_of(client, self.select, self.id, &(self.filter)(ids), most).await?
                }
                PagerStep::Rows(ranges, most) => self.rows_of_ranges(client, &ranges, most).await?,
                PagerStep::Blocks(next) => {
                    pager.found_blocks(&next_blocks(client, self.blocks, next).await?);
                    continue;
                }
            };
            pager.found_rows(found.len());
            rows.extend(found);
        }
        cut(&rows, pager.limit(), self.row)
    }

    /// The first rows of each of these ranges, which are ordered newest first.
    async fn rows_of_ranges(
        &self,
        client: &Client,
        ranges: &[Range<i64>],
        most: usize,
    ) -> DbResult<Vec<Row>> {
        let (Some(newest), Some(oldest)) = (ranges.first(), ranges.last()) else { return Ok(Vec::new()) };
        let mut filter = (self.filter)(oldest.start..newest.end);
        if ranges.len() == 1 {
            return rows_of(client, self.select, self.id, &filter, most).await;
        }
        let sql = of_ranges(self.select, self.id, &mut filter, ranges, most)?;
        let statement = client.prepare_cached(&sql).await?;
        let mut rows = Vec::new();
        for row in client.query(&statement, &filter.parameters()).await? {
            rows.push((row.try_get::<_, i64>(0)?, row));
        }
        // A join has no order of its own.
        rows.sort_by_key(|(id, _)| Reverse(*id));
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }
}

/// `filter`: what is asked of the rows.
fn of_ranges(
    select: &str,
    id: &str,
    filter: &mut Filter,
    ranges: &[Range<i64>],
    most: usize,
) -> DbResult<String> {
    let starts: Vec<i64> = ranges.iter().map(|ids| ids.start).collect();
    let ends: Vec<i64> = ranges.iter().map(|ids| ids.end).collect();
    let (starts, ends) = (filter.number(starts), filter.number(ends));
    let most = filter.number(i64::try_from(most).map_err(DbError::unreadable)?);
    filter.add_fixed(&format!("{id} >= r.first AND {id} < r.behind"));
    Ok(format!(
        "/* reader.rows_of_blocks */ SELECT b.* FROM unnest({starts}::bigint[], {ends}::bigint[]) AS r (first, behind) \
         CROSS JOIN LATERAL ({select} {} ORDER BY {id} DESC LIMIT {most}) b",
        filter.where_clause()
    ))
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
