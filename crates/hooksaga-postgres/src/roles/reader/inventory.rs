//! How many subscriptions there are in which state, and how many letters are open: counted over a bounded number of rows.

use crate::{error::DbResult, roles::rows::count};
use deadpool_postgres::Client;
use hooksaga_store::Inventory;

/// OFFSET 0: each letter's saga is looked up by its key, and its successor by that of the saga.
pub(crate) const READ: &str = "/* reader.inventory */
SELECT count(*) FILTER (WHERE disabled_reason IS NULL AND active AND verified),
       count(*) FILTER (WHERE disabled_reason IS NULL AND active AND NOT verified),
       count(*) FILTER (WHERE disabled_reason IS NULL AND NOT active),
       count(*) FILTER (WHERE disabled_reason IS NOT NULL),
       (SELECT count(*)
        FROM (SELECT saga_id FROM dead_letters ORDER BY id DESC LIMIT $2) d
        CROSS JOIN LATERAL (
            SELECT event_id, subscription_id, generation FROM webhook_delivery_sagas WHERE id = d.saga_id OFFSET 0
        ) s
        LEFT JOIN LATERAL (
            SELECT true AS found FROM webhook_delivery_sagas n
            WHERE n.event_id = s.event_id AND n.subscription_id = s.subscription_id AND n.generation = s.generation + 1
            OFFSET 0
        ) successor ON true
        WHERE successor.found IS NULL)
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
