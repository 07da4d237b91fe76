//! `endpoint_caretaker`: disables subscriptions whose endpoint is gone or keeps failing, and tells operators.
//!
//! It writes rarely, so it writes row by row.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::rows::{natural, take},
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use hooksaga_saga::{DisabledReason, EventId, ExternalId, FailureRun, SubscriptionId, Timestamp};
use hooksaga_store::{
    Announcement, AnnouncementKind, CaretakerStore, Cause, Disable, Happening, NewEvent, ScanStep,
    StoreResult, Troubled, TroubledPage, TroubledPlace,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::time::Duration;

pub(crate) const GONE: &str = "/* caretaker.gone */
SELECT subscription_id, gone_url FROM endpoint_failures FORCE INDEX (idx_failures_gone)
WHERE is_gone = TRUE ORDER BY subscription_id LIMIT ?";

pub(crate) const TROUBLED: &str = "/* caretaker.troubled */
SELECT subscription_id, since, last_at, failures, announced FROM endpoint_failures FORCE INDEX (idx_failures_since)
WHERE since >= ? AND since <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AND (since > ? OR subscription_id > ?)
ORDER BY since, subscription_id LIMIT ?";

/// Locks the cause, if it is still there: of two caretakers only one finds it.
const LOCK_GONE: &str = "/* caretaker.lock_gone */
SELECT announced FROM endpoint_failures WHERE subscription_id = ? AND gone_url = ? FOR UPDATE";
const LOCK_RUN: &str = "/* caretaker.lock_run */
SELECT announced FROM endpoint_failures WHERE subscription_id = ? AND since = ? FOR UPDATE";

/// Removes it from the counters.
const TAKE: &str = "/* caretaker.take */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = FALSE, gone_url = IF(?, NULL, gone_url)
WHERE subscription_id = ?";

const LOCK_ACTIVE: &str = "/* caretaker.lock_active */
SELECT tenant, callback_url, UTC_TIMESTAMP(6) FROM subscriptions
WHERE id = ? AND active AND deleted_at IS NULL FOR UPDATE";

/// Disables because the URL is gone. That includes a paused subscription: an attempt in flight may get the 410, and no later
/// one asks again. A disabled subscription keeps its reason.
const LOCK_GONE_FROM: &str = "/* caretaker.lock_gone_from */
SELECT tenant, callback_url, UTC_TIMESTAMP(6) FROM subscriptions
WHERE id = ? AND disabled_reason IS NULL AND deleted_at IS NULL AND callback_url = ? FOR UPDATE";

const DISABLE: &str = "/* caretaker.disable */
UPDATE subscriptions SET active = FALSE, disabled_reason = ?, disabled_at = ? WHERE id = ?";

const NOTE_RUN: &str = "/* caretaker.note_run */
UPDATE endpoint_failures SET announced = TRUE WHERE subscription_id = ? AND since = ? AND NOT announced";

pub(crate) const ANY_VERIFIED: &str = "/* caretaker.any_verified */
SELECT id FROM subscriptions FORCE INDEX (idx_sub_unannounced) WHERE to_announce = TRUE LIMIT 1";

pub(crate) const VERIFIED: &str = "/* caretaker.verified */
SELECT tenant, verified_url, COALESCE(checked_at, UTC_TIMESTAMP(6)), id
FROM subscriptions FORCE INDEX (idx_sub_unannounced)
WHERE to_announce = TRUE ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED";

const NOTE_VERIFIED: &str = "/* caretaker.note_verified */
UPDATE subscriptions SET announced_url = verified_url WHERE id = ?";

/// Two runs cannot end in the same microsecond: no key is taken.
const NOTE: &str = "/* caretaker.note */
INSERT INTO pending_announcements (subscription_id, kind, at, tenant, callback_url, reason) VALUES (?, ?, ?, ?, ?, ?)";

pub(crate) const ANNOUNCEMENTS: &str = "/* caretaker.announcements */
SELECT tenant, callback_url, at, subscription_id, kind, reason FROM pending_announcements FORCE INDEX (PRIMARY)
ORDER BY subscription_id, kind, at LIMIT ?";

const ANNOUNCED: &str = "/* caretaker.announced */
SELECT id FROM events FORCE INDEX (uniq_event_external_id) WHERE external_id = ? AND tenant = ?";

const INSERT_EVENT: &str = "/* caretaker.insert_event */
INSERT INTO events (tenant, event_type, payload, external_id, correlation_id, created_at)
VALUES (?, ?, ?, ?, ?, UTC_TIMESTAMP(6))";

const QUEUE_EVENT: &str = "/* caretaker.queue_event */ INSERT INTO unrouted_events (event_id) VALUES (?)";

const FORGET: &str = "/* caretaker.forget */
DELETE FROM pending_announcements WHERE subscription_id = ? AND kind = ? AND at = ?";

pub(crate) struct CaretakerSql(pub(crate) RolePool);

#[async_trait]
impl CaretakerStore for CaretakerSql {
    async fn gone(&self, limit: u32) -> StoreResult<Vec<Disable>> {
        self.0
            .run(|mut connection| async move {
                let rows: Vec<(i64, String)> = connection.exec(GONE, (limit,)).await?;
                let read =
                    |(id, url)| Disable { subscription_id: SubscriptionId(id), cause: Cause::Gone { url } };
                Ok(rows.into_iter().map(read).collect())
            })
            .await
    }

    async fn troubled(
        &self,
        failing_for: Duration,
        step: ScanStep<TroubledPlace>,
    ) -> StoreResult<TroubledPage> {
        let ScanStep { after, limit } = step;
        let (since, id) =
            after.map_or((SqlTime(Timestamp::from_micros(0)), 0), |(since, id)| (SqlTime(since), id.0));
        self.0
            .run(|mut connection| async move {
                let rows: Vec<Row> =
                    connection.exec(TROUBLED, (since, micros(failing_for), since, id, limit)).await?;
                let items = rows.into_iter().map(troubled).collect::<DbResult<Vec<_>>>()?;
                Ok(TroubledPage::of(items, limit))
            })
            .await
    }

    async fn disable(&self, causes: &[Disable]) -> StoreResult<Vec<Announcement>> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let mut disabled = Vec::new();
                for cause in causes {
                    disabled.extend(disable(&mut transaction, cause).await?);
                }
                transaction.commit().await?;
                Ok(disabled)
            })
            .await
    }

    async fn note_failing(&self, runs: &[(SubscriptionId, Timestamp)]) -> StoreResult<Vec<Announcement>> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let mut noted = Vec::new();
                for (id, since) in runs {
                    transaction.exec_drop(NOTE_RUN, (id.0, SqlTime(*since))).await?;
                    if transaction.affected_rows() == 0 {
                        continue;
                    }
                    let row: Option<Row> = transaction.exec_first(LOCK_ACTIVE, (id.0,)).await?;
                    if let Some(mut row) = row {
                        let failing = announcement(&mut row, Happening::new(AnnouncementKind::Failing, *id))?;
                        note(&mut transaction, &failing).await?;
                        noted.push(failing);
                    }
                }
                transaction.commit().await?;
                Ok(noted)
            })
            .await
    }

    async fn note_verified(&self, limit: u32) -> StoreResult<u32> {
        self.0.run(|connection| note_verified(connection, limit)).await
    }

    async fn announcements(&self, limit: u32) -> StoreResult<Vec<Announcement>> {
        self.0
            .run(|mut connection| async move {
                let rows: Vec<Row> = connection.exec(ANNOUNCEMENTS, (limit,)).await?;
                let read = |mut row: Row| {
                    let (id, kind): (i64, String) = (take(&mut row, 3)?, take(&mut row, 4)?);
                    let reason: Option<String> = take(&mut row, 5)?;
                    let what = Happening::stored(SubscriptionId(id), &kind, reason.as_deref());
                    announcement(&mut row, what.ok_or_else(|| DbError::unreadable(kind))?)
                };
                rows.into_iter().map(read).collect()
            })
            .await
    }

    /// If another caretaker takes the `external_id` in between, this tries again.
    async fn announce(&self, events: &[(Announcement, NewEvent)]) -> StoreResult<Vec<EventId>> {
        self.0
            .run_inserting(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let mut created = Vec::new();
                for (announcement, event) in events {
                    created.extend(append(&mut transaction, event).await?);
                    let key = (
                        announcement.subscription_id.0,
                        announcement.kind.as_str(),
                        SqlTime(announcement.at),
                    );
                    transaction.exec_drop(FORGET, key).await?;
                }
                transaction.commit().await?;
                Ok(created)
            })
            .await
    }
}

fn troubled(mut row: Row) -> DbResult<Troubled> {
    let run = FailureRun {
        since: take::<SqlTime>(&mut row, 1)?.0,
        last_at: take::<SqlTime>(&mut row, 2)?.0,
        failures: natural(take(&mut row, 3)?),
        announced: take(&mut row, 4)?,
    };
    Ok(Troubled { subscription_id: SubscriptionId(take(&mut row, 0)?), run })
}

async fn disable(transaction: &mut Transaction<'_>, wanted: &Disable) -> DbResult<Option<Announcement>> {
    let id = wanted.subscription_id;
    let (found, url): (Option<bool>, Option<&str>) = match &wanted.cause {
        Cause::Gone { url } => (transaction.exec_first(LOCK_GONE, (id.0, url)).await?, Some(url)),
        Cause::Failing { since } => (transaction.exec_first(LOCK_RUN, (id.0, SqlTime(*since))).await?, None),
    };
    let Some(was_announced) = found else { return Ok(None) };
    transaction.exec_drop(TAKE, (url.is_some(), id.0)).await?;
    let row: Option<Row> = match url {
        Some(url) => transaction.exec_first(LOCK_GONE_FROM, (id.0, url)).await?,
        None => transaction.exec_first(LOCK_ACTIVE, (id.0,)).await?,
    };
    let Some(mut row) = row else { return Ok(None) };
    let reason = wanted.cause.reason();
    let disabled = announcement(&mut row, Happening::disabled(id, reason))?;
    transaction.exec_drop(DISABLE, (reason.as_str(), SqlTime(disabled.at), id.0)).await?;
    for news in disabled.with_its_failure(was_announced) {
        note(transaction, &news).await?;
    }
    Ok(Some(disabled))
}

async fn note_verified(mut connection: Conn, limit: u32) -> DbResult<u32> {
    // A look that finds nothing, as nearly all do, is this one statement.
    if connection.exec_first::<i64, _, _>(ANY_VERIFIED, ()).await?.is_none() {
        return Ok(0);
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let rows: Vec<Row> = transaction.exec(VERIFIED, (limit,)).await?;
    let found = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    for mut row in rows {
        let id = SubscriptionId(take(&mut row, 3)?);
        transaction.exec_drop(NOTE_VERIFIED, (id.0,)).await?;
        let verified = Happening::new(AnnouncementKind::Verified, id);
        note(&mut transaction, &announcement(&mut row, verified)?).await?;
    }
    transaction.commit().await?;
    Ok(found)
}

/// Appends an event and queues it, unless its `external_id` is taken: then it was announced before.
async fn append(transaction: &mut Transaction<'_>, event: &NewEvent) -> DbResult<Option<EventId>> {
    let external_id = event.external_id.as_ref().map(ExternalId::as_str);
    let key = (external_id, event.tenant.as_str());
    if transaction.exec_first::<i64, _, _>(ANNOUNCED, key).await?.is_some() {
        return Ok(None);
    }
    let row = (
        event.tenant.as_str(),
        event.event_type.as_str(),
        &*event.payload,
        external_id,
        event.correlation_id.as_str(),
    );
    transaction.exec_drop(INSERT_EVENT, row).await?;
    let id = transaction.last_insert_id().and_then(|id| i64::try_from(id).ok());
    let id = id.ok_or_else(|| DbError::unreadable("an event without an id"))?;
    transaction.exec_drop(QUEUE_EVENT, (id,)).await?;
    Ok(Some(EventId(id)))
}

/// The announcement about a subscription, from a row that begins with its tenant, its URL and the time.
fn announcement(row: &mut Row, what: Happening) -> DbResult<Announcement> {
    Ok(what.at(take::<SqlTime>(row, 2)?.0, take(row, 0)?, take(row, 1)?))
}

async fn note(transaction: &mut Transaction<'_>, news: &Announcement) -> DbResult<()> {
    if news.is_wanted() {
        let (id, kind, reason) =
            (news.subscription_id.0, news.kind.as_str(), news.reason.map(DisabledReason::as_str));
        let row = (id, kind, SqlTime(news.at), &news.tenant, &news.callback_url, reason);
        transaction.exec_drop(NOTE, row).await?;
    }
    Ok(())
}
