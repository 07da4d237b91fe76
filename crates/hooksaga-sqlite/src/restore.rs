//! After a restore from a backup: ids that were assigned after the backup was made must not be assigned again, since
//! receivers know them and would take new events for duplicates. If the restore left triggers out, the table that they
//! write for lists (`letter_heads`) lacks rows, which are added here.

use crate::{
    error::store_error,
    location::{Location, ServerLock},
    session::connect,
};
use hooksaga_store::{
    REPAIR_LETTER_HEADS, StoreResult,
    migration::{ID_JUMP, MovedIds},
};
use rusqlite::{Connection, TransactionBehavior};

/// Repairs the table that triggers write for lists, in case the restore left the triggers out. Returns how many rows were wrong.
pub(crate) fn repair_lists(location: &Location, _lock: &ServerLock) -> StoreResult<u64> {
    let mut connection = connect(location.path())?;
    let repair = |connection: &mut Connection| -> rusqlite::Result<usize> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut rows = 0;
        for statement in REPAIR_LETTER_HEADS {
            rows += transaction.execute(statement, [])?;
        }
        transaction.commit()?;
        Ok(rows)
    };
    Ok(repair(&mut connection).map_err(|error| store_error(&error))? as u64)
}

/// Moves the ids of every table forward, and the number of each subscription's next challenge, which is part of the
/// challenge's id. The lock shows that no server works on the file.
pub(crate) fn move_ids(location: &Location, _lock: &ServerLock) -> StoreResult<Vec<MovedIds>> {
    let mut connection = connect(location.path())?;
    move_all(&mut connection).map_err(|error| store_error(&error))
}

fn move_all(connection: &mut Connection) -> rusqlite::Result<Vec<MovedIds>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let tables: Vec<String> = transaction
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '% AUTOINCREMENT%' ORDER BY name")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut moved = Vec::with_capacity(tables.len());
    for table in tables {
        // A table that never had a row is not in sqlite_sequence, which has no key to conflict on.
        let last: i64 = transaction.query_row(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1",
            [&table],
            |row| row.get(0),
        )?;
        let after = last.saturating_add(ID_JUMP);
        transaction.execute("DELETE FROM sqlite_sequence WHERE name = ?1", [&table])?;
        transaction.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)", (&table, after))?;
        moved.push(MovedIds { table, after });
    }
    transaction.execute(
        "UPDATE subscriptions SET check_number = check_number + ?1 WHERE deleted_at IS NULL",
        [ID_JUMP],
    )?;
    transaction.commit()?;
    Ok(moved)
}
