//! Creates history of any age by legal steps, and counts how much of it is left.

use super::{
    TestDatabase,
    fixture::{TYPE, only},
    rows::{changes, count, db_now, ids},
};
use hooksaga_saga::{EventId, Retention, SagaId, SagaStatus, Timestamp};
use hooksaga_store::{Removed, ScanStep, Stores};
use std::time::Duration;

pub(super) const MINUTE: u64 = 60;
pub(super) const HOUR: u64 = 3600;
pub(super) const DAY: u64 = 24 * HOUR;

/// An hour for finished events, a day for dead letters.
pub(super) const RETENTION: Retention =
    Retention { finished: Duration::from_secs(HOUR), dead_letters: Some(Duration::from_secs(DAY)) };

/// A literal of the time this many seconds ago.
pub(super) async fn ago(db: &dyn TestDatabase, seconds: u64) -> String {
    let micros = db_now(db).await.as_micros() - i64::try_from(seconds * 1_000_000).unwrap();
    db.dialect().time(Timestamp::from_micros(micros))
}

pub(super) async fn last_id(db: &dyn TestDatabase, table: &str) -> i64 {
    only(ids(db, &format!("SELECT max(id) FROM {table}")).await)
}

/// An event that was created this long ago, and is routed.
pub(super) async fn old_event(db: &dyn TestDatabase, age: u64) -> EventId {
    let at = ago(db, age).await;
    let sql = format!(
        "INSERT INTO events (tenant, event_type, created_at, payload, correlation_id) \
         VALUES ('default', '{TYPE}', {at}, '{{\"n\": 1}}', 'c-1')"
    );
    changes(db, &sql, 1).await;
    EventId(last_id(db, "events").await)
}

/// A saga of it that reached its status this long ago, by legal steps; a dead one is not buried yet.
pub(super) async fn old_saga(
    db: &dyn TestDatabase,
    event: EventId,
    (subscription, generation): (i64, u32),
    status: SagaStatus,
    age: u64,
) -> SagaId {
    let at = ago(db, age).await;
    let sql = format!(
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
         max_retry_limit, next_attempt_at, created_at, updated_at) \
         VALUES ({event}, {subscription}, {generation}, 'Pending', 0, 1, {at}, {at}, {at})"
    );
    changes(db, &sql, 1).await;
    let saga = last_id(db, "webhook_delivery_sagas").await;
    if !status.is_final() {
        return SagaId(saga);
    }
    let (columns, values) = db.dialect().more_of_a_job();
    let job = match status {
        SagaStatus::Completed => "status = 'Completed', response_status = 204",
        _ => "status = 'Failed', error_code = 'HTTP_500'",
    };
    for sql in [
        format!(
            "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, created_at, \
             updated_at{columns}) SELECT id, subscription_id, next_attempt_at, 'Pending', {at}, {at}, {at}{values} \
             FROM webhook_delivery_sagas WHERE id = {saga}"
        ),
        format!("UPDATE webhook_delivery_jobs SET status = 'Leased', lease_token = 1 WHERE saga_id = {saga}"),
        format!(
            "UPDATE webhook_delivery_jobs SET {job}, lease_token = NULL, duration_ms = 5, updated_at = {at} \
             WHERE saga_id = {saga}"
        ),
        format!("UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE id = {saga}"),
        format!(
            "UPDATE webhook_delivery_sagas SET status = '{status}', attempt_count = 1, updated_at = {at} WHERE id = {saga}"
        ),
    ] {
        changes(db, &sql, 1).await;
    }
    SagaId(saga)
}

/// The letter of a dead saga.
pub(super) async fn old_letter(db: &dyn TestDatabase, saga: SagaId, age: u64) {
    let at = ago(db, age).await;
    let sql = format!(
        "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at) \
         SELECT id, event_id, subscription_id, 'HTTP_500', '1', {at} FROM webhook_delivery_sagas WHERE id = {saga}"
    );
    changes(db, &sql, 1).await;
}

/// An event with one delivery that succeeded, this long ago.
pub(super) async fn old_delivery(db: &dyn TestDatabase, age: u64) -> EventId {
    let event = old_event(db, age).await;
    old_saga(db, event, (1, 0), SagaStatus::Completed, age).await;
    event
}

/// Removes all history that may be removed.
pub(super) async fn sweep(stores: &Stores, retention: &Retention) -> Removed {
    let (mut after, mut sum) = (None, Removed::default());
    loop {
        let found = stores.janitor.old_events(retention, ScanStep { after, limit: 3 }).await.unwrap();
        let going: Vec<EventId> = found.may_go.iter().map(|event| event.id).collect();
        let removed = stores.janitor.remove(&going, retention.as_of(found.as_of)).await.unwrap();
        assert_eq!(removed.events, going.len() as u64);
        sum.events += removed.events;
        sum.sagas += removed.sagas;
        sum.jobs += removed.jobs;
        sum.dead_letters += removed.dead_letters;
        after = found.last.or(after);
        if found.is_end {
            return sum;
        }
    }
}

const TREE: &[&str] = &[
    "events",
    "webhook_delivery_sagas",
    "webhook_delivery_jobs",
    "dead_letters",
    "unmatched_events",
    "removals",
];

/// The number of rows of each table with history.
pub(super) async fn tree(db: &dyn TestDatabase) -> Vec<i64> {
    let mut rows = Vec::new();
    for table in TREE {
        rows.push(count(db, table).await);
    }
    rows
}
