//! `dead_letter_operator`, for large work: redrives, and catching up after a verification.
//!
//! A step is a read, which finds the next rows, and a short write by their keys. The write first checks that the redrive is
//! still where the read found it. So two processes never do the same step, and a redrive that was cancelled in between does
//! nothing.

mod catching_up;
mod missed_events;

use super::{
    dead_letters::requeue::{INSERT_SAGA, SubscriptionLimits, requeue_all, scan_letters},
    redrive::{redrive, work},
    rows,
};
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{
    Chosen, DeadLetterId, EventId, Fate, RedriveId, Saga, SagaId, SubscriptionId, Timestamp, choose,
    furthest_catch_up,
};
use hooksaga_store::{
    CancelOutcome, DeadLetterFilter, EventSpan, MissedEvents, NOT_DELIVERABLE, NewRedrive, Recipient,
    Redrive, RedriveColumns, RedriveStatus, RedriveStep, RedriveStore, RedriveWork, RequeuedSaga,
    RunningLimits, StartOutcome, StepLimits, StepOf, StoreError, StoreResult, TenantScope, redrive_columns,
};
use missed_events::scan;
use rusqlite::{OptionalExtension, named_params};
use std::time::Duration;

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[
    NEXT,
    missed_events::NEXT_EVENTS,
    super::dead_letters::requeue::SCAN,
    super::dead_letters::requeue::SCAN_OF_SUBSCRIPTION,
    super::dead_letters::requeue::SCAN_OF_TENANT,
    STILL,
    ADVANCE,
    catching_up::NEXT,
    catching_up::NEXT_STRANDED,
    catching_up::MOVE,
    catching_up::FORGET,
];

const RUNNING: &str = "/* redrives.running_redrives */
SELECT count(*), coalesce(sum(tenant IS ?1), 0) FROM redrives WHERE status = 'running'";

const TENANT_OF: &str = "/* redrives.tenant_of */
SELECT tenant, active AND verified FROM subscriptions WHERE id = ?1 AND deleted_at IS NULL";

const START: &str = "/* redrives.start_redrive */
INSERT INTO redrives (tenant, kind, subscription_id, event_type, final_error_code, since, until, started_by_key, started_by,
                      created_at, updated_at)
VALUES (:tenant, :kind, :subscription_id, :event_type, :final_error_code, :since, :until, :key, :name, :now, :now)";

const ONE: &str = concat!(
    "/* redrives.redrive */ SELECT ",
    redrive_columns!(),
    " FROM redrives WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)"
);

const CANCEL: &str = "/* redrives.cancel_redrive */
UPDATE redrives SET status = 'cancelled', updated_at = ?2 WHERE id = ?1 AND status = 'running'";

/// The one that has waited longest.
const NEXT: &str = "/* redrives.next_redrive */
SELECT id, tenant, kind, subscription_id, event_type, final_error_code, since, until, after_at, after_id
  FROM redrives WHERE status = 'running' ORDER BY updated_at LIMIT 1";

/// It runs, and stands where it was seen.
const STILL: &str = "/* redrives.still_there */
SELECT 1 FROM redrives WHERE id = ?1 AND status = 'running' AND after_at IS ?2 AND after_id = ?3";

const ADVANCE: &str = "/* redrives.advance */
UPDATE redrives
   SET after_at = ?2, after_id = ?3, examined = examined + ?4, created = created + ?5, skipped = skipped + ?6,
       status = ?7, error = ?8, updated_at = ?9
 WHERE id = ?1 AND status = 'running'";

const PUT_OFF: &str = "/* redrives.put_off_redrive */
UPDATE redrives SET updated_at = ?1
 WHERE id = (SELECT id FROM redrives WHERE status = 'running' ORDER BY updated_at LIMIT 1)";

pub(crate) struct RedrivesSql(pub(crate) RoleHandle);

#[async_trait]
impl RedriveStore for RedrivesSql {
    async fn start(&self, new: NewRedrive<'_>, limits: RunningLimits) -> StoreResult<StartOutcome> {
        let (scope, work, starter) = (new.scope.clone(), new.work.clone(), new.starter.clone());
        let start = move |tx: &Tx<'_>| {
            start(tx, NewRedrive { scope: &scope, work: &work, starter: &starter }, limits)
        };
        self.0.write(start).await
    }

    async fn cancel(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<CancelOutcome> {
        let scope = scope.clone();
        self.0.write(move |tx| cancel(tx, &scope, id)).await
    }

    async fn advance(&self, limits: StepLimits) -> StoreResult<Option<RedriveStep>> {
        match self.0.read(move |tx| plan(tx, limits)).await? {
            Some((place, plan)) => {
                self.0.write(move |tx| carry_out(tx, &place, plan, limits.default_limit)).await.map(Some)
            }
            None => Ok(None),
        }
    }

    async fn catch_up(
        &self,
        limits: StepLimits,
        window: Option<Duration>,
    ) -> StoreResult<Option<RedriveStep>> {
        match self.0.read(move |tx| catching_up::plan(tx, limits, window)).await? {
            Some(plan) => {
                self.0.write(move |tx| catching_up::carry_out(tx, plan, limits.default_limit)).await.map(Some)
            }
            None => Ok(None),
        }
    }

    async fn put_off_catch_up(&self, wait: Duration) -> StoreResult<()> {
        self.0
            .write(move |tx| {
                let beyond = tx.now.after(furthest_catch_up());
                let times = (tx.now.as_micros(), tx.now.after(wait).as_micros(), beyond.as_micros());
                tx.execute(catching_up::PUT_OFF, times)?;
                Ok(())
            })
            .await
    }

    async fn put_off_redrive(&self) -> StoreResult<()> {
        self.0
            .write(|tx| {
                tx.execute(PUT_OFF, [tx.now.as_micros()])?;
                Ok(())
            })
            .await
    }

    async fn running(&self) -> StoreResult<u64> {
        self.0.read(|tx| Ok(tx.prepare(RUNNING)?.query_row([None::<&str>], |row| rows::count(row, 0))?)).await
    }
}

fn start(
    tx: &Tx<'_>,
    NewRedrive { scope, work, starter }: NewRedrive<'_>,
    limits: RunningLimits,
) -> DbResult<StartOutcome> {
    let mut tenant = scope.tenant().map(str::to_owned);
    if let RedriveWork::Events { subscription_id: id, .. } = work {
        let found: Option<(String, bool)> =
            tx.prepare(TENANT_OF)?.query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        match found.filter(|(owner, _)| scope.includes(owner)) {
            None => return Ok(StartOutcome::NoSuchSubscription(*id)),
            Some((_, false)) => return Ok(StartOutcome::NotDeliverable(*id)),
            Some((owner, true)) => tenant = Some(owner),
        }
    }
    let (in_all, of_tenant) =
        tx.prepare(RUNNING)?.query_row([&tenant], |row| Ok((rows::count(row, 0)?, rows::count(row, 1)?)))?;
    if let Some(refusal) = limits.refusal(scope, in_all, tenant.is_some().then_some(of_tenant)) {
        return Ok(StartOutcome::TooMany(refusal));
    }
    let columns = RedriveColumns::from(work);
    // Later letters are not part of it: deliveries that it sends again may fail again, and it might never end.
    let until = columns.until.map_or(tx.now, |until| until.min(tx.now));
    tx.prepare(START)?.execute(named_params! {
        ":tenant": tenant,
        ":kind": columns.kind,
        ":subscription_id": columns.subscription_id,
        ":event_type": columns.event_type,
        ":final_error_code": columns.final_error_code,
        ":since": columns.since.map(Timestamp::as_micros),
        ":until": until.as_micros(),
        ":key": starter.key_id.map(|key| key.0),
        ":name": starter.name,
        ":now": tx.now.as_micros(),
    })?;
    let started = one(tx, &TenantScope::All, RedriveId(tx.last_id()))?;
    Ok(StartOutcome::Started(Box::new(started.ok_or_else(vanished)?)))
}

fn vanished() -> StoreError {
    StoreError::Other("a redrive cannot be seen".to_owned())
}

fn one(tx: &Tx<'_>, scope: &TenantScope, id: RedriveId) -> DbResult<Option<Redrive>> {
    Ok(tx.prepare(ONE)?.query_row((id.0, scope.tenant()), redrive).optional()?)
}

fn cancel(tx: &Tx<'_>, scope: &TenantScope, id: RedriveId) -> DbResult<CancelOutcome> {
    let Some(found) = one(tx, scope, id)? else { return Ok(CancelOutcome::NotFound) };
    if found.status != RedriveStatus::Running {
        return Ok(CancelOutcome::NotRunning(found.status));
    }
    tx.execute(CANCEL, (id.0, tx.now.as_micros()))?;
    Ok(CancelOutcome::Cancelled(Box::new(one(tx, scope, id)?.ok_or_else(vanished)?)))
}

/// A redrive, and where it stood when it was read.
struct RedrivePosition {
    id: RedriveId,
    tenant: TenantScope,
    after_at: Option<Timestamp>,
    after_id: i64,
}

/// What a step is to do.
enum PlannedRedrive {
    Letters(Chosen<DeadLetterId>),
    Events(SubscriptionId, MissedEvents),
    /// The subscription can no longer be delivered to.
    Fail,
}

fn plan(tx: &Tx<'_>, limits: StepLimits) -> DbResult<Option<(RedrivePosition, PlannedRedrive)>> {
    let found = tx
        .prepare(NEXT)?
        .query_row([], |row| {
            let tenant = rows::optional_name(row, 1)?.map_or(TenantScope::All, TenantScope::One);
            let (after_at, after_id) = (rows::optional_time(row, 8)?, row.get(9)?);
            Ok((RedrivePosition { id: RedriveId(row.get(0)?), tenant, after_at, after_id }, work(row, 2)?))
        })
        .optional()?;
    let Some((standing, work)) = found else { return Ok(None) };
    let plan = match work {
        RedriveWork::DeadLetters(filter) => {
            PlannedRedrive::Letters(choose_letters(tx, &standing, &filter, limits)?)
        }
        RedriveWork::Events { subscription_id, since, until } => {
            match missed_events::read(tx, subscription_id)?.filter(Recipient::is_deliverable) {
                Some(recipient) => {
                    let after = (standing.after_at.unwrap_or(since), EventId(standing.after_id));
                    let span = EventSpan { after, until: until.unwrap_or(tx.now) };
                    PlannedRedrive::Events(subscription_id, scan(tx, &recipient, span, limits)?)
                }
                None => PlannedRedrive::Fail,
            }
        }
    };
    Ok(Some((standing, plan)))
}

fn choose_letters(
    tx: &Tx<'_>,
    standing: &RedrivePosition,
    filter: &DeadLetterFilter,
    limits: StepLimits,
) -> DbResult<Chosen<DeadLetterId>> {
    let examine = limits.examined();
    let seen = scan_letters(tx, &standing.tenant, filter, Some(DeadLetterId(standing.after_id)), examine)?;
    let mut subscriptions = SubscriptionLimits::new(limits.default_limit);
    let mut letters = Vec::with_capacity(seen.len());
    for letter in seen.iter().take(examine as usize) {
        let fate = match letter.matches {
            false => Fate::Pass,
            true if letter.requeued => Fate::Skip,
            true if subscriptions.limit(tx, letter.subscription_id)?.is_none() => Fate::Skip,
            true => Fate::Send,
        };
        letters.push((letter.id, fate));
    }
    Ok(choose(&letters, limits.create as usize, seen.len() <= letters.len()))
}

fn carry_out(
    tx: &Tx<'_>,
    from: &RedrivePosition,
    plan: PlannedRedrive,
    default_limit: u32,
) -> DbResult<RedriveStep> {
    let mut step = RedriveStep::nothing(StepOf::Redrive(from.id));
    let after_at = from.after_at.map(Timestamp::as_micros);
    if !tx.prepare(STILL)?.exists((from.id.0, after_at, from.after_id))? {
        return Ok(step);
    }
    let mut subscriptions = SubscriptionLimits::new(default_limit);
    let (mut after_at, mut after_id, mut error) = (after_at, from.after_id, None);
    match plan {
        PlannedRedrive::Letters(chosen) => {
            let sagas = requeue_all(tx, &from.tenant, &chosen.send, &mut subscriptions)?.sagas;
            after_id = chosen.reached.map_or(after_id, |letter| letter.0);
            step.take_over(sagas, &chosen);
        }
        PlannedRedrive::Events(subscription, missed) => match subscriptions.limit(tx, subscription)? {
            Some(limit) => {
                if let Some((at, id)) = missed.chosen.reached {
                    (after_at, after_id) = (Some(at.as_micros()), id.0);
                }
                step.take_over(insert(tx, subscription, &missed, limit)?, &missed.chosen);
            }
            None => (step.ended, error) = (Some(RedriveStatus::Failed), Some(NOT_DELIVERABLE)),
        },
        PlannedRedrive::Fail => (step.ended, error) = (Some(RedriveStatus::Failed), Some(NOT_DELIVERABLE)),
    }
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let advanced = tx.execute(
        ADVANCE,
        (
            from.id.0,
            after_at,
            after_id,
            number(step.examined),
            number(step.created()),
            number(step.skipped),
            step.ended.unwrap_or(RedriveStatus::Running).as_str(),
            error,
            tx.now.as_micros(),
        ),
    )?;
    if advanced == 0 {
        return Err(vanished().into());
    }
    Ok(step)
}

/// The first sagas of these events; those that were not there yet.
fn insert(
    tx: &Tx<'_>,
    subscription_id: SubscriptionId,
    missed: &MissedEvents,
    limit: u32,
) -> DbResult<Vec<RequeuedSaga>> {
    let mut insert = tx.prepare(INSERT_SAGA)?;
    let saga = Saga::new(limit, tx.now);
    let mut made = Vec::with_capacity(missed.chosen.send.len());
    for event in missed.events() {
        let inserted = insert.execute((
            event.0,
            subscription_id.0,
            0,
            saga.status.as_str(),
            saga.attempt_count,
            saga.max_retry_limit,
            saga.next_attempt_at.as_micros(),
            tx.now.as_micros(),
        ))?;
        if inserted > 0 {
            made.push(missed.made(SagaId(tx.last_id()), event));
        }
    }
    Ok(made)
}
