//! How many subscriptions are in each state, and how many letters are open, counted over a bounded number of rows.

use crate::{
    error::{DbError, DbResult},
    roles::rows::count,
};
use hooksaga_store::Inventory;
use mysql_async::{Conn, prelude::Queryable as _};

const SUBSCRIPTIONS: &str = "/* reader.subscription_states */
SELECT CAST(COALESCE(SUM(disabled_reason IS NULL AND active AND verified), 0) AS SIGNED),
       CAST(COALESCE(SUM(disabled_reason IS NULL AND active AND NOT verified), 0) AS SIGNED),
       CAST(COALESCE(SUM(disabled_reason IS NULL AND NOT active), 0) AS SIGNED),
       CAST(COALESCE(SUM(disabled_reason IS NOT NULL), 0) AS SIGNED)
FROM (SELECT active, verified, disabled_reason FROM subscriptions FORCE INDEX (PRIMARY)
      WHERE deleted_at IS NULL ORDER BY id LIMIT ?) sub";

const OPEN_LETTERS: &str = "/* reader.open_letters */
SELECT COUNT(*)
FROM (SELECT 1 FROM letter_heads FORCE INDEX (idx_head_requeued) WHERE requeued = FALSE LIMIT ?) h";

pub(super) async fn read(mut connection: Conn) -> DbResult<Inventory> {
    let none = || DbError::unreadable("a count without a row");
    let states: Option<(i64, i64, i64, i64)> =
        connection.exec_first(SUBSCRIPTIONS, (Inventory::MOST_SUBSCRIPTIONS,)).await?;
    let (active, unverified, paused, disabled) = states.ok_or_else(none)?;
    let letters: Option<i64> = connection.exec_first(OPEN_LETTERS, (Inventory::MOST_LETTERS,)).await?;
    Ok(Inventory {
        active: count(active),
        unverified: count(unverified),
        paused: count(paused),
        disabled: count(disabled),
        open_dead_letters: count(letters.ok_or_else(none)?),
    })
}
