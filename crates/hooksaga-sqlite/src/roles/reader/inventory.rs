//! How many subscriptions are in each state, and how many letters are open, counted over a bounded number of rows.

use crate::{error::DbResult, session::Tx};
use hooksaga_store::Inventory;

const SUBSCRIPTIONS: &str = "/* reader.subscription_states */
SELECT count(*) FILTER (WHERE disabled_reason IS NULL AND active AND verified),
       count(*) FILTER (WHERE disabled_reason IS NULL AND active AND NOT verified),
       count(*) FILTER (WHERE disabled_reason IS NULL AND NOT active),
       count(*) FILTER (WHERE disabled_reason IS NOT NULL)
  FROM (SELECT active, verified, disabled_reason FROM subscriptions WHERE deleted_at IS NULL ORDER BY id LIMIT ?1)";

const OPEN_LETTERS: &str = "/* reader.open_letters */
SELECT count(*) FROM (SELECT 1 FROM letter_heads INDEXED BY idx_head_requeued WHERE requeued = 0 LIMIT ?1)";

pub(super) fn read(tx: &Tx<'_>) -> DbResult<Inventory> {
    let count = |row: &rusqlite::Row<'_>, index| {
        Ok::<u64, rusqlite::Error>(u64::try_from(row.get::<_, i64>(index)?).unwrap_or(0))
    };
    let mut inventory = tx.prepare(SUBSCRIPTIONS)?.query_row([Inventory::MOST_SUBSCRIPTIONS], |row| {
        Ok(Inventory {
            active: count(row, 0)?,
            unverified: count(row, 1)?,
            paused: count(row, 2)?,
            disabled: count(row, 3)?,
            open_dead_letters: 0,
        })
    })?;
    inventory.open_dead_letters =
        tx.prepare(OPEN_LETTERS)?.query_row([Inventory::MOST_LETTERS], |row| count(row, 0))?;
    Ok(inventory)
}
