//! Catching up: the events that a subscription missed before it was verified.

use super::{Place, Subscription, walk};
use crate::{
    error::DbResult,
    roles::rows::take,
    time::{Time, micros},
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{CatchUpTurn, RedriveStatus, RedriveStep, StepLimits};
use mysql_async::{Conn, Row, TxOpts, prelude::Queryable as _};
use std::time::Duration;

/// Before a transaction is begun: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* redrives.peek_catch_up */
SELECT EXISTS (SELECT 1 FROM catch_ups FORCE INDEX (idx_catch_up_next) WHERE next_at <= UTC_TIMESTAMP(6))";

pub(crate) const NEXT: &str = "/* redrives.next_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, UTC_TIMESTAMP(6)
FROM catch_ups FORCE INDEX (idx_catch_up_next)
WHERE next_at <= UTC_TIMESTAMP(6) ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(crate) const MOVE: &str = "/* redrives.move_catch_up */
UPDATE catch_ups
SET until = ?, after_at = ?, after_id = ?, next_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE id = ?";

pub(super) const PUT_OFF: &str = "/* redrives.put_off_catch_up */
UPDATE catch_ups FORCE INDEX (idx_catch_up_next) SET next_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE next_at <= UTC_TIMESTAMP(6) ORDER BY next_at LIMIT 1";

pub(crate) const FORGET: &str = "/* redrives.forget_catch_up */ DELETE FROM catch_ups WHERE id = ?";

pub(super) async fn step(
    mut connection: Conn,
    limits: StepLimits,
    window: Option<Duration>,
) -> DbResult<Option<RedriveStep>> {
    if connection.exec_first(PEEK, ()).await? == Some(false) {
        return Ok(None);
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let row: Option<Row> = transaction.exec_first(NEXT, ()).await?;
    let Some(mut row) = row else {
        transaction.rollback().await?;
        return Ok(None);
    };
    let row = &mut row;
    let id: i64 = take(row, 0)?;
    let subscription = SubscriptionId(take(row, 1)?);
    let since = take::<Time>(row, 2)?.0;
    let until: Option<Time> = take(row, 3)?;
    let after_at: Option<Time> = take(row, 4)?;
    let after_id: i64 = take(row, 5)?;
    let now = take::<Time>(row, 6)?.0;
    let mut step = RedriveStep::nothing(None);
    // How it goes on: until, after_at, after_id, and when; nothing: not at all.
    let mut onward = None;
    let subscription = Subscription::read(&mut transaction, subscription).await?;
    let is_what = subscription.as_ref().map(|subscription| (subscription.active, subscription.verified));
    let ends = until.map(|time| time.0);
    match (CatchUpTurn::decide(is_what, (since, ends), window, now), subscription) {
        (CatchUpTurn::Walk { oldest }, Some(subscription)) => {
            let at = after_at.map_or_else(|| since.max(oldest), |time| time.0);
            let until = ends.unwrap_or(now);
            let after = Place { at, id: after_id };
            let (chosen, sagas) = walk(&mut transaction, &subscription, after, until, now, limits).await?;
            step.sagas = sagas;
            step.take_over(&chosen);
            let reached = chosen.reached.filter(|_| !chosen.is_end);
            onward = reached.map(|place| (Some(Time(until)), Some(Time(place.at)), place.id, Duration::ZERO));
        }
        (CatchUpTurn::Later { until, wait }, _) => {
            onward = Some((until.map(Time), after_at, after_id, wait));
        }
        (CatchUpTurn::Walk { .. } | CatchUpTurn::Forget, _) => step.ended = Some(RedriveStatus::Cancelled),
    }
    match onward {
        Some((until, at, after, later)) => {
            transaction.exec_drop(MOVE, (until, at, after, micros(later), id)).await?;
        }
        None => transaction.exec_drop(FORGET, (id,)).await?,
    }
    transaction.commit().await?;
    Ok(Some(step))
}
