//! Catching up: the events that a subscription missed before it was verified.

use super::{Place, Subscription, Subscriptions, Walked, insert, walk};
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{EventId, SubscriptionId, Timestamp};
use hooksaga_store::{CatchUpTurn, RedriveStatus, RedriveStep, StepLimits};
use rusqlite::OptionalExtension;
use std::time::Duration;

pub(super) const NEXT: &str = "/* dead_letter_operator: next_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id
  FROM catch_ups WHERE next_at <= ?1 ORDER BY next_at LIMIT 1";

/// Guarded by where it was seen: two never take the same step.
pub(super) const MOVE: &str = "/* dead_letter_operator: move_catch_up */
UPDATE OR FAIL catch_ups SET until = ?4, after_at = ?5, after_id = ?6, next_at = ?7
 WHERE id = ?1 AND after_at IS ?2 AND after_id = ?3";

pub(super) const FORGET: &str = "/* dead_letter_operator: forget_catch_up */
DELETE FROM catch_ups WHERE id = ?1 AND after_at IS ?2 AND after_id = ?3";

pub(super) const PUT_OFF: &str = "/* dead_letter_operator: put_off_catch_up */
UPDATE OR FAIL catch_ups SET next_at = ?2
 WHERE id = (SELECT id FROM catch_ups WHERE next_at <= ?1 ORDER BY next_at LIMIT 1)";

/// A subscription that catches up, and where it stood when it was looked at.
struct CatchUpPosition {
    id: i64,
    subscription_id: SubscriptionId,
    since: Timestamp,
    until: Option<Timestamp>,
    after_at: Option<Timestamp>,
    after_id: i64,
}

/// What a step is to do.
pub(super) struct Plan {
    from: CatchUpPosition,
    what: What,
}

enum What {
    Walk { until: Timestamp, walked: Walked },
    Later { until: Option<Timestamp>, wait: Duration },
    Forget,
}

pub(super) fn plan(tx: &Tx<'_>, limits: StepLimits, window: Option<Duration>) -> DbResult<Option<Plan>> {
    let found = tx
        .prepare(NEXT)?
        .query_row([tx.now.as_micros()], |row| {
            Ok(CatchUpPosition {
                id: row.get(0)?,
                subscription_id: SubscriptionId(row.get(1)?),
                since: rows::time(row, 2)?,
                until: rows::optional_time(row, 3)?,
                after_at: rows::optional_time(row, 4)?,
                after_id: row.get(5)?,
            })
        })
        .optional()?;
    let Some(from) = found else { return Ok(None) };
    let subscription = Subscription::read(tx, from.subscription_id)?;
    let is_what = subscription.as_ref().map(|subscription| (subscription.active, subscription.verified));
    let what = match (CatchUpTurn::decide(is_what, (from.since, from.until), window, tx.now), subscription) {
        (CatchUpTurn::Walk { oldest }, Some(subscription)) => {
            let after = Place {
                at: from.after_at.unwrap_or_else(|| from.since.max(oldest)),
                id: EventId(from.after_id),
            };
            let until = from.until.unwrap_or(tx.now);
            What::Walk { until, walked: walk(tx, &subscription, after, until, limits)? }
        }
        (CatchUpTurn::Later { until, wait }, _) => What::Later { until, wait },
        (CatchUpTurn::Walk { .. } | CatchUpTurn::Forget, _) => What::Forget,
    };
    Ok(Some(Plan { from, what }))
}

pub(super) fn carry_out(tx: &Tx<'_>, plan: Plan, default_limit: u32) -> DbResult<RedriveStep> {
    let Plan { from, what } = plan;
    let mut step = RedriveStep::nothing(None);
    let seen_at = from.after_at.map(Timestamp::as_micros);
    let go = |until: Option<Timestamp>, at: Option<Timestamp>, id: i64, next: Timestamp| {
        let (until, at) = (until.map(Timestamp::as_micros), at.map(Timestamp::as_micros));
        tx.execute(MOVE, (from.id, seen_at, from.after_id, until, at, id, next.as_micros()))
    };
    match what {
        What::Later { until, wait } => {
            go(until, from.after_at, from.after_id, tx.now.after(wait))?;
        }
        What::Forget => {
            tx.execute(FORGET, (from.id, seen_at, from.after_id))?;
            step.ended = Some(RedriveStatus::Cancelled);
        }
        What::Walk { until, walked } => {
            // If it lost its verification in between, the next look decides.
            let limit = Subscriptions::new(default_limit).limit(tx, from.subscription_id)?;
            let Some(limit) = limit else { return Ok(step) };
            let is_mine = match walked.chosen.reached {
                _ if walked.chosen.is_end => tx.execute(FORGET, (from.id, seen_at, from.after_id))?,
                Some(place) => go(Some(until), Some(place.at), place.id.0, tx.now)?,
                None => 0,
            };
            if is_mine > 0 {
                step.sagas = insert(tx, from.subscription_id, &walked, limit)?;
                step.take_over(&walked.chosen);
            }
        }
    }
    Ok(step)
}
