//! A subscription misses no events at verification: those that were accepted before reach it once it is verified.

use super::{
    TestDatabase,
    fixture::{
        ALL, DEFAULT_LIMIT, MANY, TYPE, URL, append, append_many, create, new_event, new_subscription, route,
        set_active, url, verified, verify,
    },
    rows::{changes, count, ids, set_topics},
};
use hooksaga_saga::{EventId, SubscriptionId};
use hooksaga_store::{CheckOutcome, RouteLimits, StepLimits, Stores, SubscriptionPatch, UpdateOutcome};
use std::time::Duration;

const DAY: Option<Duration> = Some(Duration::from_secs(24 * 3600));

fn limits(examine: u32, create: u32) -> StepLimits {
    StepLimits { examine, create, default_limit: DEFAULT_LIMIT }
}

/// Takes steps until no subscription has anything to catch up with. Returns how many sagas they created.
async fn catch_up(stores: &Stores, limits: StepLimits, window: Option<Duration>) -> usize {
    let mut made = 0;
    for _ in 0..200 {
        let Some(step) = stores.redrives.catch_up(limits, window).await.unwrap() else { return made };
        assert!(step.sagas.len() <= limits.create as usize);
        made += step.sagas.len();
    }
    panic!("it does not end");
}

async fn events_of(db: &dyn TestDatabase, id: SubscriptionId) -> Vec<EventId> {
    let sql =
        format!("SELECT event_id FROM webhook_delivery_sagas WHERE subscription_id = {id} ORDER BY event_id");
    ids(db, &sql).await.into_iter().map(EventId).collect()
}

async fn set_url(stores: &Stores, id: SubscriptionId, to: &str) {
    let patch = SubscriptionPatch { callback_url: Some(url(to)), ..SubscriptionPatch::default() };
    let outcome = stores.admin.update(&ALL, id, &patch).await.unwrap();
    assert!(matches!(outcome, UpdateOutcome::Updated(_)), "{outcome:?}");
}

pub async fn events_before_the_verification_are_delivered_after_it(db: &dyn TestDatabase) {
    let stores = db.stores();
    append_many(&stores, 2).await;
    route(&stores).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let missed = append_many(&stores, 7).await;
    append(&stores, new_event("other.type")).await;
    assert_eq!(route(&stores).await, [], "it is not verified");
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 0, "nor does it catch up before");
    verify(&stores, id).await;
    let later = append_many(&stores, 1).await;
    route(&stores).await;
    assert_eq!(catch_up(&stores, limits(3, 2), DAY).await, 7);
    let expected: Vec<_> = missed.into_iter().chain(later).collect();
    assert_eq!(events_of(db, id).await, expected, "each once, and none from before it existed");
    assert_eq!(count(db, "catch_ups").await, 0);
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 0);
}

pub async fn a_changed_url_catches_up_when_it_is_verified(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    catch_up(&stores, limits(MANY, MANY), DAY).await;
    append_many(&stores, 1).await;
    route(&stores).await;
    set_url(&stores, id, "https://second.example/").await;
    append_many(&stores, 2).await;
    route(&stores).await;
    // The gap begins with the first change.
    set_url(&stores, id, "https://third.example/").await;
    append_many(&stores, 3).await;
    route(&stores).await;
    assert_eq!(events_of(db, id).await.len(), 1);
    verify(&stores, id).await;
    assert_eq!(catch_up(&stores, limits(2, 2), DAY).await, 5);
    assert_eq!(events_of(db, id).await.len(), 6);

    // Back to a URL that is verified: the gap ends at once.
    set_url(&stores, id, "https://fourth.example/").await;
    append_many(&stores, 2).await;
    route(&stores).await;
    set_url(&stores, id, "https://third.example/").await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 2);
    assert_eq!(events_of(db, id).await.len(), 8);
}

pub async fn a_verification_that_is_lost_again_loses_no_event(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let missed = append_many(&stores, 2).await;
    route(&stores).await;
    verify(&stores, id).await;
    set_url(&stores, id, "https://second.example/").await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 0, "it waits");
    assert_eq!(count(db, "catch_ups").await, 1);
    verify(&stores, id).await;
    let now = db.dialect().now();
    changes(db, &format!("UPDATE catch_ups SET next_at = {now}"), 2).await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 2);
    assert_eq!(events_of(db, id).await, missed);
    assert_eq!(count(db, "catch_ups").await, 0);
}

pub async fn the_verification_and_its_queue_are_one_transaction(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let checks = stores.verifier.take_checks(MANY, Duration::ZERO).await.unwrap();
    let failed = CheckOutcome::Retry(hooksaga_saga::ErrorCode::TIMEOUT, Duration::ZERO);
    assert!(stores.verifier.record(&checks[0], &failed).await.unwrap());
    assert_eq!(count(db, "catch_ups").await, 0, "it is not verified");
    verify(&stores, id).await;
    assert_eq!(count(db, &format!("catch_ups WHERE subscription_id = {id}")).await, 1);
    // Verified again, it has missed nothing.
    stores.admin.request_verification(&ALL, id, None).await.unwrap();
    verify(&stores, id).await;
    assert_eq!(count(db, "catch_ups").await, 1);
}

pub async fn catching_up_goes_back_no_further_than_it_may(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    append_many(&stores, 2).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let recent = append_many(&stores, 1).await;
    route(&stores).await;
    verify(&stores, id).await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), Some(Duration::from_millis(200))).await, 1);
    assert_eq!(events_of(db, id).await, recent);

    // Where catching up is off, its row is deleted.
    let other = create(&stores, &new_subscription(TYPE, "https://other.example/")).await.id;
    append_many(&stores, 2).await;
    route(&stores).await;
    verify(&stores, other).await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), None).await, 0);
    assert_eq!(count(db, "catch_ups").await, 0);
    assert_eq!(events_of(db, other).await, []);
}

async fn look_again(db: &dyn TestDatabase) {
    changes(db, &format!("UPDATE catch_ups SET next_at = {}", db.dialect().now()), 1).await;
}

/// Paused before the first step, and in the middle.
pub async fn catching_up_waits_while_the_subscription_is_paused(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let missed = append_many(&stores, 6).await;
    route(&stores).await;
    set_active(&stores, id, false).await;
    verify(&stores, id).await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 0);
    assert_eq!(events_of(db, id).await, [], "a paused one gets no sagas");
    tokio::time::sleep(Duration::from_millis(5)).await;
    append_many(&stores, 1).await;
    route(&stores).await;

    set_active(&stores, id, true).await;
    stores.redrives.catch_up(limits(2, 2), DAY).await.unwrap().unwrap();
    assert_eq!(events_of(db, id).await.len(), 2);
    set_active(&stores, id, false).await;
    assert_eq!(catch_up(&stores, limits(2, 2), DAY).await, 0, "it waits again");
    set_active(&stores, id, true).await;
    assert_eq!(catch_up(&stores, limits(2, 2), DAY).await, 4, "at once");
    assert_eq!(
        events_of(db, id).await,
        missed,
        "what came after the verification it missed because of the pause"
    );
    assert_eq!(count(db, "catch_ups").await, 0);
}

/// A step that saw the pause does not postpone a subscription that was resumed meanwhile.
pub async fn catching_up_goes_on_at_once_however_a_resume_meets_a_step(db: &dyn TestDatabase) {
    const ROUNDS: usize = 20;
    let (stores, other) = (db.stores(), db.second_instance().await);
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    append_many(&stores, 3 * ROUNDS).await;
    route(&stores).await;
    verify(&stores, id).await;
    for round in 0..ROUNDS {
        set_active(&stores, id, false).await;
        look_again(db).await;
        let (step, ()) =
            tokio::join!(stores.redrives.catch_up(limits(1, 1), DAY), set_active(&other, id, true));
        step.unwrap();
        let next = stores.redrives.catch_up(limits(1, 1), DAY).await.unwrap();
        assert!(next.is_some(), "it is put off in round {round}");
    }
}

/// The topics of the subscription cannot be read.
pub async fn one_that_cannot_catch_up_lets_others_go_first(db: &dyn TestDatabase) {
    let stores = db.stores();
    let stuck = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let other = create(&stores, &new_subscription(TYPE, "https://other.example/")).await.id;
    let missed = append_many(&stores, 3).await;
    route(&stores).await;
    verify(&stores, stuck).await;
    verify(&stores, other).await;
    set_topics(db, stuck, "?").await;
    for _ in 0..2 {
        let failed = stores.redrives.catch_up(limits(MANY, MANY), DAY).await;
        assert!(matches!(&failed, Err(error) if error.is_of_rows()), "it is its turn: {failed:?}");
    }
    stores.redrives.put_off_catch_up(Duration::from_secs(60)).await.unwrap();
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 3);
    assert_eq!(events_of(db, other).await, missed);
    stores.redrives.put_off_catch_up(Duration::from_secs(60)).await.unwrap();

    set_topics(db, stuck, TYPE).await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 0, "not before its time");
    look_again(db).await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 3);
    assert_eq!(events_of(db, stuck).await, missed);
    assert_eq!(count(db, "catch_ups").await, 0);
}

pub async fn a_subscription_that_is_deleted_does_not_catch_up(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    append_many(&stores, 2).await;
    route(&stores).await;
    verify(&stores, id).await;
    stores.admin.delete(&ALL, id).await.unwrap();
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 0);
    assert_eq!(count(db, "catch_ups").await, 0);
    assert_eq!(events_of(db, id).await, []);
}

pub async fn two_that_catch_up_at_once_make_each_saga_once(db: &dyn TestDatabase) {
    let (stores, other) = (db.stores(), db.second_instance().await);
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    append_many(&stores, 60).await;
    route(&stores).await;
    verify(&stores, id).await;
    let run = |stores: Stores| async move {
        while count(db, "catch_ups").await > 0 {
            stores.redrives.catch_up(limits(10, 7), DAY).await.unwrap();
        }
    };
    tokio::join!(run(stores), run(other));
    assert_eq!(events_of(db, id).await.len(), 60);
}

/// An event that was accepted while the former URL was verified, and routed when the new one was not verified yet.
pub async fn an_event_that_waited_while_the_url_changed_is_caught_up_with(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    catch_up(&stores, limits(MANY, MANY), DAY).await;
    let before = append_many(&stores, 1).await;
    set_active(&stores, id, false).await;
    route(&stores).await;
    set_active(&stores, id, true).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let waiting = append_many(&stores, 5).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    set_url(&stores, id, "https://second.example/").await;
    assert_eq!(route(&stores).await, []);
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 0, "it is not verified");
    verify(&stores, id).await;
    changes(db, &format!("UPDATE catch_ups SET next_at = {}", db.dialect().now()), 2).await;
    assert_eq!(catch_up(&stores, limits(2, 2), DAY).await, 5);
    assert_eq!(events_of(db, id).await, waiting, "each once, and not {before:?}, which it missed by a pause");
    assert_eq!(count(db, "catch_ups").await, 0);
}

/// The same for an event with many subscriptions, which is routed in several steps.
pub async fn many_that_are_not_verified_catch_up_with_an_event_that_waited(db: &dyn TestDatabase) {
    let stores = db.stores();
    let event = append(&stores, new_event(TYPE)).await.id;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut subscriptions = Vec::new();
    for n in 0..40 {
        let new = new_subscription(TYPE, &format!("https://{n}.example/"));
        subscriptions.push(create(&stores, &new).await.id);
    }
    for _ in 0..5 {
        stores.router.route(RouteLimits { events: 10, sagas: 9 }, DEFAULT_LIMIT).await.unwrap();
    }
    assert_eq!(count(db, "unrouted_events").await, 0);
    for id in &subscriptions {
        verify(&stores, *id).await;
    }
    assert_eq!(catch_up(&stores, limits(MANY, MANY), DAY).await, 40);
    for id in subscriptions {
        assert_eq!(events_of(db, id).await, [event]);
    }
    assert_eq!(count(db, "catch_ups").await, 0);
}

/// Events that waited longer than `callbacks.catch_up` allows are not sent.
pub async fn an_event_that_waited_too_long_is_not_caught_up_with(db: &dyn TestDatabase) {
    let stores = db.stores();
    append_many(&stores, 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    route(&stores).await;
    assert_eq!(count(db, "catch_ups").await, 1);
    verify(&stores, id).await;
    assert_eq!(catch_up(&stores, limits(MANY, MANY), Some(Duration::from_millis(200))).await, 0);
    assert_eq!(count(db, "catch_ups").await, 0);
    assert_eq!(events_of(db, id).await, []);
}
