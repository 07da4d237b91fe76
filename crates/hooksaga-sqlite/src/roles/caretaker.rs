//! `endpoint_caretaker`: disables subscriptions whose endpoint is gone or keeps failing, and tells operators.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{DisabledReason, EventId, ExternalId, FailureRun, SubscriptionId, Timestamp};
use hooksaga_store::{
    Announcement, AnnouncementKind, CaretakerStore, Cause, Disable, Happening, NewEvent, ScanStep,
    StoreResult, Troubled, TroubledPage, TroubledPlace,
};
use rusqlite::{Error, OptionalExtension, Row, types::Type};
use std::time::Duration;

const GONE: &str = "/* caretaker.gone */
SELECT subscription_id, gone_url FROM endpoint_failures INDEXED BY idx_failures_gone
 WHERE gone_url IS NOT NULL ORDER BY subscription_id LIMIT ?1";

const TROUBLED: &str = "/* caretaker.troubled */
SELECT subscription_id, since, last_at, failures, announced FROM endpoint_failures INDEXED BY idx_failures_since
 WHERE since IS NOT NULL AND since <= ?1 AND (since, subscription_id) > (?2, ?3)
 ORDER BY since, subscription_id LIMIT ?4";

/// Takes the cause off the counters, if it is still there: the subscription has what it is to be disabled for once.
const TAKE_GONE: &str = "/* caretaker.take_gone */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = 0, gone_url = NULL
 WHERE subscription_id = ?1 AND gone_url = ?2";

const WAS_ANNOUNCED: &str = "/* caretaker.was_announced */
SELECT announced FROM endpoint_failures WHERE subscription_id = ?1 AND since = ?2";

const TAKE_RUN: &str = "/* caretaker.take_run */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = 0 WHERE subscription_id = ?1 AND since = ?2";

/// `?4` is the URL that is gone, or null. If there is one, also a subscription that somebody has paused gets its reason:
/// what was in flight may say so, and nobody asks again. One that is disabled keeps the reason it has.
const DISABLE: &str = "/* caretaker.disable */
UPDATE subscriptions SET active = 0, disabled_reason = ?2, disabled_at = ?3
 WHERE id = ?1 AND deleted_at IS NULL AND iif(?4 IS NULL, active, callback_url = ?4 AND disabled_reason IS NULL)
RETURNING tenant, callback_url";

const NOTE_RUN: &str = "/* caretaker.note_run */
UPDATE endpoint_failures SET announced = 1 WHERE subscription_id = ?1 AND since = ?2 AND NOT announced";

const ACTIVE: &str = "/* caretaker.active */
SELECT tenant, callback_url FROM subscriptions WHERE id = ?1 AND active AND deleted_at IS NULL";

/// INDEXED BY: only that index is as short as the list.
const VERIFIED: &str = "/* caretaker.verified */
SELECT tenant, verified_url, id, coalesce(checked_at, ?1) FROM subscriptions INDEXED BY idx_sub_unannounced
 WHERE verified_url IS NOT NULL AND announced_url IS NOT verified_url AND deleted_at IS NULL
 ORDER BY id LIMIT ?2";

const NOTE_VERIFIED: &str = "/* caretaker.note_verified */
UPDATE subscriptions SET announced_url = verified_url WHERE id = ?1";

const NOTE: &str = "/* caretaker.note */
INSERT INTO pending_announcements (subscription_id, kind, at, tenant, callback_url, reason)
VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";

const ANNOUNCEMENTS: &str = "/* caretaker.announcements */
SELECT kind, subscription_id, at, tenant, callback_url, reason FROM pending_announcements
 ORDER BY subscription_id, kind, at LIMIT ?1";

const INSERT_EVENT: &str = "/* caretaker.insert_event */
INSERT INTO events (tenant, event_type, created_at, external_id, correlation_id, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";

const QUEUE_EVENT: &str = "/* caretaker.queue_event */
INSERT INTO unrouted_events (event_id) VALUES (?1)";

const FORGET: &str = "/* caretaker.forget */
DELETE FROM pending_announcements WHERE subscription_id = ?1 AND kind = ?2 AND at = ?3";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[GONE, TROUBLED, VERIFIED, ANNOUNCEMENTS];

pub(crate) struct CaretakerSql(pub(crate) RoleHandle);

#[async_trait]
impl CaretakerStore for CaretakerSql {
    async fn gone(&self, limit: u32) -> StoreResult<Vec<Disable>> {
        let read = |row: &Row<'_>| {
            let cause = Cause::Gone { url: row.get(1)? };
            Ok(Disable { subscription_id: SubscriptionId(row.get(0)?), cause })
        };
        self.0.read(move |tx| rows::all(tx, GONE, [limit], read)).await
    }

    async fn troubled(
        &self,
        failing_for: Duration,
        step: ScanStep<TroubledPlace>,
    ) -> StoreResult<TroubledPage> {
        self.0.read(move |tx| troubled(tx, failing_for, step)).await
    }

    async fn disable(&self, causes: &[Disable]) -> StoreResult<Vec<Announcement>> {
        let causes = causes.to_vec();
        self.0.write(move |tx| disable(tx, &causes)).await
    }

    async fn note_failing(&self, runs: &[(SubscriptionId, Timestamp)]) -> StoreResult<Vec<Announcement>> {
        let runs = runs.to_vec();
        self.0.write(move |tx| note_failing(tx, &runs)).await
    }

    async fn note_verified(&self, limit: u32) -> StoreResult<u32> {
        // A look that finds nothing, as nearly all do, is no reason to write.
        let waits = |tx: &Tx<'_>| Ok(tx.prepare(VERIFIED)?.exists((0, 1))?);
        if !self.0.read(waits).await? {
            return Ok(0);
        }
        self.0.write(move |tx| note_verified(tx, limit)).await
    }

    async fn announcements(&self, limit: u32) -> StoreResult<Vec<Announcement>> {
        self.0.read(move |tx| rows::all(tx, ANNOUNCEMENTS, [limit], stored_announcement)).await
    }

    async fn announce(&self, events: &[(Announcement, NewEvent)]) -> StoreResult<Vec<EventId>> {
        let events = events.to_vec();
        self.0.write(move |tx| announce(tx, &events)).await
    }
}

fn troubled(tx: &Tx<'_>, failing_for: Duration, step: ScanStep<TroubledPlace>) -> DbResult<TroubledPage> {
    let ScanStep { after, limit } = step;
    let failing_for = i64::try_from(failing_for.as_micros()).unwrap_or(i64::MAX);
    let until = tx.now.as_micros().saturating_sub(failing_for);
    let (since, id) = after.map_or((i64::MIN, i64::MIN), |(since, id)| (since.as_micros(), id.0));
    let items = rows::all(tx, TROUBLED, (until, since, id, limit), |row| {
        let run = FailureRun {
            since: rows::time(row, 1)?,
            last_at: rows::time(row, 2)?,
            failures: row.get(3)?,
            announced: row.get(4)?,
        };
        Ok(Troubled { subscription_id: SubscriptionId(row.get(0)?), run })
    })?;
    Ok(TroubledPage::of(items, limit))
}

fn disable(tx: &Tx<'_>, causes: &[Disable]) -> DbResult<Vec<Announcement>> {
    let mut disabled = Vec::new();
    for Disable { subscription_id, cause } in causes {
        let (taken, was_announced, url) = match cause {
            Cause::Gone { url } => (tx.execute(TAKE_GONE, (subscription_id.0, url))?, true, Some(url)),
            Cause::Failing { since } => {
                let key = (subscription_id.0, since.as_micros());
                let announced = tx.prepare(WAS_ANNOUNCED)?.query_row(key, |row| row.get(0)).optional()?;
                (tx.execute(TAKE_RUN, key)?, announced.unwrap_or(true), None)
            }
        };
        if taken == 0 {
            continue;
        }
        let reason = cause.reason();
        let read = announcement(Happening::disabled(*subscription_id, reason), tx.now);
        let parameters = (subscription_id.0, reason.as_str(), tx.now.as_micros(), url);
        let Some(done) = tx.prepare(DISABLE)?.query_row(parameters, read).optional()? else { continue };
        for news in done.with_its_failure(was_announced) {
            note(tx, &news)?;
        }
        disabled.push(done);
    }
    Ok(disabled)
}

fn note_failing(tx: &Tx<'_>, runs: &[(SubscriptionId, Timestamp)]) -> DbResult<Vec<Announcement>> {
    let mut noted = Vec::new();
    for (id, since) in runs {
        if tx.execute(NOTE_RUN, (id.0, since.as_micros()))? == 0 {
            continue;
        }
        let read = announcement(Happening::new(AnnouncementKind::Failing, *id), tx.now);
        if let Some(failing) = tx.prepare(ACTIVE)?.query_row([id.0], read).optional()? {
            note(tx, &failing)?;
            noted.push(failing);
        }
    }
    Ok(noted)
}

fn note_verified(tx: &Tx<'_>, limit: u32) -> DbResult<u32> {
    let verified = rows::all(tx, VERIFIED, (tx.now.as_micros(), limit), |row| {
        let (id, at) = (SubscriptionId(row.get(2)?), rows::time(row, 3)?);
        announcement(Happening::new(AnnouncementKind::Verified, id), at)(row)
    })?;
    for one in &verified {
        tx.execute(NOTE_VERIFIED, [one.subscription_id.0])?;
        note(tx, one)?;
    }
    Ok(u32::try_from(verified.len()).unwrap_or(u32::MAX))
}

/// Of what happened to a subscription, from a row that begins with its tenant and URL.
fn announcement(what: Happening, at: Timestamp) -> impl Fn(&Row<'_>) -> rusqlite::Result<Announcement> {
    move |row| Ok(what.at(at, row.get(0)?, row.get(1)?))
}

fn note(tx: &Tx<'_>, news: &Announcement) -> DbResult<()> {
    if news.is_wanted() {
        let (id, at) = (news.subscription_id.0, news.at.as_micros());
        let reason = news.reason.map(DisabledReason::as_str);
        tx.execute(NOTE, (id, news.kind.as_str(), at, &news.tenant, &news.callback_url, reason))?;
    }
    Ok(())
}

fn stored_announcement(row: &Row<'_>) -> rusqlite::Result<Announcement> {
    let (kind, reason): (String, Option<String>) = (row.get(0)?, row.get(5)?);
    let what = Happening::stored(SubscriptionId(row.get(1)?), &kind, reason.as_deref());
    let what = what.ok_or_else(|| Error::InvalidColumnType(0, kind, Type::Text))?;
    Ok(what.at(rows::time(row, 2)?, row.get(3)?, row.get(4)?))
}

fn announce(tx: &Tx<'_>, events: &[(Announcement, NewEvent)]) -> DbResult<Vec<EventId>> {
    let mut created = Vec::new();
    for (announcement, event) in events {
        let inserted = tx.execute(
            INSERT_EVENT,
            (
                event.tenant.as_str(),
                event.event_type.as_str(),
                tx.now.as_micros(),
                event.external_id.as_ref().map(ExternalId::as_str),
                event.correlation_id.as_str(),
                &*event.payload,
            ),
        )?;
        if inserted > 0 {
            let id = tx.last_id();
            tx.execute(QUEUE_EVENT, [id])?;
            created.push(EventId(id));
        }
        let key = (announcement.subscription_id.0, announcement.kind.as_str(), announcement.at.as_micros());
        tx.execute(FORGET, key)?;
    }
    Ok(created)
}
