//! Pages of a list, newest first, under filters that are put together at run time.
//!
//! Ids grow with time, so a page is a scan down the primary key that leaves out what does not fit. That is
//! quick where many rows fit and slow where few do; for an index it is the other way round, since its rows
//! have to be sorted. So a filter that an index can answer is tried on the newest rows first, and only if
//! these do not fill the page is the index used.
//!
//! For filters that the coarse index knows, only what it does not hold yet is read that way; the rest block by block.

use crate::{error::DbResult, roles::filter::Filter, session::Tx};
use hooksaga_saga::Timestamp;
use hooksaga_store::{
    BLOCKS_AT_ONCE, BlockFilter, BlockPager, Conditions as _, Page, PageRequest, PagerStep,
};
use rusqlite::{Row, params_from_iter};
use std::ops::Range;

const PROGRESS: &str = "/* reader.list_progress */ SELECT below FROM list_progress WHERE list = ?1";

/// How far the list is indexed, and the first and the last block that can hold something from ?2 on and before ?3.
const BETWEEN: &str = "/* reader.blocks_between */
SELECT below,
       (SELECT block FROM list_block_times WHERE list = ?1 AND (?2 IS NULL OR last_at >= ?2) ORDER BY block LIMIT 1),
       (SELECT block FROM list_block_times WHERE list = ?1 AND (?3 IS NULL OR first_at < ?3)
         ORDER BY block DESC LIMIT 1)
  FROM list_progress WHERE list = ?1";

/// How many of the newest rows are scanned before an index is used.
const RECENT: i64 = 20_000;

/// How the rows that fit are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Down the primary key: nothing else would help, or an index leads to a handful of rows.
    Direct,
    /// The newest rows first, then the planner's choice of index.
    RecentFirst,
}

/// The text before the filters; it ends with a WHERE condition, so that every filter can begin with AND.
#[derive(Clone, Copy)]
pub(super) struct Source {
    /// Up to FROM, the role's tag included.
    pub(super) select: &'static str,
    /// The tables and joins.
    pub(super) from: &'static str,
    /// The same, with the listed table NOT INDEXED.
    pub(super) from_unindexed: &'static str,
    /// The id that the list is ordered by, with its table's alias.
    pub(super) id: &'static str,
    /// Its largest value.
    pub(super) newest: &'static str,
}

/// What is listed: how its rows are found and read.
#[derive(Clone, Copy)]
pub(super) struct Listed<'f, T> {
    pub(super) source: Source,
    pub(super) access: Access,
    pub(super) filter: &'f Filter,
    pub(super) read: fn(&Row<'_>) -> rusqlite::Result<T>,
    pub(super) id: fn(&T) -> i64,
}

/// Reads one page; by the coarse index where `blocks` are given.
pub(super) fn page<T>(
    tx: &Tx<'_>,
    listed: &Listed<'_, T>,
    blocks: Option<&BlockFilter>,
    request: PageRequest,
) -> DbResult<Page<T>> {
    let items = match blocks {
        Some(blocks) => {
            let indexed = tx.prepare(PROGRESS)?.query_row([blocks.list.number()], |row| row.get(0))?;
            read(tx, listed, blocks, BlockPager::new(indexed, request))?
        }
        None => newest(tx, listed, 0..request.top(), request.limit as usize + 1)?,
    };
    Ok(Page::cut(items, request.limit, listed.id))
}

/// The same for a list whose source has an index of its own in the order of ids.
pub(super) fn page_between<T>(
    tx: &Tx<'_>,
    listed: &Listed<'_, T>,
    blocks: &BlockFilter,
    request: PageRequest,
) -> DbResult<Page<T>> {
    let time = |time: Option<Timestamp>| time.map(Timestamp::as_micros);
    let values = (blocks.list.number(), time(blocks.created_after), time(blocks.created_before));
    let ends = |row: &Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)));
    let (indexed, ends) = tx.prepare(BETWEEN)?.query_row(values, ends)?;
    let items = read(tx, listed, blocks, BlockPager::between(indexed, ends, request))?;
    Ok(Page::cut(items, request.limit, listed.id))
}

/// Rows that the coarse index does not hold, or all.
fn newest<T>(tx: &Tx<'_>, listed: &Listed<'_, T>, ids: Range<i64>, wanted: usize) -> DbResult<Vec<T>> {
    let Listed { source, access, filter, .. } = listed;
    if access == &Access::RecentFirst && !filter.is_empty() {
        let top = match ids.end {
            i64::MAX => {
                tx.prepare(source.newest)?.query_row([], |row| row.get::<_, Option<i64>>(0))?.unwrap_or(0)
            }
            end => end,
        };
        let floor = top.saturating_sub(RECENT).max(ids.start);
        let items = select(tx, listed, source.from_unindexed, floor..ids.end, wanted)?;
        if items.len() >= wanted || floor == ids.start {
            return Ok(items);
        }
    }
    select(tx, listed, source.from, ids, wanted)
}

/// The rows that the pager leads to.
fn read<T>(
    tx: &Tx<'_>,
    listed: &Listed<'_, T>,
    blocks: &BlockFilter,
    mut pager: BlockPager,
) -> DbResult<Vec<T>> {
    let mut items = Vec::new();
    while let Some(step) = pager.step()? {
        let found = match step {
            PagerStep::Span(ids, most) => newest(tx, listed, ids, most)?,
            PagerStep::Rows(ranges, most) => {
                let mut found = Vec::new();
                for ids in ranges {
                    found.extend(select(tx, listed, listed.source.from_unindexed, ids, most)?);
                }
                found
            }
            PagerStep::Blocks(next) => {
                pager.found_blocks(&next_blocks(tx, blocks, next)?);
                continue;
            }
        };
        pager.found_rows(found.len());
        items.extend(found);
    }
    Ok(items)
}

/// Blocks before `next`, newest first, that hold all that the filter asks for.
fn next_blocks(tx: &Tx<'_>, wanted: &BlockFilter, next: i64) -> DbResult<Vec<i64>> {
    let mut filter = Filter::default();
    let mut values = wanted.values.iter();
    let from = match values.next() {
        Some((facet, value)) => {
            filter.add_some("b.facet = ?", Some(facet.number()));
            filter.add_some("b.value = ?", Some(value.clone()));
            "list_blocks AS b"
        }
        None => {
            filter.add_some("b.list = ?", Some(wanted.list.number()));
            "list_block_times AS b"
        }
    };
    filter.add_some("b.block < ?", Some(next));
    for (facet, value) in values {
        filter.add_some(
            "EXISTS (SELECT 1 FROM list_blocks AS o WHERE o.block = b.block AND o.facet = ?",
            Some(facet.number()),
        );
        filter.add_some("o.value = ?)", Some(value.clone()));
    }
    if wanted.values.is_empty() {
        filter.add_some("b.last_at >= ?", wanted.created_after.map(Timestamp::as_micros));
        filter.add_some("b.first_at < ?", wanted.created_before.map(Timestamp::as_micros));
    } else if wanted.created_after.is_some() || wanted.created_before.is_some() {
        filter.add_fixed("EXISTS (SELECT 1 FROM list_block_times AS t WHERE t.block = b.block");
        filter.add_some("t.last_at >= ?", wanted.created_after.map(Timestamp::as_micros));
        filter.add_some("t.first_at < ?", wanted.created_before.map(Timestamp::as_micros));
        filter.add_some("t.list = ?)", Some(wanted.list.number()));
    }
    let sql = format!(
        "/* reader.blocks */ SELECT b.block FROM {from} WHERE true{}
          ORDER BY b.block DESC LIMIT {BLOCKS_AT_ONCE}",
        filter.sql()
    );
    let mut statement = tx.prepare(&sql)?;
    let blocks = statement.query_map(params_from_iter(filter.values()), |row| row.get(0))?;
    Ok(blocks.collect::<rusqlite::Result<_>>()?)
}

/// The first rows with these ids, newest first.
fn select<T>(
    tx: &Tx<'_>,
    listed: &Listed<'_, T>,
    from: &str,
    ids: Range<i64>,
    wanted: usize,
) -> DbResult<Vec<T>> {
    let Source { select, id, .. } = listed.source;
    let mut sql = format!("{select} FROM {from} WHERE true{} AND {id} < ?", listed.filter.sql());
    let mut values = listed.filter.values();
    values.push(ids.end.into());
    if ids.start > 0 {
        sql.push_str(&format!(" AND {id} >= ?"));
        values.push(ids.start.into());
    }
    sql.push_str(&format!(" ORDER BY {id} DESC LIMIT ?"));
    values.push((wanted as i64).into());
    let mut statement = tx.prepare(&sql)?;
    let rows = statement.query_map(params_from_iter(values), listed.read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
