//! Changes of events, dead letters and subscriptions that the schema refuses to every role, even to the owner. These cases try
//! them as the owner.

use super::{
    Dialect, TestDatabase,
    fixture::{ALL, TYPE, URL, append, buried, create, external_id, new_event, new_subscription},
    rows::{all_rows, changes, count},
};
use hooksaga_saga::Timestamp;
use hooksaga_store::{NewEvent, StoreError};

/// The owner runs this statement, and the schema refuses it.
pub(super) async fn refused(db: &dyn TestDatabase, sql: &str) {
    match db.execute_as_owner(sql).await {
        Err(StoreError::Refused(_)) => {}
        other => panic!("{sql}\nwas not refused: {other:?}"),
    }
}

/// Every change of a row is refused, and the row is still the same.
pub(super) async fn no_change(db: &dyn TestDatabase, table: &str, id: i64, changes: &[(&str, String)]) {
    let before = all_rows(db, table).await;
    for (column, value) in changes {
        refused(db, &format!("UPDATE {table} SET {column} = {value} WHERE id = {id}")).await;
    }
    assert_eq!(all_rows(db, table).await, before);
}

pub(super) fn text(value: &str) -> String {
    format!("'{value}'")
}

pub(super) fn later(dialect: Dialect) -> String {
    dialect.time(Timestamp::from_micros(4_000_000_000_000_000))
}

pub async fn an_event_never_changes(db: &dyn TestDatabase) {
    let event = NewEvent { external_id: Some(external_id("x-1")), ..new_event(TYPE) };
    let id = append(&db.stores(), event).await.id;
    let changes = [
        ("id", "id + 1000".to_owned()),
        ("tenant", text("another")),
        ("event_type", text("another")),
        ("created_at", later(db.dialect())),
        ("payload", text("{}")),
        ("external_id", text("x-2")),
        ("external_id", "NULL".to_owned()),
        ("correlation_id", text("another")),
    ];
    no_change(db, "events", id.0, &changes).await;
    refused(db, &format!("DELETE FROM events WHERE id = {id}")).await;
    refused(db, "DELETE FROM events").await;
    assert_eq!(count(db, "events").await, 1);
}

pub async fn an_event_without_its_due_form_is_refused(db: &dyn TestDatabase) {
    let now = db.dialect().now();
    let insert = |event_type: &str, external_id: &str, correlation_id: &str| {
        format!(
            "INSERT INTO events (event_type, created_at, payload, external_id, correlation_id) \
             VALUES ('{event_type}', {now}, '1', '{external_id}', '{correlation_id}')"
        )
    };
    changes(db, &insert(&"t".repeat(100), &"x".repeat(200), &"c".repeat(100)), 1).await;
    refused(db, &insert(&"t".repeat(101), "x-1", "c")).await;
    refused(db, &insert("t", &"x".repeat(201), "c")).await;
    refused(db, &insert("t", "x-1", &"c".repeat(101))).await;
    refused(db, &insert("t", &"x".repeat(200), "c")).await;
    assert_eq!(count(db, "events").await, 1);
}

pub async fn a_dead_letter_never_changes(db: &dyn TestDatabase) {
    let (fixed, letter) = buried(db).await;
    let d = db.dialect();
    let changes = [
        ("id", "id + 1000".to_owned()),
        ("saga_id", "saga_id + 1".to_owned()),
        ("event_id", "event_id + 1".to_owned()),
        ("subscription_id", "subscription_id + 1".to_owned()),
        ("final_error_code", text("OTHER")),
        ("payload", text("{}")),
        ("created_at", later(d)),
    ];
    no_change(db, "dead_letters", letter.0, &changes).await;
    refused(db, "DELETE FROM dead_letters").await;
    let second = format!(
        "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at) \
         VALUES ({}, {}, {}, 'X', '1', {})",
        fixed.saga_id,
        fixed.event_id,
        fixed.subscription_id,
        d.now()
    );
    refused(db, &second).await;
    assert_eq!(count(db, "dead_letters").await, 1);
}

pub async fn no_table_can_be_emptied_at_once(db: &dyn TestDatabase) {
    buried(db).await;
    for table in ["events", "webhook_delivery_sagas", "webhook_delivery_jobs", "dead_letters"] {
        // Only PostgreSQL has a TRUNCATE that triggers reach; a DELETE of all rows is refused everywhere.
        if db.dialect() == Dialect::Postgres {
            refused(db, &format!("TRUNCATE {table}")).await;
            refused(db, &format!("TRUNCATE {table} CASCADE")).await;
        }
        refused(db, &format!("DELETE FROM {table}")).await;
        assert!(count(db, table).await > 0);
    }
}

pub async fn nobody_verifies_a_subscription_by_hand(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let by_hand = format!("UPDATE subscriptions SET verified = TRUE WHERE id = {id}");
    assert!(db.execute_as_owner(&by_hand).await.is_err());
    let wrong_url = "UPDATE subscriptions SET verified_url = 'https://receiver.example/Hook'";
    changes(db, wrong_url, 1).await;
    assert!(
        !stores.reader.subscription(&ALL, id).await.unwrap().unwrap().verified,
        "another URL proves nothing"
    );
}

pub async fn a_subscription_without_its_due_form_is_refused(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    for (column, value) in [
        ("max_retry_limit", "0".to_owned()),
        ("max_retry_limit", "101".to_owned()),
        ("event_type", text(&"t".repeat(1001))),
        ("description", text(&"d".repeat(501))),
        ("callback_url", text(&"u".repeat(501))),
        ("event_type", "NULL".to_owned()),
        ("callback_url", "NULL".to_owned()),
    ] {
        refused(db, &format!("UPDATE subscriptions SET {column} = {value} WHERE id = {id}")).await;
    }
    create(&stores, &new_subscription("other.type", URL)).await;
    refused(db, &format!("UPDATE subscriptions SET event_type = 'other.type' WHERE id = {id}")).await;
}

pub async fn a_queue_holds_an_id_once(db: &dyn TestDatabase) {
    // `finished_jobs` need not refuse it: a job finishes once.
    for (queue, column) in [("unrouted_events", "event_id"), ("pending_dead_letters", "saga_id")] {
        let sql = format!("INSERT INTO {queue} ({column}) VALUES (1)");
        changes(db, &sql, 1).await;
        refused(db, &sql).await;
    }
}
