//! Subscriptions that could not get an event when it was routed.

use super::{
    TestDatabase,
    fixture::{
        ALL, DEFAULT_LIMIT, TYPE, append, create, new_event, new_subscription, set_active, some_events,
        verified,
    },
    rows::{changes, count},
};
use hooksaga_saga::EventType;
use hooksaga_store::{EventDetail, NewEvent, RouteLimits, Stores, Unmatched};

async fn detail(stores: &Stores, id: hooksaga_saga::EventId) -> EventDetail {
    stores.reader.event(&ALL, id).await.unwrap().expect("the event is there")
}

pub async fn an_event_says_whom_it_missed_and_why(db: &dyn TestDatabase) {
    let stores = db.stores();
    // Disabled, else paused, else unverified: each counts once.
    let disabled = create(&stores, &new_subscription(TYPE, "https://disabled.example/")).await.id;
    set_active(&stores, disabled, false).await;
    let now = db.dialect().now();
    let sql = format!(
        "UPDATE subscriptions SET disabled_reason = 'GONE', disabled_at = {now} WHERE id = {disabled}"
    );
    changes(db, &sql, 1).await;
    let paused = create(&stores, &new_subscription("order.*,*", "https://paused.example/")).await.id;
    set_active(&stores, paused, false).await;
    create(&stores, &new_subscription("*", "https://unverified.example/")).await;
    create(&stores, &new_subscription(TYPE, "https://unverified.example/")).await;
    create(&stores, &new_subscription("other.type", "https://other.example/")).await;

    let event = append(&stores, new_event(TYPE)).await.id;
    let batch = stores.router.route(some_events(10), DEFAULT_LIMIT).await.unwrap();
    let missed = Unmatched { disabled: 1, paused: 1, unverified: 2 };
    assert_eq!(batch.events[0].unmatched, missed);
    assert_eq!(batch.events[0].unmatched.to_string(), "4 of this type: 1 disabled, 1 paused, 2 unverified");
    assert_eq!(detail(&stores, event).await.unmatched, missed);

    // Also if another subscription gets the event.
    verified(&stores, TYPE, "https://good.example/").await;
    let event = append(&stores, new_event(TYPE)).await.id;
    let batch = stores.router.route(some_events(10), DEFAULT_LIMIT).await.unwrap();
    assert_eq!((batch.events[0].sagas.len(), batch.events[0].unmatched), (1, missed));
    assert_eq!(detail(&stores, event).await.unmatched, missed);
}

pub async fn an_event_that_missed_nobody_leaves_no_row(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, "https://good.example/").await;
    let matched = append(&stores, new_event(TYPE)).await.id;
    let unwanted = append(&stores, new_event("nobody.wants.this")).await.id;
    assert_eq!(detail(&stores, matched).await.unmatched, Unmatched::default());
    stores.router.route(some_events(10), DEFAULT_LIMIT).await.unwrap();
    for event in [matched, unwanted] {
        assert_eq!(detail(&stores, event).await.unmatched, Unmatched::default());
    }
    assert_eq!(count(db, "unmatched_events").await, 0);
}

pub async fn whom_an_event_missed_adds_up_over_the_steps_of_its_routing(db: &dyn TestDatabase) {
    let stores = db.stores();
    for n in 0..50 {
        let id = create(&stores, &new_subscription(TYPE, &format!("https://{n}.example/"))).await.id;
        if n % 5 == 0 {
            set_active(&stores, id, false).await;
        }
    }
    let event = append(&stores, new_event(TYPE)).await.id;
    let mut passes = 0;
    while count(db, "unrouted_events").await > 0 {
        stores.router.route(RouteLimits { events: 10, sagas: 7 }, DEFAULT_LIMIT).await.unwrap();
        passes += 1;
        assert!(passes < 20);
    }
    assert!(passes >= 7);
    let missed = Unmatched { paused: 10, disabled: 0, unverified: 40 };
    assert_eq!(detail(&stores, event).await.unmatched, missed);
}

/// Whether no subscription gets the only event of the next pass.
async fn is_unwanted(stores: &Stores, limits: RouteLimits) -> bool {
    let batch = stores.router.route(limits, DEFAULT_LIMIT).await.unwrap();
    let [event] = batch.events.as_slice() else { panic!("not one event: {batch:?}") };
    assert!([TYPE, EventType::TEST].contains(&event.event_type.as_str()), "{event:?}");
    event.unwanted
}

pub async fn an_event_is_unwanted_only_if_nobody_gets_it(db: &dyn TestDatabase) {
    let stores = db.stores();
    append(&stores, new_event(TYPE)).await;
    assert!(is_unwanted(&stores, some_events(10)).await, "there is no subscription");
    let paused = verified(&stores, TYPE, "https://paused.example/").await;
    set_active(&stores, paused, false).await;
    append(&stores, new_event(TYPE)).await;
    assert!(is_unwanted(&stores, some_events(10)).await, "it is paused");

    set_active(&stores, paused, true).await;
    let event = append(&stores, new_event(TYPE)).await.id;
    assert!(!is_unwanted(&stores, some_events(10)).await);
    changes(db, &format!("INSERT INTO unrouted_events (event_id) VALUES ({event})"), 1).await;
    assert!(!is_unwanted(&stores, some_events(10)).await, "routed again, it has its saga");
    append(&stores, NewEvent { event_type: EventType::test(), ..new_event(TYPE) }).await;
    assert!(!is_unwanted(&stores, some_events(10)).await, "a test event is not routed");

    // The last step of a long routing finds no subscription, earlier ones did.
    create(&stores, &new_subscription(TYPE, "https://unverified.example/")).await;
    append(&stores, new_event(TYPE)).await;
    for _ in 0..2 {
        assert!(!is_unwanted(&stores, RouteLimits { events: 10, sagas: 1 }).await);
    }
    assert_eq!(count(db, "unrouted_events").await, 0);
}
