//! Gauges and statistics add up.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, MUCH_LATER, TOKEN, TYPE, append, append_many, bury_all, claim, create, create_jobs,
        deliver_round, finish_claimable, new_event, new_subscription, route, schedule_and_mark, verified,
        verified_with_limit,
    },
    rows::{changes, db_now},
};
use hooksaga_saga::{ErrorCode, Timestamp};
use hooksaga_store::{Allotted, Inventory, QueueGauges, SubscriptionCount, SubscriptionPatch};
use std::time::Duration;

pub async fn nothing_waits_in_an_empty_database(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.reader.gauges().await.unwrap(), QueueGauges::default());
    let stats = stores.reader.stats(&ALL).await.unwrap();
    let in_all = stores.reader.stats_in_all(&ALL).await.unwrap();
    assert_eq!(in_all.minutes, stats.minutes);
    assert_eq!(in_all.subscriptions, []);
    assert_eq!((stats.oldest_due_age_micros, in_all.oldest_due_age_micros), (0, 0));
    assert_eq!((stats.minutes.len(), stats.subscriptions.len()), (0, 0));
    assert!(stats.now.since(db_now(db).await) < Duration::from_secs(1));
}

pub async fn gauges_show_how_much_waits_where(db: &dyn TestDatabase) {
    let stores = db.stores();
    let good = verified_with_limit(&stores, "https://good.example/", 2).await;
    let paused = verified(&stores, TYPE, "https://paused.example/").await;
    append_many(&stores, 4).await;
    route(&stores).await;
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, paused, &pause).await.unwrap();

    // Of the good one's four: one retries later, one is leased, one has a job that waits, one waits itself.
    let step = async || {
        let one = [Allotted { subscription_id: good, jobs: 1 }];
        assert_eq!(create_jobs(&stores, &one).await.len(), 1);
    };
    step().await;
    finish_claimable(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    step().await;
    assert_eq!(claim(&stores, TOKEN).await.jobs.len(), 1);
    step().await;
    append_many(&stores, 3).await;

    let gauges = stores.reader.gauges().await.unwrap();
    let expected = QueueGauges {
        unrouted_events: 3,
        pending_sagas: 1 + 4,
        pending_retry_sagas: 1,
        held_sagas: 4,
        pending_jobs: 1,
        leased_jobs: 1,
        finished_jobs: 0,
        pending_dead_letters: 0,
        oldest_due_age_micros: gauges.oldest_due_age_micros,
    };
    assert_eq!(gauges, expected);
    assert_eq!(gauges.in_progress_sagas(), 2);
    let [stats, in_all] =
        [stores.reader.stats(&ALL).await.unwrap(), stores.reader.stats_in_all(&ALL).await.unwrap()];
    for age in [gauges.oldest_due_age_micros, stats.oldest_due_age_micros, in_all.oldest_due_age_micros] {
        assert!((1..60_000_000).contains(&age), "{age}");
    }
}

pub async fn gauges_show_results_and_letters_that_wait(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, "https://one.example/", 1).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let job = claim(&stores, TOKEN).await.jobs.remove(0);
    stores.worker.report(&[super::fixture::delivered(job.as_ref())]).await.unwrap();
    let gauges = stores.reader.gauges().await.unwrap();
    let expected = QueueGauges { finished_jobs: 1, pending_dead_letters: 1, ..QueueGauges::default() };
    assert_eq!(gauges, expected, "nothing that could run is due");
    assert_eq!(gauges.in_progress_sagas(), 1);
}

pub async fn what_is_held_or_not_due_makes_no_due_age(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, "https://one.example/").await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    assert_eq!(stores.reader.gauges().await.unwrap().oldest_due_age_micros, 0);
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, id, &pause).await.unwrap();
    let gauges = stores.reader.gauges().await.unwrap();
    assert_eq!((gauges.oldest_due_age_micros, gauges.held_sagas), (0, 2));
    assert_eq!(stores.reader.stats_in_all(&ALL).await.unwrap().oldest_due_age_micros, 0);
}

pub async fn counts_add_up_per_minute_and_per_subscription(db: &dyn TestDatabase) {
    let stores = db.stores();
    let one = verified_with_limit(&stores, "https://one.example/", 2).await;
    append_many(&stores, 3).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    let two = verified(&stores, TYPE, "https://two.example/").await;
    append_many(&stores, 2).await;
    route(&stores).await;
    deliver_round(&stores, None, AT_ONCE).await;

    let stats = stores.reader.stats(&ALL).await.unwrap();
    let in_all = stores.reader.stats_in_all(&ALL).await.unwrap();
    assert_eq!(in_all.minutes, stats.minutes);
    assert_eq!(in_all.subscriptions, []);
    let expected = [
        SubscriptionCount { subscription_id: one, delivered: 2, failed: 6, dead_lettered: 3 },
        SubscriptionCount { subscription_id: two, delivered: 2, failed: 0, dead_lettered: 0 },
    ];
    assert_eq!(stats.subscriptions, expected);
    let sums = stats.minutes.iter().fold((0, 0, 0), |sum, minute| {
        (sum.0 + minute.delivered, sum.1 + minute.failed, sum.2 + minute.dead_lettered)
    });
    assert_eq!(sums, (4, 6, 3));
    for minute in &stats.minutes {
        assert_eq!(minute.minute.as_micros() % 60_000_000, 0, "a minute's beginning");
        assert!(stats.now.since(minute.minute) < Duration::from_secs(300));
    }
}

pub async fn counts_that_are_too_old_are_not_shown(db: &dyn TestDatabase) {
    let stores = db.stores();
    let now = db_now(db).await.as_micros();
    let this_minute = now - now % 60_000_000;
    for (subscription, shard, minutes_ago) in
        [(7, 0, 1), (7, 1, 1), (7, 0, 2), (8, 0, 170), (8, 0, 190), (9, 0, 1430), (10, 0, 1450)]
    {
        let at = db.dialect().time(Timestamp::from_micros(this_minute - minutes_ago * 60_000_000));
        let sql = format!(
            "INSERT INTO delivery_counts (minute, subscription_id, shard, delivered, failed, dead_lettered) \
             VALUES ({at}, {subscription}, {shard}, 1, 10, 100)"
        );
        changes(db, &sql, 1).await;
    }
    let stats = stores.reader.stats(&ALL).await.unwrap();
    let in_all = stores.reader.stats_in_all(&ALL).await.unwrap();
    assert_eq!(in_all.minutes, stats.minutes);
    assert_eq!(in_all.subscriptions, []);
    let minutes: Vec<_> = stats
        .minutes
        .iter()
        .map(|m| ((this_minute - m.minute.as_micros()) / 60_000_000, m.delivered, m.failed, m.dead_lettered))
        .collect();
    assert_eq!(minutes, [(170, 1, 10, 100), (2, 1, 10, 100), (1, 2, 20, 200)], "three hours, oldest first");
    let subscriptions: Vec<_> =
        stats.subscriptions.iter().map(|s| (s.subscription_id.0, s.delivered, s.failed)).collect();
    assert_eq!(subscriptions, [(7, 3, 30), (8, 2, 20), (9, 1, 10)], "24 hours");
}

pub async fn the_inventory_counts_subscriptions_by_state_and_open_letters(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.reader.inventory().await.unwrap(), Inventory::default());
    verified_with_limit(&stores, "https://good.example/", 1).await;
    create(&stores, &new_subscription("other.type", "https://new.example/")).await;
    let [paused, deleted, disabled] = [
        verified(&stores, "other.type", "https://paused.example/").await,
        verified(&stores, "other.type", "https://deleted.example/").await,
        verified(&stores, "other.type", "https://disabled.example/").await,
    ];
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, paused, &pause).await.unwrap();
    assert!(stores.admin.delete(&ALL, deleted).await.unwrap());
    let now = db.dialect().time(db_now(db).await);
    let switch_off = format!(
        "UPDATE subscriptions SET active = FALSE, disabled_reason = 'GONE', disabled_at = {now} WHERE id = {disabled}"
    );
    changes(db, &switch_off, 1).await;
    append_many(&stores, 3).await;
    route(&stores).await;
    let letters = bury_all(&stores, ErrorCode::TIMEOUT).await;
    let open =
        |open_dead_letters| Inventory { active: 1, unverified: 1, paused: 1, disabled: 1, open_dead_letters };
    assert_eq!(stores.reader.inventory().await.unwrap(), open(3));
    stores.dead_letters.requeue(&ALL, letters[0], 1).await.unwrap();
    assert_eq!(stores.reader.inventory().await.unwrap(), open(2));
    // However many newer ones were sent again.
    add_heads(db, 1_000_000, true).await;
    assert_eq!(stores.reader.inventory().await.unwrap(), open(2));
    add_heads(db, 2_000_000, false).await;
    assert_eq!(
        stores.reader.inventory().await.unwrap(),
        open(Inventory::MOST_LETTERS.into()),
        "counted no further"
    );
}

/// Ten thousand rows for lists of letters, with ids from this one on.
async fn add_heads(db: &dyn TestDatabase, first: i64, requeued: bool) {
    let digits: Vec<String> = (0..10).map(|digit| format!("SELECT {digit} AS d")).collect();
    let digits = digits.join(" UNION ALL ");
    let sql = format!(
        "INSERT INTO letter_heads (letter_id, saga_id, subscription_id, tenant, event_type, final_error_code, created_at,
                                   saga_created_at, requeued)
         SELECT {first} + 1000 * a.d + 100 * b.d + 10 * c.d + d.d, saga_id, subscription_id, tenant, event_type,
                final_error_code, created_at, saga_created_at, {requeued}
         FROM (SELECT * FROM letter_heads ORDER BY letter_id LIMIT 1) h
         CROSS JOIN ({digits}) a CROSS JOIN ({digits}) b CROSS JOIN ({digits}) c CROSS JOIN ({digits}) d"
    );
    changes(db, &sql, 10_000).await;
}
