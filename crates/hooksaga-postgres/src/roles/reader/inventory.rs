//! How many subscriptions are in each state, and how many letters are open, counted over a bounded number of rows.

use crate::{error::DbResult, roles::rows::count};
use deadpool_postgres::Client;
use hooksaga_store::Inventory;

/// The open letters by a range of their index: no plan passes those that were sent again.
const READ: &str = "/* reader.inventory */
SELECT count(*) FILTER (WHERE disabled_reason IS NULL AND active AND verified),
       count(*) FILTER (WHERE disabled_reason IS NULL AND active AND NOT verified),
       count(*) FILTER (WHERE disabled_reason IS NULL AND NOT active),
       count(*) FILTER (WHERE disabled_reason IS NOT NULL),
       (SELECT count(*)
        FROM (SELECT FROM letter_heads WHERE (requeued, letter_id) < (true, -9223372036854775808)
              ORDER BY requeued, letter_id LIMIT $2) open)
FROM (SELECT active, verified, disabled_reason FROM subscriptions WHERE deleted_at IS NULL ORDER BY id LIMIT $1) sub";

pub(super) async fn read(client: &Client) -> DbResult<Inventory> {
    let statement = client.prepare_cached(READ).await?;
    let limits = (i64::from(Inventory::MOST_SUBSCRIPTIONS), i64::from(Inventory::MOST_LETTERS));
    let row = client.query_one(&statement, &[&limits.0, &limits.1]).await?;
    let number = |column: usize| -> DbResult<u64> { Ok(count(row.try_get(column)?)) };
    Ok(Inventory {
        active: number(0)?,
        unverified: number(1)?,
        paused: number(2)?,
        disabled: number(3)?,
        open_dead_letters: number(4)?,
    })
}
