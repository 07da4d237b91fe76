//! Jobs that are handed back: for a while, or until their subscription is active and verified again.

use super::held;
use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, Field},
        rows::{expect_rows, rows},
    },
    time::{SqlTime, micros},
};
use hooksaga_saga::{JobId, Timestamp};
use hooksaga_store::LeaseRef;
use mysql_async::{Conn, prelude::Queryable as _};
use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

const CLOCK: &str = "/* worker.clock */ SELECT UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND";

/// Guarded by the token; reads the given ids only.
pub(crate) const GIVE_BACK: &str = "/* worker.give_back */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    id BIGINT PATH '$[0]', token BIGINT PATH '$[1]', until DATETIME(6) PATH '$[2]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.status = 'Pending', j.lease_until = u.until, j.lease_token = NULL, j.updated_at = UTC_TIMESTAMP(6)
WHERE j.status = 'Leased' AND j.lease_token = u.token";

/// Which of the subscriptions can be delivered to.
pub(crate) const DELIVERABLE: &str = "/* worker.deliverable */
SELECT s.id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
WHERE s.deliverable";

/// The next parked jobs by their ids, and whether each can continue. No lock: the write below has its own guard.
pub(crate) const PARKED: &str = "/* worker.parked */
SELECT p.id, COALESCE(s.deliverable, FALSE)
FROM (SELECT id, subscription_id FROM webhook_delivery_jobs FORCE INDEX (idx_job_pending)
      WHERE pending_until = ? AND id > ? ORDER BY id LIMIT ?) p
LEFT JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = p.subscription_id
ORDER BY p.id";

/// Only jobs that are still parked.
pub(crate) const UNPARK: &str = "/* worker.unpark */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_jobs j FORCE INDEX (PRIMARY) ON j.id = u.id
SET j.lease_until = UTC_TIMESTAMP(6), j.updated_at = UTC_TIMESTAMP(6)
WHERE j.status = 'Pending' AND j.lease_until = ?";

pub(super) async fn hand_back(
    connection: Conn,
    leases: &[LeaseRef],
    delay: Duration,
) -> DbResult<Vec<JobId>> {
    let (mut transaction, held) = held(connection, leases).await?;
    if held.is_empty() {
        transaction.rollback().await?;
        return Ok(Vec::new());
    }
    let until = clock(&mut transaction, delay).await?;
    let given: Vec<_> = held.iter().map(|held| (held.lease, until)).collect();
    give_back(&mut transaction, &given).await?;
    transaction.commit(&[]).await?;
    Ok(given.into_iter().map(|(lease, _)| lease.job_id).collect())
}

/// If a subscription is resumed after it was read here, the next unparking notices that.
pub(super) async fn park(connection: Conn, leases: &[LeaseRef]) -> DbResult<Vec<JobId>> {
    let (mut transaction, held) = held(connection, leases).await?;
    if held.is_empty() {
        transaction.rollback().await?;
        return Ok(Vec::new());
    }
    let now = clock(&mut transaction, Duration::ZERO).await?;
    let subscriptions: BTreeSet<i64> = held.iter().map(|held| held.subscription_id).collect();
    let mut deliverable: HashSet<i64> = HashSet::new();
    for document in Batch::ids(subscriptions) {
        deliverable.extend(transaction.exec::<i64, _, _>(DELIVERABLE, (document,)).await?);
    }
    let until = |subscription| if deliverable.contains(&subscription) { now } else { Timestamp::MAX };
    let given: Vec<_> = held.iter().map(|held| (held.lease, until(held.subscription_id))).collect();
    give_back(&mut transaction, &given).await?;
    transaction.commit(&[]).await?;
    Ok(given.into_iter().map(|(lease, _)| lease.job_id).collect())
}

async fn clock(transaction: &mut Conn, delay: Duration) -> DbResult<Timestamp> {
    let at: Option<SqlTime> = transaction.exec_first(CLOCK, (micros(delay),)).await?;
    Ok(at.ok_or_else(|| DbError::unreadable("no clock"))?.0)
}

async fn give_back(transaction: &mut Conn, given: &[(LeaseRef, Timestamp)]) -> DbResult<()> {
    let mut changed = 0;
    for document in Batch::of(given, |(lease, until)| {
        [Field::Int(lease.job_id.0), Field::Int(lease.token.0), Field::At(*until)]
    }) {
        transaction.exec_drop(GIVE_BACK, (document,)).await?;
        changed += transaction.affected_rows();
    }
    expect_rows("handing back", rows(given.len()), changed)
}

/// One page of parked jobs.
pub(super) struct Unparked {
    pub(super) freed: u64,
    /// Where the next page begins, if there is one.
    pub(super) resume_after: Option<i64>,
}

/// Reads up to `limit` parked jobs after `after`. Only one statement writes, so there is no transaction around it.
pub(super) async fn unpark(mut connection: Conn, after: i64, limit: u32) -> DbResult<Unparked> {
    let end = SqlTime(Timestamp::MAX);
    let parked: Vec<(i64, bool)> = connection.exec(PARKED, (end, after, limit)).await?;
    let full = rows(parked.len()) == u64::from(limit);
    let resume_after = parked.last().map(|(id, _)| *id).filter(|_| full);
    let mut freed = 0;
    for document in Batch::ids(parked.into_iter().filter(|(_, resumed)| *resumed).map(|(id, _)| id)) {
        connection.exec_drop(UNPARK, (document, end)).await?;
        freed += connection.affected_rows();
    }
    Ok(Unparked { freed, resume_after })
}
