//! Catching up: the events that a subscription missed before it was verified.

use super::missed_events::{self, scan};
use crate::{
    error::DbResult,
    time::{SqlTime, micros},
};
use deadpool_postgres::Transaction;
use hooksaga_saga::{SubscriptionId, furthest_catch_up};
use hooksaga_store::{CatchUp, CatchUpTurn, RedriveStatus, RedriveStep, StepLimits, StepOf};
use std::time::Duration;

pub(crate) const NEXT: &str = "/* redrives.next_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, now()
FROM catch_ups WHERE next_at <= now() ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

/// A time that lies further ahead than a right clock can have put it counts as due.
pub(crate) const NEXT_STRANDED: &str = "/* redrives.next_stranded_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, now()
FROM catch_ups WHERE next_at > now() + $1::bigint * interval '1 microsecond'
ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(crate) const MOVE: &str = "/* redrives.move_catch_up */
UPDATE catch_ups
SET until = $2, after_at = $3, after_id = $4, next_at = now() + $5::bigint * interval '1 microsecond'
WHERE id = $1";

pub(super) const PUT_OFF: &str = "/* redrives.put_off_catch_up */
UPDATE catch_ups SET next_at = now() + $1::bigint * interval '1 microsecond'
WHERE id = coalesce(
    (SELECT id FROM catch_ups WHERE next_at <= now() ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED),
    (SELECT id FROM catch_ups WHERE next_at > now() + $2::bigint * interval '1 microsecond'
     ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED))";

pub(crate) const FORGET: &str = "/* redrives.forget_catch_up */ DELETE FROM catch_ups WHERE id = $1";

pub(super) async fn step(
    transaction: &Transaction<'_>,
    limits: StepLimits,
    window: Option<Duration>,
) -> DbResult<Option<RedriveStep>> {
    let statement = transaction.prepare_cached(NEXT).await?;
    let mut row = transaction.query_opt(&statement, &[]).await?;
    if row.is_none() {
        let statement = transaction.prepare_cached(NEXT_STRANDED).await?;
        row = transaction.query_opt(&statement, &[&micros(furthest_catch_up())]).await?;
    }
    let Some(row) = row else { return Ok(None) };
    let id: i64 = row.try_get(0)?;
    let standing = CatchUp {
        since: row.try_get::<_, SqlTime>(2)?.0,
        until: row.try_get::<_, Option<SqlTime>>(3)?.map(|time| time.0),
        after_at: row.try_get::<_, Option<SqlTime>>(4)?.map(|time| time.0),
        after_id: row.try_get(5)?,
    };
    let now = row.try_get::<_, SqlTime>(6)?.0;
    let subscription = SubscriptionId(row.try_get(1)?);
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
    if let Some((CatchUp { until, after_at, after_id, .. }, later)) = onward {
        let statement = transaction.prepare_cached(MOVE).await?;
        let (until, at) = (until.map(SqlTime), after_at.map(SqlTime));
        transaction.execute(&statement, &[&id, &until, &at, &after_id, &micros(later)]).await?;
    } else {
        let statement = transaction.prepare_cached(FORGET).await?;
        transaction.execute(&statement, &[&id]).await?;
    }
    Ok(Some(step))
}
