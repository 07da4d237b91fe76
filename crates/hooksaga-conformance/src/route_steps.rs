//! Routing in steps: an event with more subscriptions than a pass may consider reaches each of them once.

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
use hooksaga_store::{
    Examined, LargeEvent, ListedLimits, RouteBatch, RouteLimits, RoutedEvent, SmallLimits, Stores,
};
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

/// This many verified subscriptions to [`TYPE`], in the order of their ids.
async fn subscribers(stores: &Stores, count: usize) -> Vec<SubscriptionId> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(verified(stores, TYPE, &format!("https://receiver.example/{n}")).await);
    }
    ids
}

/// The progress of the routing of an event.
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

    // The rest follows in order, whatever the size of the passes.
    let mut rest = Vec::new();
    for _ in 0..20 {
        rest.extend(pass(&stores, 1, 1).await);
    }
    assert_eq!(rest.iter().filter(|event| event.complete).count(), 2);
    assert_eq!(reached(&rest), [&subscriptions[2..], &subscriptions[..]].concat());
    assert_eq!(count(db, "unrouted_events").await, 0);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 12);
}

fn at_most(sagas: u32) -> ListedLimits {
    ListedLimits { sagas, default_limit: DEFAULT_LIMIT }
}

async fn small(stores: &Stores, events: &[EventId], each: u32, sagas: u32) -> Examined {
    let limits = SmallLimits { each, sagas, default_limit: DEFAULT_LIMIT };
    let examined = stores.router.route_small(events, limits).await.unwrap();
    assert!(examined.routed.is_sorted_by_key(|event| event.event_id));
    assert!(examined.routed.iter().all(|event| event.complete && event.sagas.len() <= each as usize));
    examined
}

fn named<'a>(events: impl IntoIterator<Item = &'a RoutedEvent>) -> Vec<EventId> {
    events.into_iter().map(|event| event.event_id).collect()
}

/// Of the examined events, those with few subscriptions are routed, each as a whole. The others stay queued, and are returned.
pub async fn small_events_are_let_past_a_crowd(db: &dyn TestDatabase) {
    let stores = db.stores();
    let crowd = subscribers(&stores, 5).await;
    let few = verified(&stores, "few", "https://few.example/").await;
    let paused = verified(&stores, "few", "https://paused.example/").await;
    set_active(&stores, paused, false).await;
    let outside = append(&stores, new_event("few")).await.id;
    let begun = append(&stores, new_event(TYPE)).await.id;
    let untouched = append(&stores, new_event(TYPE)).await.id;
    let wanted = append(&stores, new_event("few")).await.id;
    let nobodys = append(&stores, new_event("nobodys")).await.id;
    let gone = EventId(nobodys.0 + 1000);

    let first = small(&stores, &[begun, untouched, wanted, nobodys, gone], 2, 100).await;
    assert_eq!(named(&first.routed), [wanted, nobodys]);
    assert_eq!((reached(&first.routed), first.routed[0].unmatched.paused), (vec![few], 1));
    assert_eq!((first.routed[0].unwanted, first.routed[1].unwanted), (false, true));
    let large = |event_id| LargeEvent { event_id, tenant: "default".to_owned(), event_type: TYPE.to_owned() };
    let mut named_large = first.large;
    named_large.sort_by_key(|event| event.event_id);
    assert_eq!((named_large, first.next), (vec![large(begun), large(untouched)], None));
    assert_eq!(
        ids(db, "SELECT event_id FROM unrouted_events ORDER BY event_id").await,
        [outside.0, begun.0, untouched.0]
    );
    assert_eq!((progress(db, begun).await, progress(db, untouched).await), (0, 0));
    assert_eq!(small(&stores, &[wanted, nobodys], 2, 100).await, Examined::default(), "they have left");
    assert_eq!(small(&stores, &[], 2, 100).await, Examined::default());

    // Few may be left of an event that was begun.
    let step = stores.router.route_listed(&[begun, untouched], at_most(3)).await.unwrap();
    assert_eq!(step.events.first().map(|event| (event.event_id, event.complete)), Some((begun, false)));
    assert_eq!(reached(&step.events), crowd[..3]);
    let rest = small(&stores, &[begun, untouched], 2, 100).await;
    assert_eq!((named(&rest.routed), reached(&rest.routed)), (vec![begun], crowd[3..].to_vec()));
    assert_eq!(rest.large, [large(untouched)]);
    assert_eq!(named(&small(&stores, &[outside, untouched], 5, 100).await.routed), [outside, untouched]);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2 + 2 * 5);
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn small_events_share_the_room_of_a_pass_in_order(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 3).await;
    let events = append_many(&stores, 5).await;
    let first = small(&stores, &events, 3, 7).await;
    assert_eq!((named(&first.routed), first.next), (events[..2].to_vec(), Some(events[2])));
    assert_eq!(reached(&first.routed), [&subscriptions[..], &subscriptions[..]].concat());
    // Room for one is always there.
    let second = small(&stores, &events[2..], 3, 0).await;
    assert_eq!((named(&second.routed), second.next), (events[2..3].to_vec(), Some(events[3])));
    let third = small(&stores, &events[3..], 3, 6).await;
    assert_eq!((named(&third.routed), third.next, third.large), (events[3..].to_vec(), None, vec![]));
    assert_eq!(count(db, "webhook_delivery_sagas").await, 15);
}

pub async fn a_turn_routes_the_listed_events_in_order(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 4).await;
    let events = append_many(&stores, 4).await;
    let listed = [events[1], events[3], EventId(events[3].0 + 1000)];
    let turn = async || stores.router.route_listed(&listed, at_most(3)).await.unwrap().events;
    let mut routed = Vec::new();
    for _ in 0..4 {
        let step = turn().await;
        assert!(reached(&step).len() <= 3);
        routed.extend(step);
    }
    assert_eq!(reached(&routed), [&subscriptions[..], &subscriptions[..]].concat());
    assert_eq!(named(routed.iter().filter(|event| event.complete)), [events[1], events[3]]);
    assert_eq!(
        ids(db, "SELECT event_id FROM unrouted_events ORDER BY event_id").await,
        [events[0].0, events[2].0]
    );
    assert_eq!(stores.router.route_listed(&[], at_most(3)).await.unwrap(), RouteBatch::default());
}

pub async fn the_queue_is_listed_in_order_behind_an_event(db: &dyn TestDatabase) {
    let stores = db.stores();
    let events = append_many(&stores, 5).await;
    let queued = async |after: i64, limit| stores.router.queued(EventId(after), limit).await.unwrap();
    assert_eq!(queued(-2000, 100).await, events);
    assert_eq!(queued(events[1].0, 2).await, events[2..4]);
    assert_eq!(queued(events[4].0, 2).await, []);
}

/// A small event and a large one that another router has locked are left to it, without waiting.
pub async fn what_another_router_routes_is_passed_over(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    let subscriptions = subscribers(&instances[0], 40).await;
    let few = verified(&instances[0], "few", "https://few.example/").await;
    let mut events = Vec::new();
    for _ in 0..8 {
        events.push(append(&instances[0], new_event(TYPE)).await.id);
        events.push(append(&instances[0], new_event("few")).await.id);
    }
    let mut routers = JoinSet::new();
    for n in 0..4 {
        let (stores, events) = (instances[n % 2].clone(), events.clone());
        routers.spawn(async move {
            let mut made = Vec::new();
            for _ in 0..60 {
                let mut routed = small(&stores, &events, 2, 5).await.routed;
                routed.extend(stores.router.route_listed(&events, at_most(7)).await.unwrap().events);
                for event in routed {
                    made.extend(event.sagas.iter().map(|saga| (event.event_id, saga.subscription_id)));
                }
                tokio::task::yield_now().await;
            }
            made
        });
    }
    let mut made = routers.join_all().await.concat();
    for _ in 0..60 {
        for event in pass(&instances[0], MANY, 100).await {
            made.extend(event.sagas.iter().map(|saga| (event.event_id, saga.subscription_id)));
        }
    }
    let distinct: HashSet<_> = made.iter().collect();
    let expected = 8 * subscriptions.len() + 8;
    assert_eq!((made.len(), distinct.len()), (expected, expected));
    assert_eq!(made.iter().filter(|(_, subscription)| *subscription == few).count(), 8);
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn a_limit_that_is_just_enough_completes_the_event_soon(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = subscribers(&stores, 3).await;
    append(&stores, new_event(TYPE)).await;
    // Whether the third was the last is known at once, or after the next pass.
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
        // The memory of the former process is lost; the next one has only the database.
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
    // As if the event had been queued again, to be routed from the beginning.
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
    // What another one was just locking is skipped: fetch what is left.
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
