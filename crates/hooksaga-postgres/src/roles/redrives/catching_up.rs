//! Catching up: the events that a subscription missed before it was verified.

use super::{Place, Subscription, walk};
use crate::{
    error::DbResult,
    time::{Time, micros},
};
use deadpool_postgres::Transaction;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{CatchUpTurn, RedriveStatus, RedriveStep, StepLimits};
use std::time::Duration;

pub(crate) const NEXT: &str = "/* redrives.next_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, now()
FROM catch_ups WHERE next_at <= now() ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(crate) const MOVE: &str = "/* redrives.move_catch_up */
UPDATE catch_ups
SET until = $2, after_at = $3, after_id = $4, next_at = now() + $5::bigint * interval '1 microsecond'
WHERE id = $1";

pub(super) const PUT_OFF: &str = "/* redrives.put_off_catch_up */
UPDATE catch_ups SET next_at = now() + $1::bigint * interval '1 microsecond'
WHERE id = (SELECT id FROM catch_ups WHERE next_at <= now() ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED)";

pub(crate) const FORGET: &str = "/* redrives.forget_catch_up */ DELETE FROM catch_ups WHERE id = $1";

pub(super) async fn step(
    transaction: &Transaction<'_>,
    limits: StepLimits,
    window: Option<Duration>,
) -> DbResult<Option<RedriveStep>> {
    let statement = transaction.prepare_cached(NEXT).await?;
    let Some(row) = transaction.query_opt(&statement, &[]).await? else { return Ok(None) };
    let id: i64 = row.try_get(0)?;
    let since = row.try_get::<_, Time>(2)?.0;
    let until: Option<Time> = row.try_get(3)?;
    let after_at: Option<Time> = row.try_get(4)?;
    let after_id: i64 = row.try_get(5)?;
    let now = row.try_get::<_, Time>(6)?.0;
    let mut step = RedriveStep::nothing(None);
    // How it goes on: until, after_at, after_id, and when; nothing: not at all.
    let mut onward = None;
    let subscription = Subscription::read(transaction, SubscriptionId(row.try_get(1)?)).await?;
    let is_what = subscription.as_ref().map(|subscription| (subscription.active, subscription.verified));
    let ends = until.map(|time| time.0);
    match (CatchUpTurn::decide(is_what, (since, ends), window, now), subscription) {
        (CatchUpTurn::Walk { oldest }, Some(subscription)) => {
            let at = after_at.map_or_else(|| since.max(oldest), |time| time.0);
            let until = ends.unwrap_or(now);
            let after = Place { at, id: after_id };
            let (chosen, sagas) = walk(transaction, &subscription, after, until, now, limits).await?;
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
    if let Some((until, at, after, later)) = onward {
        let statement = transaction.prepare_cached(MOVE).await?;
        transaction.execute(&statement, &[&id, &until, &at, &after, &micros(later)]).await?;
    } else {
        let statement = transaction.prepare_cached(FORGET).await?;
        transaction.execute(&statement, &[&id]).await?;
    }
    Ok(Some(step))
}
