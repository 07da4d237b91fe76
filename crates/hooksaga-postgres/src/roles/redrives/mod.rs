//! `dead_letter_operator`, for large work: redrives, and catching up after a verification.
//!
//! A step is one transaction, which begins with the lock on the redrive's row (SKIP LOCKED): nobody else takes the same
//! step, and one that is interrupted leaves nothing.

mod catching_up;
pub(crate) mod missed_events;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        dead_letters::requeue::{examine, insert},
        redrive::{redrive, work},
        rows::{bigint, count},
    },
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use deadpool_postgres::Transaction;
use hooksaga_saga::{Chosen, DeadLetterId, EventId, Fate, RedriveId, choose, furthest_catch_up};
use hooksaga_store::{
    CancelOutcome, EventSpan, LetterWindow, NOT_DELIVERABLE, NewRedrive, Recipient, RedriveColumns,
    RedriveStatus, RedriveStep, RedriveStore, RedriveWork, RequeuedSaga, RunningLimits, StartOutcome,
    StepLimits, StepOf, StoreResult, TenantScope, redrive_columns,
};
use missed_events::scan;
use std::time::Duration;

#[cfg(feature = "test-support")]
pub(crate) use catching_up::{FORGET as FORGET_CATCH_UP, MOVE as MOVE_CATCH_UP, NEXT as NEXT_CATCH_UP};

const RUNNING: &str = "/* redrives.running */
SELECT count(*), count(*) FILTER (WHERE tenant IS NOT DISTINCT FROM $1::text) FROM redrives WHERE status = 'running'";

/// One start at a time: of two that count together, both would find room for one more.
const TAKE_TURN: &str = "/* redrives.take_turn */ SELECT pg_advisory_xact_lock(7525345092373148)";

const TENANT_OF: &str = "/* redrives.tenant_of */
SELECT tenant, active AND verified FROM subscriptions WHERE id = $1 AND deleted_at IS NULL";

/// Later letters are not part of it: deliveries that it sends again may fail again, and then it might never end.
const START: &str = concat!(
    "/* redrives.start */
INSERT INTO redrives (tenant, kind, subscription_id, event_type, final_error_code, since, until, started_by_key,
                      started_by)
VALUES ($1, $2, $3, $4, $5, $6, least($7::timestamptz, now()), $8, $9)
RETURNING ",
    redrive_columns!()
);

const CANCEL: &str = concat!(
    "/* redrives.cancel */
UPDATE redrives SET status = 'cancelled', updated_at = now()
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2) AND status = 'running'
RETURNING ",
    redrive_columns!()
);

const STATUS: &str = "/* redrives.status */
SELECT status FROM redrives WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)";

/// The redrive that has waited longest, of those that no process works on.
pub(crate) const NEXT: &str = "/* redrives.next */
SELECT id, tenant, kind, subscription_id, event_type, final_error_code, since, until, after_at, after_id, now()
FROM redrives WHERE status = 'running' ORDER BY updated_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(crate) const ADVANCE: &str = "/* redrives.advance */
UPDATE redrives
SET after_at = $2, after_id = $3, examined = examined + $4, created = created + $5, skipped = skipped + $6,
    status = $7, error = $8, updated_at = now()
WHERE id = $1 AND status = 'running'";

const PUT_OFF: &str = "/* redrives.put_off */
UPDATE redrives SET updated_at = now()
WHERE id = (SELECT id FROM redrives WHERE status = 'running' ORDER BY updated_at LIMIT 1 FOR UPDATE SKIP LOCKED)";

pub(crate) struct RedrivesSql(pub(crate) RolePool);

#[async_trait]
impl RedriveStore for RedrivesSql {
    async fn start(&self, new: NewRedrive<'_>, limits: RunningLimits) -> StoreResult<StartOutcome> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let outcome = start(&transaction, new, limits).await?;
                transaction.commit().await?;
                Ok(outcome)
            })
            .await
    }

    async fn cancel(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<CancelOutcome> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(CANCEL).await?;
                if let Some(row) = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await? {
                    return Ok(CancelOutcome::Cancelled(Box::new(redrive(&row)?)));
                }
                let statement = client.prepare_cached(STATUS).await?;
                match client.query_opt(&statement, &[&id.0, &scope.tenant()]).await? {
                    Some(row) => Ok(CancelOutcome::NotRunning(
                        row.try_get::<_, &str>(0)?.parse().map_err(DbError::unreadable)?,
                    )),
                    None => Ok(CancelOutcome::NotFound),
                }
            })
            .await
    }

    async fn advance(&self, limits: StepLimits) -> StoreResult<Option<RedriveStep>> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let step = advance(&transaction, limits).await?;
                transaction.commit().await?;
                Ok(step)
            })
            .await
    }

    async fn catch_up(
        &self,
        limits: StepLimits,
        window: Option<Duration>,
    ) -> StoreResult<Option<RedriveStep>> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let step = catching_up::step(&transaction, limits, window).await?;
                transaction.commit().await?;
                Ok(step)
            })
            .await
    }

    async fn put_off_catch_up(&self, wait: Duration) -> StoreResult<()> {
        let wait = &micros(wait);
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(catching_up::PUT_OFF).await?;
                client.execute(&statement, &[wait, &micros(furthest_catch_up())]).await?;
                Ok(())
            })
            .await
    }

    async fn put_off_redrive(&self) -> StoreResult<()> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(PUT_OFF).await?;
                client.execute(&statement, &[]).await?;
                Ok(())
            })
            .await
    }

    async fn running(&self) -> StoreResult<u64> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(RUNNING).await?;
                Ok(count(client.query_one(&statement, &[&None::<&str>]).await?.try_get(0)?))
            })
            .await
    }
}

async fn start(
    transaction: &Transaction<'_>,
    NewRedrive { scope, work, starter }: NewRedrive<'_>,
    limits: RunningLimits,
) -> DbResult<StartOutcome> {
    let mut tenant = scope.tenant().map(str::to_owned);
    if let RedriveWork::Events { subscription_id: id, .. } = work {
        let statement = transaction.prepare_cached(TENANT_OF).await?;
        let Some(row) = transaction.query_opt(&statement, &[&id.0]).await? else {
            return Ok(StartOutcome::NoSuchSubscription(*id));
        };
        let owner: String = row.try_get(0)?;
        if !scope.includes(&owner) {
            return Ok(StartOutcome::NoSuchSubscription(*id));
        }
        if !row.try_get::<_, bool>(1)? {
            return Ok(StartOutcome::NotDeliverable(*id));
        }
        tenant = Some(owner);
    }
    let statement = transaction.prepare_cached(TAKE_TURN).await?;
    transaction.execute(&statement, &[]).await?;
    let statement = transaction.prepare_cached(RUNNING).await?;
    let row = transaction.query_one(&statement, &[&tenant]).await?;
    let (in_all, of_tenant) = (count(row.try_get(0)?), count(row.try_get(1)?));
    if let Some(refusal) = limits.refusal(scope, in_all, tenant.is_some().then_some(of_tenant)) {
        return Ok(StartOutcome::TooMany(refusal));
    }
    let columns = RedriveColumns::from(work);
    let statement = transaction.prepare_cached(START).await?;
    let row = transaction
        .query_one(
            &statement,
            &[
                &tenant,
                &columns.kind,
                &columns.subscription_id,
                &columns.event_type,
                &columns.final_error_code,
                &columns.since.map(SqlTime),
                &columns.until.map(SqlTime),
                &starter.key_id.map(|key| key.0),
                &starter.name,
            ],
        )
        .await?;
    Ok(StartOutcome::Started(Box::new(redrive(&row)?)))
}

/// The next step of the redrive that has waited longest.
async fn advance(transaction: &Transaction<'_>, limits: StepLimits) -> DbResult<Option<RedriveStep>> {
    let statement = transaction.prepare_cached(NEXT).await?;
    let Some(row) = transaction.query_opt(&statement, &[]).await? else { return Ok(None) };
    let id = RedriveId(row.try_get(0)?);
    let mut step = RedriveStep::nothing(StepOf::Redrive(id));
    let mut after_at = row.try_get::<_, Option<SqlTime>>(8)?;
    let mut after_id: i64 = row.try_get(9)?;
    let now = row.try_get::<_, SqlTime>(10)?.0;
    let mut error = None;
    match work(&row, 2)? {
        RedriveWork::DeadLetters(filter) => {
            let tenant: Option<&str> = row.try_get(1)?;
            let scope = match tenant {
                Some(tenant) => TenantScope::One(tenant.parse().map_err(DbError::unreadable)?),
                None => TenantScope::All,
            };
            let window = LetterWindow::of_redrive(&filter, after_id, limits);
            let (chosen, sagas) = letters(transaction, &scope, window, limits.create).await?;
            after_id = chosen.reached.map_or(after_id, |letter| letter.0);
            step.take_over(sagas, &chosen);
        }
        RedriveWork::Events { subscription_id, since, until } => {
            match missed_events::read(transaction, subscription_id).await?.filter(Recipient::is_deliverable) {
                Some(recipient) => {
                    let after = (after_at.map_or(since, |time| time.0), EventId(after_id));
                    let span = EventSpan { after, until: until.unwrap_or(now) };
                    let (missed, sagas) = scan(transaction, &recipient, span, now, limits).await?;
                    if let Some((at, id)) = missed.chosen.reached {
                        (after_at, after_id) = (Some(SqlTime(at)), id.0);
                    }
                    step.take_over(sagas, &missed.chosen);
                }
                None => (step.ended, error) = (Some(RedriveStatus::Failed), Some(NOT_DELIVERABLE)),
            }
        }
    }
    let statement = transaction.prepare_cached(ADVANCE).await?;
    let status = step.ended.unwrap_or(RedriveStatus::Running).as_str();
    let advanced = transaction
        .execute(
            &statement,
            &[
                &id.0,
                &after_at,
                &after_id,
                &bigint(step.examined),
                &bigint(step.created()),
                &bigint(step.skipped),
                &status,
                &error,
            ],
        )
        .await?;
    if advanced == 0 {
        return Err(DbError::unreadable("a redrive that is locked and cannot be seen"));
    }
    Ok(Some(step))
}

/// Examines the next letters, and requeues those that can be.
async fn letters(
    transaction: &Transaction<'_>,
    scope: &TenantScope,
    window: LetterWindow<'_>,
    create: u32,
) -> DbResult<(Chosen<DeadLetterId>, Vec<RequeuedSaga>)> {
    let letters = examine(transaction, scope, window).await?;
    let fates: Vec<(DeadLetterId, Fate)> = letters
        .iter()
        .map(|letter| {
            let fate = match letter.wanted {
                false => Fate::Pass,
                true if letter.ended.successor.is_some() || !letter.ended.deliverable => Fate::Skip,
                true => Fate::Send,
            };
            (letter.id, fate)
        })
        .collect();
    let chosen = choose(&fates, create as usize, letters.len() < window.most as usize);
    let to_send: Vec<_> = letters
        .iter()
        .filter(|letter| chosen.send.contains(&letter.id))
        .map(|letter| &letter.ended.next)
        .collect();
    let sagas = match to_send.is_empty() {
        true => Vec::new(),
        false => insert(transaction, &to_send).await?,
    };
    Ok((chosen, sagas))
}
