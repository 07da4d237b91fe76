//! `endpoint_caretaker`: disables subscriptions whose endpoint is gone or keeps failing, and tells operators.
//!
//! It writes rarely, so it writes row by row.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::rows::{bigint, natural},
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use deadpool_postgres::Transaction;
use hooksaga_saga::{DisabledReason, EventId, ExternalId, FailureRun, SubscriptionId, Timestamp};
use hooksaga_store::{
    Announcement, AnnouncementKind, CaretakerStore, Cause, Disable, Happening, NewEvent, ScanStep,
    StoreResult, Troubled, TroubledPage, TroubledPlace,
};
use std::time::Duration;
use tokio_postgres::Row;

pub(crate) const GONE: &str = "/* caretaker.gone */
SELECT subscription_id, gone_url FROM endpoint_failures
WHERE gone_url IS NOT NULL ORDER BY subscription_id LIMIT $1";

pub(crate) const TROUBLED: &str = "/* caretaker.troubled */
SELECT subscription_id, since, last_at, failures, announced FROM endpoint_failures
WHERE since IS NOT NULL AND since <= now() - $1::bigint * interval '1 microsecond'
  AND (since, subscription_id) > ($2::timestamptz, $3::bigint)
ORDER BY since, subscription_id LIMIT $4";

/// Takes the cause off the counters, if it is still there. The row is locked by that: of two caretakers one finds it.
const TAKE_GONE: &str = "/* caretaker.take_gone */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = false, gone_url = NULL
WHERE subscription_id = $1 AND gone_url = $2 RETURNING true";

const TAKE_RUN: &str = "/* caretaker.take_run */
UPDATE endpoint_failures f SET since = NULL, failures = 0, announced = false
FROM (SELECT subscription_id, announced FROM endpoint_failures WHERE subscription_id = $1 AND since = $2 FOR UPDATE) old
WHERE f.subscription_id = old.subscription_id AND f.since = $2 RETURNING old.announced";

/// $3: the URL that is gone, if that is the cause. Then also a subscription that somebody has paused gets its reason: what
/// was in flight may say so, and nobody asks again. One that is disabled keeps the reason it has.
const DISABLE: &str = "/* caretaker.disable */
UPDATE subscriptions SET active = false, disabled_reason = $2, disabled_at = now()
WHERE id = $1 AND deleted_at IS NULL
  AND CASE WHEN $3::text IS NULL THEN active ELSE callback_url = $3 AND disabled_reason IS NULL END
RETURNING tenant, callback_url, disabled_at";

const NOTE_RUN: &str = "/* caretaker.note_run */
UPDATE endpoint_failures SET announced = true WHERE subscription_id = $1 AND since = $2 AND NOT announced";

const ACTIVE: &str = "/* caretaker.active */
SELECT tenant, callback_url, now() FROM subscriptions WHERE id = $1 AND active AND deleted_at IS NULL";

pub(crate) const VERIFIED: &str = "/* caretaker.verified */
SELECT tenant, verified_url, coalesce(checked_at, now()), id FROM subscriptions
WHERE verified_url IS NOT NULL AND announced_url IS DISTINCT FROM verified_url AND deleted_at IS NULL
ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED";

const NOTE_VERIFIED: &str = "/* caretaker.note_verified */
UPDATE subscriptions SET announced_url = verified_url WHERE id = $1";

const NOTE: &str = "/* caretaker.note */
INSERT INTO pending_announcements (subscription_id, kind, at, tenant, callback_url, reason)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING";

pub(crate) const ANNOUNCEMENTS: &str = "/* caretaker.announcements */
SELECT tenant, callback_url, at, subscription_id, kind, reason FROM pending_announcements
ORDER BY subscription_id, kind, at LIMIT $1";

/// Where the `external_id` is taken, it was announced before.
const ANNOUNCE: &str = "/* caretaker.announce */
WITH new AS (
    INSERT INTO events (tenant, event_type, external_id, correlation_id, payload)
    VALUES ($1::text, $2::text, $3::text, $4::text, $5) ON CONFLICT DO NOTHING RETURNING id
), queued AS (
    INSERT INTO unrouted_events (event_id) SELECT id FROM new
)
SELECT id FROM new";

const FORGET: &str = "/* caretaker.forget */
DELETE FROM pending_announcements WHERE subscription_id = $1 AND kind = $2 AND at = $3";

pub(crate) struct CaretakerSql(pub(crate) RolePool);

#[async_trait]
impl CaretakerStore for CaretakerSql {
    async fn gone(&self, limit: u32) -> StoreResult<Vec<Disable>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(GONE).await?;
                let rows = client.query(&statement, &[&bigint(limit)]).await?;
                let read = |row: &Row| {
                    let cause = Cause::Gone { url: row.try_get(1)? };
                    Ok(Disable { subscription_id: SubscriptionId(row.try_get(0)?), cause })
                };
                rows.iter().map(read).collect()
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
            .run(|client| async move {
                let statement = client.prepare_cached(TROUBLED).await?;
                let rows =
                    client.query(&statement, &[&micros(failing_for), &since, &id, &bigint(limit)]).await?;
                let items = rows.iter().map(troubled).collect::<DbResult<Vec<_>>>()?;
                Ok(TroubledPage::of(items, limit))
            })
            .await
    }

    async fn disable(&self, causes: &[Disable]) -> StoreResult<Vec<Announcement>> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let mut disabled = Vec::new();
                for cause in causes {
                    disabled.extend(disable(&transaction, cause).await?);
                }
                transaction.commit().await?;
                Ok(disabled)
            })
            .await
    }

    async fn note_failing(&self, runs: &[(SubscriptionId, Timestamp)]) -> StoreResult<Vec<Announcement>> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let mut noted = Vec::new();
                for (id, since) in runs {
                    if transaction.execute(NOTE_RUN, &[&id.0, &SqlTime(*since)]).await? == 0 {
                        continue;
                    }
                    if let Some(row) = transaction.query_opt(ACTIVE, &[&id.0]).await? {
                        let failing = announcement(&row, Happening::new(AnnouncementKind::Failing, *id))?;
                        note(&transaction, &failing).await?;
                        noted.push(failing);
                    }
                }
                transaction.commit().await?;
                Ok(noted)
            })
            .await
    }

    async fn note_verified(&self, limit: u32) -> StoreResult<u32> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let statement = transaction.prepare_cached(VERIFIED).await?;
                let rows = transaction.query(&statement, &[&bigint(limit)]).await?;
                for row in &rows {
                    let id = SubscriptionId(row.try_get(3)?);
                    transaction.execute(NOTE_VERIFIED, &[&id.0]).await?;
                    let verified = Happening::new(AnnouncementKind::Verified, id);
                    note(&transaction, &announcement(row, verified)?).await?;
                }
                transaction.commit().await?;
                Ok(u32::try_from(rows.len()).unwrap_or(u32::MAX))
            })
            .await
    }

    async fn announcements(&self, limit: u32) -> StoreResult<Vec<Announcement>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(ANNOUNCEMENTS).await?;
                let rows = client.query(&statement, &[&bigint(limit)]).await?;
                let read = |row: &Row| {
                    let kind: &str = row.try_get(4)?;
                    let what = Happening::stored(SubscriptionId(row.try_get(3)?), kind, row.try_get(5)?);
                    announcement(row, what.ok_or_else(|| DbError::unreadable(kind))?)
                };
                rows.iter().map(read).collect()
            })
            .await
    }

    async fn announce(&self, events: &[(Announcement, NewEvent)]) -> StoreResult<Vec<EventId>> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let mut created = Vec::new();
                for (announcement, event) in events {
                    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] = [
                        &event.tenant.as_str(),
                        &event.event_type.as_str(),
                        &event.external_id.as_ref().map(ExternalId::as_str),
                        &event.correlation_id.as_str(),
                        &&*event.payload,
                    ];
                    if let Some(row) = transaction.query_opt(ANNOUNCE, &parameters).await? {
                        created.push(EventId(row.try_get(0)?));
                    }
                    let (id, kind) = (announcement.subscription_id.0, announcement.kind.as_str());
                    transaction.execute(FORGET, &[&id, &kind, &SqlTime(announcement.at)]).await?;
                }
                transaction.commit().await?;
                Ok(created)
            })
            .await
    }
}

fn troubled(row: &Row) -> DbResult<Troubled> {
    let run = FailureRun {
        since: row.try_get::<_, SqlTime>(1)?.0,
        last_at: row.try_get::<_, SqlTime>(2)?.0,
        failures: natural(row.try_get(3)?),
        announced: row.try_get(4)?,
    };
    Ok(Troubled { subscription_id: SubscriptionId(row.try_get(0)?), run })
}

async fn disable(transaction: &Transaction<'_>, wanted: &Disable) -> DbResult<Option<Announcement>> {
    let id = wanted.subscription_id;
    let (taken, url) = match &wanted.cause {
        Cause::Gone { url } => (transaction.query_opt(TAKE_GONE, &[&id.0, url]).await?, Some(url)),
        Cause::Failing { since } => {
            (transaction.query_opt(TAKE_RUN, &[&id.0, &SqlTime(*since)]).await?, None)
        }
    };
    let Some(taken) = taken else { return Ok(None) };
    let was_announced: bool = taken.try_get(0)?;
    let reason = wanted.cause.reason();
    let Some(row) = transaction.query_opt(DISABLE, &[&id.0, &reason.as_str(), &url]).await? else {
        return Ok(None);
    };
    let disabled = announcement(&row, Happening::disabled(id, reason))?;
    for news in disabled.with_its_failure(was_announced) {
        note(transaction, &news).await?;
    }
    Ok(Some(disabled))
}

/// The announcement about a subscription, from a row that begins with its tenant, its URL and the time.
fn announcement(row: &Row, what: Happening) -> DbResult<Announcement> {
    Ok(what.at(row.try_get::<_, SqlTime>(2)?.0, row.try_get(0)?, row.try_get(1)?))
}

async fn note(transaction: &Transaction<'_>, news: &Announcement) -> DbResult<()> {
    if news.is_wanted() {
        let (id, kind, reason) =
            (news.subscription_id.0, news.kind.as_str(), news.reason.map(DisabledReason::as_str));
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&id, &kind, &SqlTime(news.at), &news.tenant, &news.callback_url, &reason];
        transaction.execute(NOTE, &parameters).await?;
    }
    Ok(())
}
