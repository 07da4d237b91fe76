//! Pages of a list by its coarse index: the newest rows, which are not indexed yet, then block by block.

use super::{cut, rows_of};
use crate::{error::DbResult, roles::filter::Filter, time::SqlTime};
use deadpool_postgres::Client;
use hooksaga_store::{
    BLOCKS_AT_ONCE, BlockFilter, BlockPager, Conditions as _, Page, PageRequest, PagerStep,
};
use std::ops::Range;
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
        self.read(client, BlockPager::new(indexed, request)).await
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
            match step {
                PagerStep::Span(ids, most) | PagerStep::Rows(ids, most) => {
                    let found = rows_of(client, self.select, self.id, &(self.filter)(ids), most).await?;
                    pager.found_rows(found.len());
                    rows.extend(found);
                }
                PagerStep::Blocks(next) => {
                    pager.found_blocks(&next_blocks(client, self.blocks, next).await?);
                }
            }
        }
        cut(&rows, pager.limit(), self.row)
    }
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
