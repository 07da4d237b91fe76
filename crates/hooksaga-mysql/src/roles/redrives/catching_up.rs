//! Catching up: the events that a subscription missed before it was verified.

use super::{
    ended,
    missed_events::{self, scan},
};
use crate::{
    error::DbResult,
    roles::rows::take,
    time::{SqlTime, micros},
};
use hooksaga_saga::{SubscriptionId, furthest_catch_up};
use hooksaga_store::{CatchUp, CatchUpTurn, RedriveStatus, RedriveStep, StepLimits, StepOf};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::time::Duration;

/// Runs before a transaction begins: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* redrives.peek_catch_up */
SELECT EXISTS (SELECT 1 FROM catch_ups FORCE INDEX (idx_catch_up_next) WHERE next_at <= UTC_TIMESTAMP(6))
    OR EXISTS (SELECT 1 FROM catch_ups FORCE INDEX (idx_catch_up_next)
               WHERE next_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)";

pub(crate) const NEXT: &str = "/* redrives.next_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, UTC_TIMESTAMP(6)
FROM catch_ups FORCE INDEX (idx_catch_up_next)
WHERE next_at <= UTC_TIMESTAMP(6) ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

/// A time that lies further ahead than a right clock can have put it counts as due.
pub(crate) const NEXT_STRANDED: &str = "/* redrives.next_stranded_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, UTC_TIMESTAMP(6)
FROM catch_ups FORCE INDEX (idx_catch_up_next)
WHERE next_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(crate) const MOVE: &str = "/* redrives.move_catch_up */
UPDATE catch_ups
SET until = ?, after_at = ?, after_id = ?, next_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE id = ?";

/// Finds the row whose step failed: rows before it are locked by the processes that work on them, so it is the first
/// free one.
pub(super) const FAILED: &str = "/* redrives.failed_catch_up */
SELECT id FROM catch_ups FORCE INDEX (idx_catch_up_next)
WHERE next_at <= UTC_TIMESTAMP(6) ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(super) const FAILED_STRANDED: &str = "/* redrives.failed_stranded_catch_up */
SELECT id FROM catch_ups FORCE INDEX (idx_catch_up_next)
WHERE next_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(super) const PUT_OFF: &str = "/* redrives.put_off_catch_up */
UPDATE catch_ups SET next_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE id = ?";

pub(crate) const FORGET: &str = "/* redrives.forget_catch_up */ DELETE FROM catch_ups WHERE id = ?";

pub(super) async fn advance(
    mut connection: Conn,
    limits: StepLimits,
    window: Option<Duration>,
) -> DbResult<Option<RedriveStep>> {
    if connection.exec_first(PEEK, (micros(furthest_catch_up()),)).await? == Some(false) {
        return Ok(None);
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let step = step(&mut transaction, limits, window).await;
    ended(transaction, step).await
}

async fn step(
    transaction: &mut Transaction<'_>,
    limits: StepLimits,
    window: Option<Duration>,
) -> DbResult<Option<RedriveStep>> {
    let mut row: Option<Row> = transaction.exec_first(NEXT, ()).await?;
    if row.is_none() {
        row = transaction.exec_first(NEXT_STRANDED, (micros(furthest_catch_up()),)).await?;
    }
    let Some(mut row) = row else { return Ok(None) };
    let row = &mut row;
    let id: i64 = take(row, 0)?;
    let subscription = SubscriptionId(take(row, 1)?);
    let standing = CatchUp {
        since: take::<SqlTime>(row, 2)?.0,
        until: take::<Option<SqlTime>>(row, 3)?.map(|time| time.0),
        after_at: take::<Option<SqlTime>>(row, 4)?.map(|time| time.0),
        after_id: take(row, 5)?,
    };
    let now = take::<SqlTime>(row, 6)?.0;
    let mut step = RedriveStep::nothing(StepOf::CatchUp(subscription));
    // How it goes on, and when; `None`: not at all.
    let mut onward = None;
    let recipient = missed_events::read(transaction, subscription).await?;
    let is_what = recipient.as_ref().map(|recipient| (recipient.active, recipient.verified));
    let turn = CatchUpTurn::decide(is_what, (standing.since, standing.until), window, now);
    match (turn, recipient) {
        (CatchUpTurn::Scan { oldest }, Some(recipient)) => {
            let span = standing.span(oldest, now);
            let (missed, sagas) = scan(transaction, &recipient, span, now, limits).await?;
            onward = standing.onward(span, &missed.chosen).map(|standing| (standing, Duration::ZERO));
            step.take_over(sagas, &missed.chosen);
        }
        (CatchUpTurn::Later { until, wait }, _) => onward = Some((CatchUp { until, ..standing }, wait)),
        (CatchUpTurn::Scan { .. } | CatchUpTurn::Forget, _) => step.ended = Some(RedriveStatus::Cancelled),
    }
    match onward {
        Some((CatchUp { until, after_at, after_id, .. }, later)) => {
            let values = (until.map(SqlTime), after_at.map(SqlTime), after_id, micros(later), id);
            transaction.exec_drop(MOVE, values).await?;
        }
        None => transaction.exec_drop(FORGET, (id,)).await?,
    }
    Ok(Some(step))
}
