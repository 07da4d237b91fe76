//! Catching up: the events that a subscription missed before it was verified.

use super::{
    SubscriptionLimits, insert,
    missed_events::{self, scan},
};
use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{SubscriptionId, Timestamp, furthest_catch_up};
use hooksaga_store::{
    CatchUp, CatchUpTurn, EventSpan, MissedEvents, RedriveStatus, RedriveStep, StepLimits, StepOf,
};
use rusqlite::{OptionalExtension, Row};
use std::time::Duration;

pub(super) const NEXT: &str = "/* redrives.next_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, next_at
  FROM catch_ups WHERE next_at <= ?1 ORDER BY next_at LIMIT 1";

/// A time that lies further ahead than a right clock can have put it counts as due.
pub(super) const NEXT_STRANDED: &str = "/* redrives.next_stranded_catch_up */
SELECT id, subscription_id, since, until, after_at, after_id, next_at
  FROM catch_ups WHERE next_at > ?1 ORDER BY next_at LIMIT 1";

/// Guarded by where it was seen: two never take the same step, and none that was resumed meanwhile is put off.
pub(super) const MOVE: &str = "/* redrives.move_catch_up */
UPDATE OR FAIL catch_ups SET until = ?5, after_at = ?6, after_id = ?7, next_at = ?8
 WHERE id = ?1 AND after_at IS ?2 AND after_id = ?3 AND next_at = ?4";

pub(super) const FORGET: &str = "/* redrives.forget_catch_up */
DELETE FROM catch_ups WHERE id = ?1 AND after_at IS ?2 AND after_id = ?3 AND next_at = ?4";

pub(super) const PUT_OFF: &str = "/* redrives.put_off_catch_up */
UPDATE OR FAIL catch_ups SET next_at = ?2
 WHERE id = coalesce((SELECT id FROM catch_ups WHERE next_at <= ?1 ORDER BY next_at LIMIT 1),
                     (SELECT id FROM catch_ups WHERE next_at > ?3 ORDER BY next_at LIMIT 1))";

/// A subscription that catches up, and where it stood when it was read.
struct CatchUpPosition {
    id: i64,
    subscription_id: SubscriptionId,
    standing: CatchUp,
    /// When it was due.
    due: i64,
}

/// What a step is to do.
pub(super) struct PlannedCatchUp {
    from: CatchUpPosition,
    what: What,
}

enum What {
    Scan { span: EventSpan, missed: MissedEvents },
    Later { until: Option<Timestamp>, wait: Duration },
    Forget,
}

pub(super) fn plan(
    tx: &Tx<'_>,
    limits: StepLimits,
    window: Option<Duration>,
) -> DbResult<Option<PlannedCatchUp>> {
    let mut found = find(tx, NEXT, tx.now)?;
    if found.is_none() {
        found = find(tx, NEXT_STRANDED, tx.now.after(furthest_catch_up()))?;
    }
    let Some(from) = found else { return Ok(None) };
    let CatchUp { since, until, .. } = from.standing;
    let recipient = missed_events::read(tx, from.subscription_id)?;
    let is_what = recipient.as_ref().map(|recipient| (recipient.active, recipient.verified));
    let what = match (CatchUpTurn::decide(is_what, (since, until), window, tx.now), recipient) {
        (CatchUpTurn::Scan { oldest }, Some(recipient)) => {
            let span = from.standing.span(oldest, tx.now);
            What::Scan { span, missed: scan(tx, &recipient, span, limits)? }
        }
        (CatchUpTurn::Later { until, wait }, _) => What::Later { until, wait },
        (CatchUpTurn::Scan { .. } | CatchUpTurn::Forget, _) => What::Forget,
    };
    Ok(Some(PlannedCatchUp { from, what }))
}

fn find(tx: &Tx<'_>, sql: &str, time: Timestamp) -> DbResult<Option<CatchUpPosition>> {
    let position = |row: &Row<'_>| {
        Ok(CatchUpPosition {
            id: row.get(0)?,
            subscription_id: SubscriptionId(row.get(1)?),
            standing: CatchUp {
                since: rows::time(row, 2)?,
                until: rows::optional_time(row, 3)?,
                after_at: rows::optional_time(row, 4)?,
                after_id: row.get(5)?,
            },
            due: row.get(6)?,
        })
    };
    Ok(tx.prepare(sql)?.query_row([time.as_micros()], position).optional()?)
}

pub(super) fn carry_out(tx: &Tx<'_>, plan: PlannedCatchUp, default_limit: u32) -> DbResult<RedriveStep> {
    let PlannedCatchUp { from: CatchUpPosition { id, subscription_id, standing, due }, what } = plan;
    let mut step = RedriveStep::nothing(StepOf::CatchUp(subscription_id));
    let seen = (id, standing.after_at.map(Timestamp::as_micros), standing.after_id, due);
    let go = |CatchUp { until, after_at, after_id, .. }: CatchUp, next: Timestamp| {
        let (until, at) = (until.map(Timestamp::as_micros), after_at.map(Timestamp::as_micros));
        tx.execute(MOVE, (seen.0, seen.1, seen.2, seen.3, until, at, after_id, next.as_micros()))
    };
    match what {
        What::Later { until, wait } => {
            go(CatchUp { until, ..standing }, tx.now.after(wait))?;
        }
        What::Forget => {
            tx.execute(FORGET, seen)?;
            step.ended = Some(RedriveStatus::Cancelled);
        }
        What::Scan { span, missed } => {
            // If it lost its verification in between, the next look decides.
            let limit = SubscriptionLimits::new(default_limit).limit(tx, subscription_id)?;
            let Some(limit) = limit else { return Ok(step) };
            let is_mine = match standing.onward(span, &missed.chosen) {
                Some(standing) => go(standing, tx.now)?,
                None => tx.execute(FORGET, seen)?,
            };
            if is_mine > 0 {
                step.take_over(insert(tx, subscription_id, &missed, limit)?, &missed.chosen);
            }
        }
    }
    Ok(step)
}
