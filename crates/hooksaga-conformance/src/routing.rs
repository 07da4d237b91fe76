//! Routing: which subscriptions get a saga, exactly once.

use super::{
    TestDatabase,
    fixture::{
        ALL, DEFAULT_LIMIT, MANY, TYPE, URL, append, append_many, correlation, create, new_event,
        new_subscription, only, route, some_events, url, verified, verified_with_limit, verify,
    },
    rows::{changes, count, db_now, saga_row},
};
use hooksaga_saga::{SagaStatus, SubscriptionId};
use hooksaga_store::{NewEvent, NewSubscription, SubscriptionPatch};
use std::{collections::HashSet, time::Duration};
use tokio::task::JoinSet;

pub async fn a_saga_is_born_pending_and_due_at_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let before = db_now(db).await;
    let subscription = verified(&stores, TYPE, URL).await;
    let event = append(&stores, NewEvent { correlation_id: correlation("c-77"), ..new_event(TYPE) }).await;
    let routed = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events);
    assert_eq!(routed.event_id, event.id);
    assert_eq!(routed.correlation_id, "c-77");
    let saga = only(routed.sagas);
    assert_eq!(saga.subscription_id, subscription);

    let row = saga_row(db, saga.saga_id).await;
    assert_eq!((row.event_id, row.subscription_id, row.generation), (event.id, subscription, 0));
    assert_eq!((row.status, row.attempt_count), (SagaStatus::Pending, 0));
    assert_eq!(row.final_error_code, None);
    assert_eq!((row.created_at, row.updated_at), (row.next_attempt_at, row.next_attempt_at));
    assert!(row.next_attempt_at.since(before) < Duration::from_secs(60));
    assert!(row.next_attempt_at <= db_now(db).await.after(Duration::from_millis(2)), "due");
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn every_matching_subscription_gets_a_saga_of_its_own(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut subscriptions = HashSet::new();
    for n in 0..10 {
        subscriptions.insert(verified(&stores, TYPE, &format!("https://receiver.example/{n}")).await);
    }
    append_many(&stores, 3).await;
    let batch = stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap();
    assert_eq!(batch.events.len(), 3);
    for event in &batch.events {
        let reached: HashSet<_> = event.sagas.iter().map(|saga| saga.subscription_id).collect();
        assert_eq!(reached, subscriptions);
        assert_eq!(event.sagas.len(), 10);
    }
    assert_eq!(count(db, "webhook_delivery_sagas").await, 30);
}

pub async fn only_active_and_verified_subscriptions_get_sagas(db: &dyn TestDatabase) {
    let stores = db.stores();
    let inactive = NewSubscription { active: false, ..new_subscription(TYPE, "https://inactive.example/") };
    let inactive = create(&stores, &inactive).await.id;
    verify(&stores, inactive).await;
    let good = verified(&stores, TYPE, "https://good.example/").await;
    create(&stores, &new_subscription(TYPE, "https://unverified.example/")).await;
    let moved = verified(&stores, TYPE, "https://old.example/").await;
    let patch =
        SubscriptionPatch { callback_url: Some(url("https://new.example/")), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, moved, &patch).await.unwrap();

    append(&stores, new_event(TYPE)).await;
    let routed = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events);
    assert_eq!(only(routed.sagas).subscription_id, good);
}

pub async fn the_event_type_matches_exactly(db: &dyn TestDatabase) {
    let stores = db.stores();
    let lower = verified(&stores, "a.b", URL).await;
    let upper = verified(&stores, "A.b", URL).await;
    verified(&stores, "a", URL).await;
    verified(&stores, "a.b.c", URL).await;
    // The API accepts no blanks; if a topic had one, it would have to count.
    let blank = verified(&stores, "a.b.", URL).await;
    let with_blank = format!("UPDATE subscription_topics SET topic = 'a.b ' WHERE subscription_id = {blank}");
    changes(db, &with_blank, 1).await;

    for (event_type, expected) in
        [("a.b", vec![lower]), ("A.b", vec![upper]), ("A.B", vec![]), ("a.B", vec![])]
    {
        append(&stores, new_event(event_type)).await;
        let routed = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events);
        let reached: Vec<SubscriptionId> = routed.sagas.iter().map(|saga| saga.subscription_id).collect();
        assert_eq!(reached, expected, "{event_type}");
    }
}

pub async fn an_event_that_nobody_wants_leaves_the_queue(db: &dyn TestDatabase) {
    let stores = db.stores();
    let event = append(&stores, new_event(TYPE)).await;
    let routed = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events);
    assert_eq!(routed.event_id, event.id);
    assert_eq!(routed.sagas, []);
    assert_eq!(count(db, "unrouted_events").await, 0);
    assert_eq!(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events, []);
}

pub async fn routing_an_event_again_makes_no_second_saga(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    let event = append(&stores, new_event(TYPE)).await;
    let saga = only(route(&stores).await);
    let before = saga_row(db, saga).await;

    changes(db, &format!("INSERT INTO unrouted_events (event_id) VALUES ({})", event.id), 1).await;
    let again = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT + 1).await.unwrap().events);
    assert_eq!(again.event_id, event.id);
    assert_eq!(again.sagas, [], "what was there already is not listed");
    assert_eq!(count(db, "webhook_delivery_sagas").await, 1);
    assert_eq!(count(db, "unrouted_events").await, 0);
    assert_eq!(saga_row(db, saga).await, before);
}

pub async fn routing_again_fills_in_only_what_is_missing(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, "https://one.example/").await;
    let event = append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    let late = verified(&stores, TYPE, "https://two.example/").await;
    changes(db, &format!("INSERT INTO unrouted_events (event_id) VALUES ({})", event.id), 1).await;
    let again = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events);
    assert_eq!(only(again.sagas).subscription_id, late);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);
}

pub async fn a_batch_is_limited_and_returned_in_the_order_of_event_ids(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    let events = append_many(&stores, 5).await;
    let mut seen = Vec::new();
    for expected in [2, 2, 1, 0] {
        let batch = stores.router.route(some_events(2), DEFAULT_LIMIT).await.unwrap().events;
        assert_eq!(batch.len(), expected);
        assert!(batch.is_sorted_by_key(|event| event.event_id));
        seen.extend(batch.iter().map(|event| event.event_id));
    }
    seen.sort_unstable();
    assert_eq!(seen, events);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 5);
}

pub async fn two_routers_at_once_make_each_saga_once(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    for n in 0..3 {
        verified(&instances[0], TYPE, &format!("https://receiver.example/{n}")).await;
    }
    append_many(&instances[0], 200).await;
    let mut routers = JoinSet::new();
    for n in 0..8 {
        let stores = instances[n % 2].clone();
        routers.spawn(async move {
            let mut made = Vec::new();
            for _ in 0..12 {
                let batch = stores.router.route(some_events(20), DEFAULT_LIMIT).await.unwrap();
                made.extend(batch.events.iter().flat_map(|event| event.sagas.iter().map(|s| s.saga_id)));
            }
            made
        });
    }
    let made = routers.join_all().await.concat();
    let distinct: HashSet<_> = made.iter().collect();
    assert_eq!((made.len(), distinct.len()), (600, 600), "every saga is somebody's, and only one's");
    assert_eq!(count(db, "webhook_delivery_sagas").await, 600);
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn the_limit_is_the_subscriptions_or_else_the_default(db: &dyn TestDatabase) {
    let stores = db.stores();
    let own = verified_with_limit(&stores, "https://own.example/", 17).await;
    verified(&stores, TYPE, "https://default.example/").await;
    append(&stores, new_event(TYPE)).await;
    let routed = only(stores.router.route(some_events(MANY), 9).await.unwrap().events);
    assert_eq!(routed.sagas.len(), 2);
    for saga in routed.sagas {
        let expected = if saga.subscription_id == own { 17 } else { 9 };
        assert_eq!(saga_row(db, saga.saga_id).await.max_retry_limit, expected);
    }
}

pub async fn a_changed_limit_affects_later_sagas_only(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified_with_limit(&stores, URL, 3).await;
    append(&stores, new_event(TYPE)).await;
    let first = only(route(&stores).await);
    let patch = SubscriptionPatch { max_retry_limit: Some(Some(4)), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, subscription, &patch).await.unwrap();
    append(&stores, new_event(TYPE)).await;
    let second = only(route(&stores).await);
    assert_eq!(saga_row(db, first).await.max_retry_limit, 3);
    assert_eq!(saga_row(db, second).await.max_retry_limit, 4);
}

pub async fn a_change_of_a_subscription_is_seen_by_the_next_batch(db: &dyn TestDatabase) {
    let stores = db.stores();
    let patches = |active, names: Option<&str>| SubscriptionPatch {
        active,
        topics: names.map(super::fixture::topics),
        ..SubscriptionPatch::default()
    };
    let subscription = create(&stores, &new_subscription(TYPE, URL)).await.id;
    append(&stores, new_event(TYPE)).await;
    assert_eq!(route(&stores).await.len(), 0, "not verified yet");

    append(&stores, new_event(TYPE)).await;
    verify(&stores, subscription).await;
    assert_eq!(route(&stores).await.len(), 1, "verified while the event waited");

    append(&stores, new_event(TYPE)).await;
    stores.admin.update(&ALL, subscription, &patches(Some(false), None)).await.unwrap();
    assert_eq!(route(&stores).await.len(), 0, "paused while the event waited");

    stores.admin.update(&ALL, subscription, &patches(Some(true), Some("order.deleted"))).await.unwrap();
    append(&stores, new_event(TYPE)).await;
    append(&stores, new_event("order.deleted")).await;
    assert_eq!(route(&stores).await.len(), 1, "now of the other type");
}
