//! The retention of rows that belong to no event: old ended redrives, audit records and expired keys are removed, and counts per
//! minute become counts per hour.

use super::{
    TestDatabase,
    fixture::{ALL, TYPE, URL, only, scope, verified, verified_for},
    guards::refused,
    old_history::{DAY, HOUR, RETENTION, ago, last_id},
    rows::{changes, count, db_now, ids},
};
use hooksaga_saga::Timestamp;
use hooksaga_store::{NewApiKey, Role, Scopes, StoreError, Stores};

pub async fn old_records_go_and_young_ones_stay(db: &dyn TestDatabase) {
    let stores = db.stores();
    for (age, ends) in [(2 * HOUR, true), (2 * HOUR, false), (HOUR / 2, true)] {
        let at = ago(db, age).await;
        let sql = format!(
            "INSERT INTO redrives (kind, until, started_by, created_at, updated_at) \
             VALUES ('events', {at}, 'somebody', {at}, {at})"
        );
        changes(db, &sql, 1).await;
        let id = last_id(db, "redrives").await;
        if ends {
            changes(db, &format!("UPDATE redrives SET status = 'done' WHERE id = {id}"), 1).await;
        }
        let sql =
            format!("INSERT INTO audit_records (at, key_name, action, target) VALUES ({at}, 'k', 'a', 't')");
        changes(db, &sql, 1).await;
        // Hours stay for two days at least: statistics are computed from them.
        let hour = ago(db, if age > HOUR { 3 * DAY } else { DAY }).await;
        let sql = format!(
            "INSERT INTO delivery_hours (hour, subscription_id, delivered, failed, dead_lettered) \
             VALUES ({hour}, 1, 1, 1, 1)"
        );
        changes(db, &sql, 1).await;
    }
    let first = only(ids(db, "SELECT min(id) FROM redrives").await);
    refused(db, &format!("DELETE FROM redrives WHERE id = {first}")).await;
    refused(db, "DELETE FROM audit_records").await;
    let running = format!("INSERT INTO removals (kind, subject_id) VALUES ('redrive', {})", first + 1);
    let refusal = db.execute_as(Role::HistoryJanitor, &running).await;
    assert!(matches!(refusal, Err(StoreError::Refused(_))), "{refusal:?}");

    let removed = stores.janitor.remove_records(Some(RETENTION.finished), 10).await.unwrap();
    assert_eq!((removed.redrives, removed.audit_records, removed.hours), (1, 2, 2));
    let left =
        [count(db, "redrives").await, count(db, "audit_records").await, count(db, "delivery_hours").await];
    assert_eq!(left, [2, 1, 1]);
    assert_eq!(count(db, "removals").await, 0);
    let again = stores.janitor.remove_records(Some(RETENTION.finished), 10).await.unwrap();
    assert_eq!((again.redrives, again.audit_records, again.hours), (0, 0, 0));
}

pub async fn keys_go_a_while_after_they_expired_and_no_others(db: &dyn TestDatabase) {
    let stores = db.stores();
    for (n, expired_days_ago) in [Some(8_u64), Some(9), Some(6), None, Some(30)].into_iter().enumerate() {
        let expires_at = match expired_days_ago {
            Some(days) => ago(db, days * DAY).await,
            None => "NULL".to_owned(),
        };
        let sha256 = db.dialect().bytes(&[u8::try_from(n).unwrap(); 32]);
        let at = ago(db, 60 * DAY).await;
        let sql = format!(
            "INSERT INTO api_keys (name, scopes, sha256, created_at, expires_at, by_admin) \
             VALUES ('key {n}', 'read', {sha256}, {at}, {expires_at}, TRUE)"
        );
        changes(db, &sql, 1).await;
    }
    let newest = ids(db, "SELECT max(id) FROM api_keys").await[0];
    refused(db, "DELETE FROM api_keys WHERE expires_at IS NULL").await;
    // Keys go in bounded steps, also where history stays for good.
    let step = async || stores.janitor.remove_records(None, 2).await.unwrap().keys;
    assert_eq!([step().await, step().await, step().await], [2, 1, 0]);
    let left = db.query_text("SELECT name FROM api_keys ORDER BY id").await.unwrap();
    let left: Vec<_> = left.iter().filter_map(|row| row[0].as_deref()).collect();
    assert_eq!(left, ["key 2", "key 3"], "one that expired lately, and one that never does");
    // Audit records name keys by their ids.
    let next = NewApiKey {
        name: "next".to_owned(),
        scopes: Scopes::all(),
        sha256: [100; 32],
        tenant: None,
        expires_in: None,
    };
    assert!(stores.keys.create(&next).await.unwrap().id.0 > newest, "no id is given twice");
}

/// A count for one minute: delivered 1, failed 10, dead-lettered 100.
async fn counted(db: &dyn TestDatabase, at: i64, subscription: i64, shard: u32) {
    let at = db.dialect().time(Timestamp::from_micros(at));
    let sql = format!(
        "INSERT INTO delivery_counts (minute, subscription_id, shard, delivered, failed, dead_lettered) \
         VALUES ({at}, {subscription}, {shard}, 1, 10, 100)"
    );
    changes(db, &sql, 1).await;
}

/// Sums up all counts. Returns the number of steps.
async fn roll_up(stores: &Stores, limit: u32) -> u32 {
    let mut steps = 1;
    while stores.janitor.roll_up_counts(limit).await.unwrap() {
        steps += 1;
    }
    steps
}

pub async fn counts_of_minutes_become_counts_of_hours(db: &dyn TestDatabase) {
    let stores = db.stores();
    let now = db_now(db).await.as_micros();
    let hour = 3_600_000_000;
    let old_hour = now - now % hour - 72 * hour;
    let minute = |n: i64| old_hour + n * 60_000_000;
    let (past, present) = (now - now % hour - 2 * hour, now - now % 60_000_000);
    for (at, subscription, shard) in [
        (minute(0), 1, 0),
        (minute(0), 1, 1),
        (minute(59), 1, 0),
        (minute(60), 1, 0),
        (minute(5), 2, 0),
        (minute(5), 9, 0),
        (past, 1, 0),
        (present, 1, 0),
    ] {
        counted(db, at, subscription, shard).await;
    }
    let steps = roll_up(&stores, 2).await;
    assert!(steps >= 6, "a minute, three steps of hours, three of removals: {steps}");
    let left = format!("delivery_counts WHERE minute >= {}", db.dialect().time(Timestamp::from_micros(past)));
    assert_eq!([count(db, "delivery_counts").await, count(db, &left).await], [2; 2], "two days stay");
    let sql = format!(
        "SELECT {}, subscription_id, delivered, failed, dead_lettered FROM delivery_hours ORDER BY hour, subscription_id",
        db.dialect().micros("hour")
    );
    let hours = db.query_text(&sql).await.unwrap();
    let hours: Vec<Vec<i64>> =
        hours.iter().map(|row| row.iter().map(|n| n.as_ref().unwrap().parse().unwrap()).collect()).collect();
    let expected = [
        vec![old_hour, 1, 3, 30, 300],
        vec![old_hour, 2, 1, 10, 100],
        vec![old_hour, 9, 1, 10, 100],
        vec![old_hour + hour, 1, 1, 10, 100],
        vec![past, 1, 1, 10, 100],
    ];
    assert_eq!(hours, expected, "whole past hours, and not the present one");
    assert_eq!(roll_up(&stores, 2).await, 1, "once is enough");
}

pub async fn statistics_are_the_same_however_much_is_summed_up(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mine = verified_for(&stores, "acme", TYPE, URL).await.0;
    let other = verified(&stores, TYPE, "https://other.example/").await.0;
    let now = db_now(db).await.as_micros();
    let this_minute = now - now % 60_000_000;
    for minutes_ago in [0, 2, 7, 8, 60, 61, 170, 185, 300, 301, 700, 1380, 1435, 1445, 1500] {
        let at = this_minute - minutes_ago * 60_000_000;
        for shard in 0..2 {
            counted(db, at, mine, shard).await;
        }
        counted(db, at, other, 0).await;
        // Of a subscription that does not exist, and so of no tenant.
        counted(db, at, other + 7, 0).await;
    }
    let shown = async |scope| {
        let stats = stores.reader.stats(&scope).await.unwrap();
        (stats.minutes, stats.subscriptions)
    };
    let before = (shown(ALL).await, shown(scope("acme")).await, shown(scope("nobody")).await);
    let (_, subscriptions) = &before.0;
    let delivered: Vec<u64> = subscriptions.iter().map(|one| one.delivered).collect();
    assert_eq!((delivered, before.0.0.len()), (vec![26, 13, 13], 7), "24 hours, and three");
    assert_eq!((before.1.1.len(), before.1.1[0].delivered, before.1.0[0].delivered), (1, 26, 2));
    assert_eq!(before.2, (vec![], vec![]));

    // The same after every step.
    loop {
        let more = stores.janitor.roll_up_counts(1).await.unwrap();
        let after = (shown(ALL).await, shown(scope("acme")).await, shown(scope("nobody")).await);
        assert_eq!(after, before);
        if !more {
            break;
        }
    }
    // Whole hours are read, not their minutes; the hour that ended three hours ago has been summed up.
    let whole = Timestamp::from_micros(now - now % 3_600_000_000 - 3 * 3_600_000_000);
    let whole = db.dialect().time(whole);
    let day = db.dialect().time(Timestamp::from_micros(now - 22 * 3_600_000_000));
    db.execute_as_owner(&format!("DELETE FROM delivery_counts WHERE minute < {whole} AND minute > {day}"))
        .await
        .unwrap();
    assert_eq!(shown(ALL).await, before.0);
    assert_eq!(shown(scope("acme")).await, before.1);
}
