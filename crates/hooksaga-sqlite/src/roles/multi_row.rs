//! Several rows in one statement: beginning and ending a statement costs as much as a row.
//!
//! Each write has two texts, one for [`SEVERAL`] rows and one for a single row, which takes what is left over. In both, the
//! parameters that all rows share come first.

use crate::{error::DbResult, session::Tx};
use rusqlite::{OptionalExtension, params_from_iter};

/// How many rows [`several!`] repeats.
pub(super) const SEVERAL: usize = 8;

macro_rules! several {
    ($row:literal) => {
        concat!($row, ", ", $row, ", ", $row, ", ", $row, ", ", $row, ", ", $row, ", ", $row, ", ", $row)
    };
}
pub(super) use several;

/// A write that names its rows.
#[derive(Clone, Copy)]
pub(super) struct Write {
    pub(super) several: &'static str,
    pub(super) one: &'static str,
}

impl Write {
    /// Returns how many rows were written.
    pub(super) fn run<const N: usize>(
        self,
        tx: &Tx<'_>,
        shared: &[i64],
        rows: &[[i64; N]],
    ) -> DbResult<usize> {
        let mut written = 0;
        let (chunks, left) = rows.as_chunks::<SEVERAL>();
        if !chunks.is_empty() {
            let mut several = tx.prepare(self.several)?;
            for chunk in chunks {
                written += several.execute(params_from_iter(shared.iter().chain(chunk.as_flattened())))?;
            }
        }
        if !left.is_empty() {
            let mut one = tx.prepare(self.one)?;
            for row in left {
                written += one.execute(params_from_iter(shared.iter().chain(row)))?;
            }
        }
        Ok(written)
    }
}

/// An insert that skips rows that exist already, into a table whose ids only grow. `find` is the id of a row by the
/// first two of its values.
#[derive(Clone, Copy)]
pub(super) struct InsertMissing {
    pub(super) write: Write,
    pub(super) find: &'static str,
}

impl InsertMissing {
    /// Returns the id of each row that is new.
    pub(super) fn run<const N: usize>(
        self,
        tx: &Tx<'_>,
        shared: i64,
        rows: &[[i64; N]],
    ) -> DbResult<Vec<Option<i64>>> {
        let mut ids = Vec::with_capacity(rows.len());
        let (chunks, left) = rows.as_chunks::<SEVERAL>();
        for chunk in chunks {
            let new = self.write.run(tx, &[shared], chunk)?;
            if new == SEVERAL {
                // Nobody else writes: they were numbered one after the other.
                let last = tx.last_id();
                ids.extend((0..SEVERAL as i64).rev().map(|before| Some(last - before)));
            } else {
                ids.extend(self.newest(tx, chunk, new)?);
            }
        }
        for row in left {
            let new = self.write.run(tx, &[shared], std::slice::from_ref(row))?;
            ids.push((new > 0).then(|| tx.last_id()));
        }
        Ok(ids)
    }

    /// The ids of these rows. `new` of them are new and have the largest ids.
    fn newest<const N: usize>(
        self,
        tx: &Tx<'_>,
        rows: &[[i64; N]],
        new: usize,
    ) -> DbResult<Vec<Option<i64>>> {
        let mut find = tx.prepare(self.find)?;
        let mut ids: Vec<Option<i64>> = Vec::with_capacity(rows.len());
        for row in rows {
            ids.push(find.query_row(params_from_iter(&row[..2]), |row| row.get(0)).optional()?);
        }
        let mut sorted: Vec<i64> = ids.iter().copied().flatten().collect();
        sorted.sort_unstable();
        let old = sorted.len().saturating_sub(new);
        Ok(ids.into_iter().map(|id| id.filter(|id| sorted[old..].contains(id))).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        engine::{Engine, RoleHandle},
        location::Location,
        readers::ReadLanes,
        roles::router::INSERT_SAGAS,
        schema,
    };
    use hooksaga_store::Role;
    use std::sync::Arc;

    #[tokio::test]
    async fn each_new_row_is_told_by_its_id_and_no_other() {
        let folder = std::env::temp_dir().join(format!("hooksaga-several-{}", std::process::id()));
        let location = Location::check(&folder.join("x.db")).unwrap();
        let lock = location.lock().unwrap();
        schema::migrate(&location, &lock).unwrap();
        let engine = Arc::new(Engine::start(location.path(), ReadLanes::TOOL, Some(lock)).unwrap());
        let router = RoleHandle::new(&engine, Role::RouterWorker);
        let insert = async |events: std::ops::Range<i64>| {
            let rows: Vec<_> = events.map(|event| [event, 1, 5]).collect();
            router
                .write(move |tx| {
                    let ids = INSERT_SAGAS.run(tx, 1_000, &rows)?;
                    let mut find = tx.prepare(INSERT_SAGAS.find)?;
                    let found: Vec<i64> = rows
                        .iter()
                        .map(|row| find.query_row([row[0], row[1]], |row| row.get(0)))
                        .collect::<rusqlite::Result<_>>()?;
                    Ok((ids, found))
                })
                .await
                .unwrap()
        };
        let (ids, found) = insert(0..10).await;
        assert_eq!(ids, found.into_iter().map(Some).collect::<Vec<_>>());
        // Six of the first eight are there, and neither of the two that are left over.
        let (ids, found) = insert(4..14).await;
        let new = found.into_iter().enumerate().map(|(place, id)| (place >= 6).then_some(id));
        assert_eq!(ids, new.collect::<Vec<_>>());
        assert_eq!(insert(0..14).await.0, [None; 14]);
        drop((router, engine));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
