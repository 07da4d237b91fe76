//! Routing in steps: one event, more subscriptions than a pass may consider, and nobody left out or served twice.

use super::{
    TestDatabase,
    fixture::{
        DEFAULT_LIMIT, MANY, TYPE, append, append_many, create, new_event, new_subscription, only,
        set_active, verified, verify,
    },
    guards::refused,
    rows::{changes, count, ids},
};
use hooksaga_saga::{EventId, SubscriptionId};
use hooksaga_store::{RouteBatch, RouteLimits, RoutedEvent, Stores};
use std::collections::HashSet;
use tokio::task::JoinSet;

async fn pass(stores: &Stores, events: u32, sagas: u32) -> Vec<RoutedEvent> {
    let RouteBatch { events } =
        stores.router.route(RouteLimits { events, sagas }, DEFAULT_LIMIT).await.unwrap();
    let considered = events.iter().map(|event| event.sagas.len()).sum::<usize>();
    assert!(considered <= sagas as usize, "{considered} of {sagas}");
    assert!(events.is_sorted_by_key(|event| event.event_id));
    let incomplete = events.iter().position(|event| !event.complete);
    assert!(
        incomplete.is_none_or(|at| at + 1 == events.len()),
        "only the last one is incomplete: {events:?}"
    );
    events
}

fn reached(events: &[RoutedEvent]) -> Vec<SubscriptionId> {
    events.iter().flat_map(|event| event.sagas.iter().map(|saga| saga.subscription_id)).collect()
}

/// So many verified subscriptions to [`TYPE`], in the order of their ids.
async fn subscribers(stores: &Stores, count: usize) -> Vec<SubscriptionId> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(verified(stores, TYPE, &format!("https://receiver.example/{n}")).await);
    }
    ids
}

/// How far routing of an event came.
async fn progress(db: &dyn TestDatabase, event: EventId) -> i64 {
    only(
        ids(db, &format!("SELECT after_subscription_id FROM unrouted_events WHERE event_id = {event}")).await,
    )
}

pub async fn an_event_with_many_subscribers_is_routed_in_steps(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 7).await;
    let event = append(&stores, new_event(TYPE)).await.id;
    let first = only(pass(&stores, MANY, 3).await);
    assert_eq!((first.event_id, first.complete), (event, false));
    assert_eq!(reached(&[first]), subscriptions[..3], "in the order of their ids");
    assert_eq!(progress(db, event).await, subscriptions[2].0, "the same commit says how far it came");
    let shown = stores.reader.event(&super::fixture::ALL, event).await.unwrap().expect("it is there");
    assert!(!shown.routed, "not before it is complete");

    let second = only(pass(&stores, MANY, 3).await);
    assert!(!second.complete);
    assert_eq!(reached(&[second]), subscriptions[3..6]);
    let third = only(pass(&stores, MANY, 3).await);
    assert!(third.complete);
    assert_eq!(reached(&[third]), subscriptions[6..]);
    assert_eq!(count(db, "unrouted_events").await, 0);
    assert_eq!(pass(&stores, MANY, 3).await, []);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 7);
}

pub async fn events_behind_the_limit_are_not_touched(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 4).await;
    let events = append_many(&stores, 3).await;
    let batch = pass(&stores, MANY, 6).await;
    assert_eq!(batch.iter().map(|event| event.event_id).collect::<Vec<_>>(), events[..2]);
    assert!(batch[0].complete && !batch[1].complete);
    assert_eq!(reached(&batch[..1]), subscriptions);
    assert_eq!(reached(&batch[1..]), subscriptions[..2]);
    assert_eq!(progress(db, events[1]).await, subscriptions[1].0);
    assert_eq!(progress(db, events[2]).await, 0);

    // The rest comes in order, however the passes are cut.
    let mut rest = Vec::new();
    for _ in 0..20 {
        rest.extend(pass(&stores, 1, 1).await);
    }
    assert_eq!(rest.iter().filter(|event| event.complete).count(), 2);
    assert_eq!(reached(&rest), [&subscriptions[2..], &subscriptions[..]].concat());
    assert_eq!(count(db, "unrouted_events").await, 0);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 12);
}

/// Those that few want, of the newest, each whole; the rest stays as it is.
pub async fn small_events_are_let_past_a_crowd(db: &dyn TestDatabase) {
    let stores = db.stores();
    let crowd = subscribers(&stores, 5).await;
    let few = verified(&stores, "few", "https://few.example/").await;
    let paused = verified(&stores, "few", "https://paused.example/").await;
    set_active(&stores, paused, false).await;
    let old = append(&stores, new_event("few")).await.id;
    let begun = append(&stores, new_event(TYPE)).await.id;
    let untouched = append(&stores, new_event(TYPE)).await.id;
    let small = append(&stores, new_event("few")).await.id;
    let nobodys = append(&stores, new_event("nobodys")).await.id;
    let routed = async |events: u32| {
        let limits = RouteLimits { events, sagas: 2 };
        let mut events = stores.router.route_small(limits, DEFAULT_LIMIT).await.unwrap().events;
        events.sort_by_key(|event| event.event_id);
        events
    };
    let first = routed(4).await;
    assert_eq!(first.iter().map(|event| event.event_id).collect::<Vec<_>>(), [small, nobodys]);
    assert!(first.iter().all(|event| event.complete));
    assert_eq!((reached(&first), first[0].unmatched.paused), (vec![few], 1));
    assert_eq!(
        routed(4).await.iter().map(|event| event.event_id).collect::<Vec<_>>(),
        [old],
        "it is one of four now"
    );
    assert_eq!(routed(4).await, []);
    assert_eq!(count(db, "unrouted_events").await, 2);
    assert_eq!((progress(db, begun).await, progress(db, untouched).await), (0, 0));

    // What is left of one that was begun may be few.
    assert_eq!(only(pass(&stores, 1, 3).await).event_id, begun);
    let rest = only(routed(4).await);
    assert_eq!((rest.event_id, reached(std::slice::from_ref(&rest))), (begun, crowd[3..].to_vec()));
    assert_eq!(only(pass(&stores, MANY, 10).await).event_id, untouched);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2 + 2 * 5);
}

pub async fn a_limit_that_is_just_enough_completes_the_event_soon(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 3).await;
    append(&stores, new_event(TYPE)).await;
    // Whether the third was the last shows at once or with the next pass.
    let mut events = pass(&stores, MANY, 3).await;
    events.extend(pass(&stores, MANY, 3).await);
    assert_eq!(reached(&events), subscriptions);
    assert!(events.last().is_some_and(|event| event.complete));
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn paused_and_unverified_subscribers_count_as_considered(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 5).await;
    for id in &subscriptions[..3] {
        set_active(&stores, *id, false).await;
    }
    create(&stores, &new_subscription(TYPE, "https://unverified.example/")).await;
    let last = verified(&stores, TYPE, "https://last.example/").await;
    let event = append(&stores, new_event(TYPE)).await.id;
    let first = only(pass(&stores, MANY, 2).await);
    assert!(!first.complete);
    assert_eq!(reached(&[first]), [], "two paused ones were considered");
    assert_eq!(progress(db, event).await, subscriptions[1].0);
    let second = only(pass(&stores, MANY, 2).await);
    assert_eq!(reached(&[second]), subscriptions[3..4]);
    let third = only(pass(&stores, MANY, 2).await);
    assert_eq!(reached(&[third]), subscriptions[4..]);
    let mut rest = pass(&stores, MANY, 2).await;
    rest.extend(pass(&stores, MANY, 2).await);
    assert_eq!(reached(&rest), [last]);
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn several_topics_are_merged_across_steps(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut subscriptions = Vec::new();
    for n in 0..12 {
        let topics = ["*", "order.*", "order.created", "*,order.*", "other.*,order.created"][n % 5];
        subscriptions.push(verified(&stores, topics, &format!("https://receiver.example/{n}")).await);
    }
    append(&stores, new_event(TYPE)).await;
    let mut events = Vec::new();
    for _ in 0..8 {
        events.extend(pass(&stores, MANY, 2).await);
    }
    assert_eq!(reached(&events), subscriptions, "each once, in the order of their ids, whatever matched");
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn a_router_that_dies_between_steps_leaves_nobody_out(db: &dyn TestDatabase) {
    let subscriptions = subscribers(&db.stores(), 9).await;
    append_many(&db.stores(), 2).await;
    let mut events = Vec::new();
    for _ in 0..12 {
        // What one process knew is gone; the next one has only the database.
        let stores = db.second_instance().await;
        events.extend(pass(&stores, MANY, 2).await);
    }
    assert_eq!(reached(&events), [subscriptions.clone(), subscriptions].concat());
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn routing_a_step_again_makes_no_second_saga(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 5).await;
    let event = append(&stores, new_event(TYPE)).await.id;
    pass(&stores, MANY, 3).await;
    // As if the event had been queued again, from the beginning.
    changes(db, &format!("DELETE FROM unrouted_events WHERE event_id = {event}"), 1).await;
    changes(db, &format!("INSERT INTO unrouted_events (event_id) VALUES ({event})"), 1).await;
    let mut events = Vec::new();
    for _ in 0..4 {
        events.extend(pass(&stores, MANY, 2).await);
    }
    assert_eq!(reached(&events), subscriptions[3..], "what was there already is not listed");
    assert_eq!(count(db, "webhook_delivery_sagas").await, 5);
}

pub async fn a_subscription_created_meanwhile_gets_the_event_once_or_not_at_all(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 4).await;
    append(&stores, new_event(TYPE)).await;
    let mut events = pass(&stores, MANY, 2).await;
    let late = verified(&stores, TYPE, "https://late.example/").await;
    let unverified = create(&stores, &new_subscription(TYPE, "https://later.example/")).await.id;
    for _ in 0..3 {
        events.extend(pass(&stores, MANY, 2).await);
    }
    verify(&stores, unverified).await;
    events.extend(pass(&stores, MANY, 2).await);
    let reached = reached(&events);
    assert_eq!(reached[..4], subscriptions, "those that were there before always do");
    assert!(reached[4..].iter().all(|id| *id == late) && reached.len() <= 5, "{reached:?}");
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn two_routers_of_one_event_serve_each_subscriber_once(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    let subscriptions = subscribers(&instances[0], 40).await;
    append_many(&instances[0], 6).await;
    let mut routers = JoinSet::new();
    for n in 0..6 {
        let stores = instances[n % 2].clone();
        routers.spawn(async move {
            let mut made = Vec::new();
            for _ in 0..40 {
                for event in pass(&stores, 3, 7).await {
                    made.extend(event.sagas.iter().map(|saga| (event.event_id, saga.subscription_id)));
                }
                tokio::task::yield_now().await;
            }
            made
        });
    }
    let mut made = routers.join_all().await.concat();
    // What another was just locking is passed over: fetch what is left.
    for _ in 0..40 {
        for event in pass(&instances[0], MANY, 7).await {
            made.extend(event.sagas.iter().map(|saga| (event.event_id, saga.subscription_id)));
        }
    }
    let distinct: HashSet<_> = made.iter().collect();
    assert_eq!((made.len(), distinct.len()), (240, 240), "{} subscriptions, six events", subscriptions.len());
    assert_eq!(count(db, "webhook_delivery_sagas").await, 240);
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn how_far_routing_came_only_grows(db: &dyn TestDatabase) {
    let stores = db.stores();
    let event = append(&stores, new_event(TYPE)).await.id;
    let set = |after: i64| {
        format!("UPDATE unrouted_events SET after_subscription_id = {after} WHERE event_id = {event}")
    };
    changes(db, &set(5), 1).await;
    changes(db, &set(6), 1).await;
    refused(db, &set(5)).await;
    refused(db, &format!("UPDATE unrouted_events SET event_id = event_id + 1 WHERE event_id = {event}"))
        .await;
    assert_eq!(progress(db, event).await, 6);
}
