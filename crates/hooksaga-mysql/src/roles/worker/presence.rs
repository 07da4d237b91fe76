//! Heartbeats.

use crate::{error::DbResult, roles::batch::Batch};
use hooksaga_store::WorkerBeat;
use mysql_async::{Conn, prelude::Queryable as _};

const BEAT: &str = "/* worker.heartbeat */
INSERT INTO workers (id, slots, version, started_at, seen_at)
VALUES (?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE slots = VALUES(slots), version = VALUES(version), seen_at = VALUES(seen_at)";

/// Looks rows up before it removes any: a DELETE by time would wait for every row that another process is writing.
const GONE: &str =
    "/* worker.gone */ SELECT id FROM workers WHERE seen_at < UTC_TIMESTAMP(6) - INTERVAL 1 HOUR LIMIT 1000";

const FORGET: &str = "/* worker.forget */
DELETE w FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN workers w FORCE INDEX (PRIMARY) ON w.id = u.id
WHERE w.seen_at < UTC_TIMESTAMP(6) - INTERVAL 1 HOUR";

const LEAVE: &str = "/* worker.leave */ DELETE FROM workers WHERE id = ?";

pub(super) async fn heartbeat(mut connection: Conn, beat: &WorkerBeat) -> DbResult<()> {
    let slots = i32::try_from(beat.slots).unwrap_or(i32::MAX);
    connection.exec_drop(BEAT, (beat.worker_id, slots, &beat.version)).await?;
    let gone: Vec<i64> = connection.exec(GONE, ()).await?;
    for document in Batch::ids(gone) {
        connection.exec_drop(FORGET, (document,)).await?;
    }
    Ok(())
}

pub(super) async fn leave(mut connection: Conn, worker_id: i64) -> DbResult<()> {
    Ok(connection.exec_drop(LEAVE, (worker_id,)).await?)
}
