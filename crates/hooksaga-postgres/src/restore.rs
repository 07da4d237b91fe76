//! After a restore from a backup: ids that were assigned after the backup was made must not be assigned again, since
//! receivers know them and would take new events for duplicates. If the restore left triggers out, the table that they
//! write for lists (`letter_heads`) lacks rows, which are added here.

use crate::{error::checked, options::SessionKind, pool::connect_once};
use hooksaga_store::{
    REPAIR_LETTER_HEADS, ServerOptions, StoreResult,
    migration::{ID_JUMP, MovedIds},
};

/// Every identity column of the schema's tables, with its sequence.
const SEQUENCES: &str = "/* restore.sequences */
SELECT c.relname::text, quote_ident(c.relname), quote_ident(a.attname),
       pg_get_serial_sequence(quote_ident(c.relname), a.attname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('schema_migrations'))
  AND c.relkind = 'r' AND a.attidentity <> '' ORDER BY c.relname";

/// Repairs the table that triggers write for lists, in case the restore left the triggers out. Returns how many rows were wrong.
pub async fn repair_lists(options: ServerOptions) -> StoreResult<u64> {
    let client = connect_once(&SessionKind::Login.configuration(&options)?).await?;
    let mut rows = 0;
    for statement in REPAIR_LETTER_HEADS {
        rows += checked(client.execute(statement, &[]).await)?;
    }
    Ok(rows)
}

/// Moves the ids of every table forward, and the number of each subscription's next challenge, which is part of the
/// challenge's id.
pub async fn move_ids_forward(options: ServerOptions) -> StoreResult<Vec<MovedIds>> {
    let client = connect_once(&SessionKind::Login.configuration(&options)?).await?;
    let mut moved = Vec::new();
    for row in checked(client.query(SEQUENCES, &[]).await)? {
        let table: String = checked(row.try_get(0))?;
        let (quoted, column, sequence): (String, String, String) =
            (checked(row.try_get(1))?, checked(row.try_get(2))?, checked(row.try_get(3))?);
        // What a session has drawn in advance counts as given out; so does an id that was written by hand.
        let sql = format!(
            "SELECT setval($1::text::regclass, greatest(nextval($1::text::regclass), \
                    coalesce((SELECT max({column}) FROM {quoted}), 0)) + $2)"
        );
        let set = checked(client.query_one(&sql, &[&sequence, &ID_JUMP]).await)?;
        moved.push(MovedIds { table, after: checked(set.try_get(0))? });
    }
    let challenges = "/* restore.challenges */ UPDATE subscriptions SET check_number = check_number + $1 WHERE deleted_at IS NULL";
    checked(client.execute(challenges, &[&ID_JUMP]).await)?;
    Ok(moved)
}
