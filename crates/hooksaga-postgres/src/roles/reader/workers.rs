//! Worker processes that are alive.

use crate::{
    error::DbResult,
    roles::rows::natural,
    time::{SqlTime, micros},
};
use deadpool_postgres::Client;
use hooksaga_store::{LivingWorker, WORKER_GONE_AFTER};

const LIST: &str = "/* reader.workers */
SELECT id, slots, version, started_at, seen_at FROM workers
WHERE abs(extract(epoch FROM now() - seen_at)) * 1000000 < $1::bigint
ORDER BY started_at, id LIMIT 1000";

pub(super) async fn list(client: &Client) -> DbResult<Vec<LivingWorker>> {
    let statement = client.prepare_cached(LIST).await?;
    let rows = client.query(&statement, &[&micros(WORKER_GONE_AFTER)]).await?;
    rows.iter()
        .map(|row| {
            Ok(LivingWorker {
                worker_id: row.try_get(0)?,
                slots: natural(row.try_get(1)?),
                version: row.try_get(2)?,
                started_at: row.try_get::<_, SqlTime>(3)?.0,
                seen_at: row.try_get::<_, SqlTime>(4)?.0,
            })
        })
        .collect()
}
