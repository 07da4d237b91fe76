//! Pages of a list, newest first, under filters that are put together at run time.
//!
//! Ids grow with time, so a page is a walk down the primary key that leaves out what does not fit. That is
//! quick where many rows fit and slow where few do; for an index it is the other way round, since its rows
//! have to be sorted. So a filter that an index can answer is tried on the newest rows first, and only if
//! these do not fill the page is the index asked.

use crate::{error::DbResult, roles::filter::Filter, session::Tx};
use hooksaga_store::{Page, PageRequest};
use rusqlite::{Row, params_from_iter};

/// So many of the newest rows are looked at before an index is asked.
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

/// Reads one page.
pub(super) fn page<T>(
    tx: &Tx<'_>,
    source: Source,
    filter: &Filter,
    access: Access,
    request: PageRequest,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
    id: fn(&T) -> i64,
) -> DbResult<Page<T>> {
    let wanted = request.limit as usize;
    let mut items = Vec::new();
    if access == Access::RecentFirst && !filter.is_empty() {
        let newest = match request.before {
            Some(before) => before,
            None => {
                tx.prepare(source.newest)?.query_row([], |row| row.get::<_, Option<i64>>(0))?.unwrap_or(0)
            }
        };
        let floor = newest.saturating_sub(RECENT);
        items = select(tx, source, source.from_unindexed, filter, request, Some(floor), read)?;
    }
    if items.len() <= wanted {
        items = select(tx, source, source.from, filter, request, None, read)?;
    }
    // One more than asked for was read, to see whether there is more.
    let more = items.len() > wanted;
    items.truncate(wanted);
    let next = items.last().filter(|_| more).map(id);
    Ok(Page { items, next })
}

fn select<T>(
    tx: &Tx<'_>,
    source: Source,
    from: &str,
    filter: &Filter,
    request: PageRequest,
    floor: Option<i64>,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> DbResult<Vec<T>> {
    let Source { select, id, .. } = source;
    let mut sql = format!("{select} FROM {from} WHERE true{}", filter.sql());
    let mut values = filter.values();
    if let Some(before) = request.before {
        sql.push_str(&format!(" AND {id} < ?"));
        values.push(before.into());
    }
    if let Some(floor) = floor {
        sql.push_str(&format!(" AND {id} >= ?"));
        values.push(floor.into());
    }
    sql.push_str(&format!(" ORDER BY {id} DESC LIMIT ?"));
    values.push((i64::from(request.limit) + 1).into());
    let mut statement = tx.prepare(&sql)?;
    let rows = statement.query_map(params_from_iter(values), read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
