//! Many rows at once, by plain SQL: tables as full as after a long time of use.

use super::{
    TestDatabase,
    fixture::{TYPE, append, new_event, verified},
    rows::{changes, count},
};
use hooksaga_saga::{EventId, SubscriptionId, Timestamp};
use hooksaga_store::Stores;

/// A time long ago: due, or finished long ago.
const PAST: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A derived table `numbers` with the column `n` from 0 up to `count`, in SQL that every database speaks.
fn numbers(count: u32) -> String {
    let digits = (0..10).map(|d| format!("SELECT {d} AS d")).collect::<Vec<_>>().join(" UNION ALL ");
    format!(
        "(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM ({digits}) a \
         CROSS JOIN ({digits}) b CROSS JOIN ({digits}) c CROSS JOIN ({digits}) e CROSS JOIN ({digits}) f) \
         numbers WHERE n < {count}"
    )
}

async fn insert(db: &dyn TestDatabase, into: &str, values: &str, rows: u32) {
    let sql = format!("INSERT INTO {into} SELECT {values} FROM {}", numbers(rows));
    changes(db, &sql, u64::from(rows)).await;
}

/// This many due Pending sagas of one event and subscription, which differ in their generation.
pub(super) async fn waiting_sagas(
    db: &dyn TestDatabase,
    event: EventId,
    subscription: SubscriptionId,
    rows: u32,
) {
    let past = db.dialect().time(PAST);
    insert(
        db,
        "webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
         max_retry_limit, next_attempt_at, created_at, updated_at)",
        &format!("{event}, {subscription}, n + 1000, 'Pending', 0, 5, {past}, {past}, {past}"),
        rows,
    )
    .await;
}

/// Takes every Pending saga, each with its own job, through a delivered attempt.
async fn finish_all_sagas(db: &dyn TestDatabase) {
    let d = db.dialect();
    let past = d.time(PAST);
    let all = u64::try_from(count(db, "webhook_delivery_sagas WHERE status = 'Pending'").await).unwrap();
    let (columns, values) = d.more_of_a_job();
    let jobs = format!(
        "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, \
         lease_resets, created_at, updated_at{columns}) SELECT id, subscription_id, next_attempt_at, 'Pending', \
         next_attempt_at, 0, {past}, {past}{values} FROM webhook_delivery_sagas WHERE status = 'Pending'"
    );
    changes(db, &jobs, all).await;
    for sql in [
        "UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE status = 'Pending'",
        "UPDATE webhook_delivery_jobs SET status = 'Leased', lease_token = 1 WHERE status = 'Pending'",
        "UPDATE webhook_delivery_jobs SET status = 'Completed', lease_token = NULL, duration_ms = 5 \
         WHERE status = 'Leased'",
        "UPDATE webhook_delivery_sagas SET status = 'Completed', attempt_count = attempt_count + 1 \
         WHERE status = 'InProgress'",
    ] {
        changes(db, sql, all).await;
    }
}

/// Thousands of finished rows in every table, this many subscriptions to the type `many`, and one that delivers.
pub(super) async fn fill(db: &dyn TestDatabase, rows: u32, subscriptions: u32) -> SubscriptionId {
    let stores = db.stores();
    let good = verified(&stores, TYPE, "https://good.example/").await;
    let event = append(&stores, new_event(TYPE)).await.id;
    super::fixture::route(&stores).await;
    let past = db.dialect().time(PAST);
    insert(
        db,
        "events (event_type, created_at, payload, external_id, correlation_id)",
        &format!("'{TYPE}', {past}, '1', NULL, 'c-1'"),
        rows,
    )
    .await;
    waiting_sagas(db, event, good, rows).await;
    finish_all_sagas(db).await;
    let letters = format!(
        "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at) \
         SELECT id, event_id, subscription_id, 'TIMEOUT', '1', {past} FROM webhook_delivery_sagas"
    );
    changes(db, &letters, u64::from(rows) + 1).await;
    fill_subscriptions(db, subscriptions).await;
    good
}

/// Verified subscriptions whose checks are over, with a secret each.
async fn fill_subscriptions(db: &dyn TestDatabase, rows: u32) {
    let d = db.dialect();
    let past = d.time(PAST);
    let numbered = match d {
        super::Dialect::MySql => "concat('https://many.example/', n)",
        super::Dialect::Sqlite | super::Dialect::Postgres => "'https://many.example/' || n",
    };
    insert(
        db,
        "subscriptions (event_type, callback_url, active, next_check_at, created_at, updated_at)",
        &format!("'many', {numbered}, TRUE, {past}, {past}, {past}"),
        rows,
    )
    .await;
    let verified = "UPDATE subscriptions SET verified_url = callback_url, announced_url = callback_url, \
                    check_round = verification_round, check_done = TRUE WHERE event_type = 'many'";
    changes(db, verified, u64::from(rows)).await;
    let failures = format!(
        "INSERT INTO endpoint_failures (subscription_id, failures, last_at, last_saga_id, last_error_code) \
         SELECT id, 0, {past}, 1, 'TIMEOUT' FROM subscriptions WHERE event_type = 'many'"
    );
    changes(db, &failures, u64::from(rows)).await;
    let counts = format!(
        "INSERT INTO delivery_counts (minute, subscription_id, shard, delivered, failed, dead_lettered) \
         SELECT {past}, id, 0, 1, 0, 0 FROM subscriptions WHERE event_type = 'many'"
    );
    changes(db, &counts, u64::from(rows)).await;
    let topics = "INSERT INTO subscription_topics (tenant, topic, subscription_id) \
                  SELECT tenant, event_type, id FROM subscriptions WHERE event_type = 'many'";
    changes(db, topics, u64::from(rows)).await;
    let secrets = format!(
        "INSERT INTO subscription_secrets (subscription_id, key_id, sealed, created_at) \
         SELECT id, 'key-1', {}, {past} FROM subscriptions WHERE event_type = 'many'",
        d.bytes(&[7; 60])
    );
    changes(db, &secrets, u64::from(rows)).await;
}

/// A verified subscription with this many due sagas.
pub(super) async fn with_backlog(
    db: &dyn TestDatabase,
    stores: &Stores,
    url: &str,
    event: EventId,
    rows: u32,
) -> SubscriptionId {
    let id = verified(stores, "backlog", url).await;
    waiting_sagas(db, event, id, rows).await;
    id
}

/// Updates the planner's statistics.
pub(super) async fn analyze(db: &dyn TestDatabase) {
    let tables: Vec<_> = super::tables::TABLES.iter().map(|table| table.name).collect();
    for sql in db.dialect().analyze(&tables) {
        db.execute_as_owner(&sql).await.unwrap();
    }
}
