//! After a restore from a backup: ids that were assigned after the backup was made must not be assigned again, since
//! receivers know them and would take new events for duplicates. If the restore left triggers out, the table that they
//! write for lists (`letter_heads`) lacks rows, which are added here.

use crate::{
    error::checked,
    options::{SessionKind, identifier},
    pool::connect_once,
    schema::repair_heads,
};
use hooksaga_store::{
    ServerOptions, StoreResult,
    migration::{ID_JUMP, MovedIds},
};
use mysql_async::prelude::Queryable as _;

const TABLES: &str = "/* restore.tables */
SELECT c.table_name, c.column_name, COALESCE(t.auto_increment, 1)
FROM information_schema.columns c
JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
WHERE c.table_schema = DATABASE() AND c.extra LIKE '%auto_increment%' ORDER BY c.table_name";

/// Repairs the table that triggers write for lists, in case the restore left the triggers out. Returns how many rows were wrong.
pub async fn repair_lists(options: ServerOptions) -> StoreResult<u64> {
    let mut connection = connect_once(SessionKind::Login.configuration(&options)?).await?;
    let rows = repair_heads(&mut connection).await?;
    checked(connection.disconnect().await)?;
    Ok(rows)
}

/// Moves the ids of every table forward, and the number of each subscription's next challenge, which is part of the
/// challenge's id.
pub async fn move_ids_forward(options: ServerOptions) -> StoreResult<Vec<MovedIds>> {
    let mut connection = connect_once(SessionKind::Login.configuration(&options)?).await?;
    let tables: Vec<(String, String, i64)> = checked(connection.query(TABLES).await)?;
    let mut moved = Vec::with_capacity(tables.len());
    for (table, column, next) in tables {
        let sql = format!("SELECT COALESCE(MAX({}), 0) FROM {}", identifier(&column), identifier(&table));
        let largest: Option<i64> = checked(connection.query_first(sql).await)?;
        // The server's own count may be a cached one, and a little old.
        let after = next.max(largest.unwrap_or(0)).saturating_add(ID_JUMP);
        let sql = format!("ALTER TABLE {} AUTO_INCREMENT = {}", identifier(&table), after.saturating_add(1));
        checked(connection.query_drop(sql).await)?;
        moved.push(MovedIds { table, after });
    }
    let challenges = "/* restore.challenges */ UPDATE subscriptions SET check_number = check_number + ? WHERE deleted_at IS NULL";
    checked(connection.exec_drop(challenges, (ID_JUMP,)).await)?;
    checked(connection.disconnect().await)?;
    Ok(moved)
}
