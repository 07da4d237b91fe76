//! `dead_letter_operator`, for large work: redrives, and catching up after a verification.
//!
//! A step is one transaction, which begins with the lock on the redrive's row (SKIP LOCKED): nobody else takes the same
//! step, and one that is interrupted leaves nothing.

pub(crate) mod catching_up;
pub(crate) mod missed_events;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        dead_letters::requeue::{examine, insert},
        event_locks,
        redrive::{redrive, work},
        rows::{count, parsed, rows, take},
    },
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use hooksaga_saga::{Chosen, DeadLetterId, EventId, Fate, RedriveId, choose, furthest_catch_up};
use hooksaga_store::{
    CancelOutcome, EventSpan, LetterWindow, NOT_DELIVERABLE, NewRedrive, Recipient, Redrive, RedriveColumns,
    RedriveStatus, RedriveStep, RedriveStore, RedriveWork, RequeuedSaga, RunningLimits, StartOutcome,
    StepLimits, StepOf, StoreResult, TenantScope, redrive_columns,
};
use missed_events::scan;
use mysql_async::{Conn, Params, Row, Transaction, TxOpts, Value, prelude::Queryable as _};
use std::time::Duration;

const RUNNING: &str = "/* redrives.running */
SELECT COUNT(*), CAST(COALESCE(SUM(tenant <=> ?), 0) AS SIGNED) FROM redrives WHERE status = 'running'";

/// The id of no event. Starts of redrives take turns by it, on every node of a cluster: if two counted the running redrives at
/// the same time, both would find room for one more.
const STARTS: i64 = 0;

const TENANT_OF: &str = "/* redrives.tenant_of */
SELECT tenant, active AND verified FROM subscriptions WHERE id = ? AND deleted_at IS NULL";

/// Later letters are not part of it: deliveries that it sends again may fail again, and then it might never end.
const START: &str = "/* redrives.start */
INSERT INTO redrives (tenant, kind, subscription_id, event_type, final_error_code, since, until, started_by_key,
                      started_by)
VALUES (?, ?, ?, ?, ?, ?, LEAST(COALESCE(?, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6)), ?, ?)";

const ONE: &str = concat!("/* redrives.one */ SELECT ", redrive_columns!(), " FROM redrives WHERE id = ?");

const LOCK: &str =
    concat!("/* redrives.lock */ SELECT ", redrive_columns!(), " FROM redrives WHERE id = ? FOR UPDATE");

const CANCEL: &str = "/* redrives.cancel */
UPDATE redrives SET status = 'cancelled', updated_at = UTC_TIMESTAMP(6) WHERE id = ? AND status = 'running'";

/// Runs before a transaction begins: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* redrives.peek */
SELECT EXISTS (SELECT 1 FROM redrives FORCE INDEX (idx_redrive_status) WHERE status = 'running')";

/// The redrive that has waited longest, of those that no process works on.
pub(crate) const NEXT: &str = "/* redrives.next */
SELECT id, tenant, kind, subscription_id, event_type, final_error_code, since, until, after_at, after_id,
       UTC_TIMESTAMP(6)
FROM redrives FORCE INDEX (idx_redrive_status)
WHERE status = 'running' ORDER BY updated_at LIMIT 1 FOR UPDATE SKIP LOCKED";

pub(crate) const ADVANCE: &str = "/* redrives.advance */
UPDATE redrives
SET after_at = ?, after_id = ?, examined = examined + ?, created = created + ?, skipped = skipped + ?,
    status = ?, error = ?, updated_at = UTC_TIMESTAMP(6)
WHERE id = ? AND status = 'running'";

/// Finds the row whose step failed: rows before it are locked by the processes that work on them, so it is the first
/// free one.
const FAILED: &str = "/* redrives.failed */
SELECT id FROM redrives FORCE INDEX (idx_redrive_status)
WHERE status = 'running' ORDER BY updated_at LIMIT 1 FOR UPDATE SKIP LOCKED";

const PUT_OFF: &str = "/* redrives.put_off */ UPDATE redrives SET updated_at = UTC_TIMESTAMP(6) WHERE id = ?";

pub(crate) struct RedrivesSql(pub(crate) RolePool);

#[async_trait]
impl RedriveStore for RedrivesSql {
    async fn start(&self, new: NewRedrive<'_>, limits: RunningLimits) -> StoreResult<StartOutcome> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let outcome = start(&mut transaction, new, limits).await?;
                transaction.commit().await?;
                Ok(outcome)
            })
            .await
    }

    async fn cancel(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<CancelOutcome> {
        self.0.run(|connection| cancel(connection, scope, id)).await
    }

    async fn advance(&self, limits: StepLimits) -> StoreResult<Option<RedriveStep>> {
        self.0.run_inserting(|connection| advance(connection, limits)).await
    }

    async fn catch_up(
        &self,
        limits: StepLimits,
        window: Option<Duration>,
    ) -> StoreResult<Option<RedriveStep>> {
        self.0.run_inserting(|connection| catching_up::advance(connection, limits, window)).await
    }

    async fn put_off_catch_up(&self, wait: Duration) -> StoreResult<()> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let mut failed: Option<i64> = transaction.exec_first(catching_up::FAILED, ()).await?;
                if failed.is_none() {
                    let furthest = (micros(furthest_catch_up()),);
                    failed = transaction.exec_first(catching_up::FAILED_STRANDED, furthest).await?;
                }
                if let Some(id) = failed {
                    transaction.exec_drop(catching_up::PUT_OFF, (micros(wait), id)).await?;
                }
                Ok(transaction.commit().await?)
            })
            .await
    }

    async fn put_off_redrive(&self) -> StoreResult<()> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                if let Some(id) = transaction.exec_first::<i64, _, _>(FAILED, ()).await? {
                    transaction.exec_drop(PUT_OFF, (id,)).await?;
                }
                Ok(transaction.commit().await?)
            })
            .await
    }

    async fn running(&self) -> StoreResult<u64> {
        self.0
            .run(|mut connection| async move {
                let counts: Option<(i64, i64)> = connection.exec_first(RUNNING, (None::<&str>,)).await?;
                Ok(counts.map_or(0, |(in_all, _)| count(in_all)))
            })
            .await
    }
}

async fn start(
    transaction: &mut Transaction<'_>,
    NewRedrive { scope, work, starter }: NewRedrive<'_>,
    limits: RunningLimits,
) -> DbResult<StartOutcome> {
    let mut tenant = scope.tenant().map(str::to_owned);
    if let RedriveWork::Events { subscription_id: id, .. } = work {
        let found: Option<(String, bool)> = transaction.exec_first(TENANT_OF, (id.0,)).await?;
        match found.filter(|(owner, _)| scope.includes(owner)) {
            None => return Ok(StartOutcome::NoSuchSubscription(*id)),
            Some((_, false)) => return Ok(StartOutcome::NotDeliverable(*id)),
            Some((owner, true)) => tenant = Some(owner),
        }
    }
    event_locks::lock(transaction, [STARTS]).await?;
    let counts: Option<(i64, i64)> = transaction.exec_first(RUNNING, (&tenant,)).await?;
    let (in_all, of_tenant) = counts.map_or((0, 0), |(in_all, of_tenant)| (count(in_all), count(of_tenant)));
    if let Some(refusal) = limits.refusal(scope, in_all, tenant.is_some().then_some(of_tenant)) {
        return Ok(StartOutcome::TooMany(refusal));
    }
    let columns = RedriveColumns::from(work);
    let values: Vec<Value> = vec![
        tenant.into(),
        columns.kind.into(),
        columns.subscription_id.into(),
        columns.event_type.into(),
        columns.final_error_code.into(),
        columns.since.map(SqlTime).into(),
        columns.until.map(SqlTime).into(),
        starter.key_id.map(|key| key.0).into(),
        starter.name.as_str().into(),
    ];
    transaction.exec_drop(START, Params::Positional(values)).await?;
    let id = transaction.last_insert_id().ok_or_else(|| DbError::unreadable("a redrive without an id"))?;
    let row: Option<Row> = transaction.exec_first(ONE, (id,)).await?;
    let mut row = row.ok_or_else(|| DbError::unreadable("a redrive that cannot be seen"))?;
    Ok(StartOutcome::Started(Box::new(redrive(&mut row)?)))
}

async fn cancel(mut connection: Conn, scope: &TenantScope, id: RedriveId) -> DbResult<CancelOutcome> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let row: Option<Row> = transaction.exec_first(LOCK, (id.0,)).await?;
    let found: Option<Redrive> = row.map(|mut row| redrive(&mut row)).transpose()?;
    let visible = |redrive: &Redrive| {
        scope.tenant().is_none_or(|own| redrive.tenant.as_deref().is_some_and(|tenant| tenant == own))
    };
    let Some(found) = found.filter(visible) else {
        transaction.rollback().await?;
        return Ok(CancelOutcome::NotFound);
    };
    if found.status != RedriveStatus::Running {
        transaction.rollback().await?;
        return Ok(CancelOutcome::NotRunning(found.status));
    }
    transaction.exec_drop(CANCEL, (id.0,)).await?;
    let row: Option<Row> = transaction.exec_first(ONE, (id.0,)).await?;
    let mut row = row.ok_or_else(|| DbError::unreadable("a redrive that cannot be seen"))?;
    transaction.commit().await?;
    Ok(CancelOutcome::Cancelled(Box::new(redrive(&mut row)?)))
}

/// The next step of the redrive that has waited longest.
async fn advance(mut connection: Conn, limits: StepLimits) -> DbResult<Option<RedriveStep>> {
    if connection.exec_first(PEEK, ()).await? == Some(false) {
        return Ok(None);
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let step = step(&mut transaction, limits).await;
    ended(transaction, step).await
}

async fn step(transaction: &mut Transaction<'_>, limits: StepLimits) -> DbResult<Option<RedriveStep>> {
    let row: Option<Row> = transaction.exec_first(NEXT, ()).await?;
    let Some(mut row) = row else { return Ok(None) };
    let row = &mut row;
    let id = RedriveId(take(row, 0)?);
    let tenant: Option<String> = take(row, 1)?;
    let work = work(row, 2)?;
    let mut after_at: Option<SqlTime> = take(row, 8)?;
    let mut after_id: i64 = take(row, 9)?;
    let now = take::<SqlTime>(row, 10)?.0;
    let mut step = RedriveStep::nothing(StepOf::Redrive(id));
    let mut error = None;
    match work {
        RedriveWork::DeadLetters(filter) => {
            let scope = match tenant {
                Some(tenant) => TenantScope::One(parsed(&tenant)?),
                None => TenantScope::All,
            };
            let window = LetterWindow::of_redrive(&filter, after_id, limits);
            let (chosen, sagas) = letters(transaction, &scope, window, limits.create).await?;
            after_id = chosen.reached.map_or(after_id, |letter| letter.0);
            step.take_over(sagas, &chosen);
        }
        RedriveWork::Events { subscription_id, since, until } => {
            let recipient = missed_events::read(transaction, subscription_id).await?;
            match recipient.filter(Recipient::is_deliverable) {
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
    let status = step.ended.unwrap_or(RedriveStatus::Running).as_str();
    let values = (after_at, after_id, step.examined, step.created(), step.skipped, status, error, id.0);
    transaction.exec_drop(ADVANCE, values).await?;
    if transaction.affected_rows() == 0 {
        return Err(DbError::unreadable("a redrive that is locked and cannot be seen"));
    }
    Ok(Some(step))
}

/// Commits a step that succeeded. A failed step is rolled back before its error is returned, not some time later: its row must
/// be the first free one when it is put off, otherwise another row would be.
async fn ended<T>(transaction: Transaction<'_>, step: DbResult<T>) -> DbResult<T> {
    match step {
        Ok(step) => {
            transaction.commit().await?;
            Ok(step)
        }
        Err(error) => {
            // Where this fails, too, the connection is closed, and the server rolls back.
            let _ = transaction.rollback().await;
            Err(error)
        }
    }
}

/// Examines the next letters, and requeues those that can be.
async fn letters(
    transaction: &mut Transaction<'_>,
    scope: &TenantScope,
    window: LetterWindow<'_>,
    create: u32,
) -> DbResult<(Chosen<DeadLetterId>, Vec<RequeuedSaga>)> {
    let (page, letters) = examine(transaction, scope, window).await?;
    let fate = |id: i64| match letters.iter().find(|letter| letter.id.0 == id) {
        None => Fate::Pass,
        Some(letter) if letter.ended.successor.is_some() || !letter.ended.deliverable => Fate::Skip,
        Some(_) => Fate::Send,
    };
    let fates: Vec<(DeadLetterId, Fate)> = page.iter().map(|id| (DeadLetterId(*id), fate(*id))).collect();
    let chosen = choose(&fates, create as usize, rows(page.len()) < u64::from(window.most));
    let to_send: Vec<_> = letters
        .iter()
        .filter(|letter| chosen.send.contains(&letter.id))
        .map(|letter| &letter.ended.next)
        .collect();
    let sagas = insert(transaction, &to_send).await?;
    Ok((chosen, sagas))
}
