//! Request headers, trusted endpoints, and test events.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, MANY, TOKEN, TYPE, URL, append, claim, create, deliver_round, new_event,
        new_subscription, only, route, schedule_and_mark, scope, sealed, set_active, tenant, test_of, url,
        verified, verified_with, verify,
    },
    rows::{count, saga_row},
};
use hooksaga_saga::{EventType, SagaStatus, SubscriptionId};
use hooksaga_store::{
    CheckOutcome, CreateOutcome, NewEvent, NewSubscription, SealedHeaders, SealedParts, SealedSecret, Stores,
    Subscription, SubscriptionPatch, TestOutcome, UpdateOutcome, VerificationStatus,
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn headers(names: &str, n: u8) -> SealedHeaders {
    let secret = SealedSecret { key_id: "key-of-headers".to_owned(), sealed: vec![n; 17_000] };
    SealedHeaders { names: names.to_owned(), secret }
}

fn given(headers: Option<SealedHeaders>) -> SubscriptionPatch {
    SubscriptionPatch { headers: Some(headers), ..SubscriptionPatch::default() }
}

async fn update(stores: &Stores, id: SubscriptionId, patch: &SubscriptionPatch) -> Subscription {
    match stores.admin.update(&ALL, id, patch).await.unwrap() {
        UpdateOutcome::Updated(subscription) => subscription,
        other => panic!("not updated: {other:?}"),
    }
}

/// The request headers of the next delivery to this subscription.
async fn sent_with(stores: &Stores, id: SubscriptionId) -> Option<SealedSecret> {
    append(stores, new_event(TYPE)).await;
    route(stores).await;
    schedule_and_mark(stores).await;
    claim(stores, TOKEN).await.targets[&id].headers.clone()
}

pub async fn headers_are_listed_by_name_and_read_with_deliveries_and_checks(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mine = headers("authorization,x-key", 1);
    let new = NewSubscription { headers: Some(mine.names.clone()), ..new_subscription(TYPE, URL) };
    let parts = SealedParts { secret: sealed(1), headers: Some(mine.secret.clone()) };
    let CreateOutcome::Created(created) = stores.admin.create(&new, &parts).await.unwrap() else {
        panic!("not created");
    };
    assert_eq!(created.headers, ["authorization", "x-key"]);
    let plain = create(&stores, &new_subscription(TYPE, "https://plain.example/")).await;
    assert!(plain.headers.is_empty());
    for check in stores.verifier.take_checks(MANY, HOUR).await.unwrap() {
        let expected = (check.subscription_id == created.id).then(|| mine.secret.clone());
        assert_eq!(check.headers, expected);
        assert!(stores.verifier.record(&check, &CheckOutcome::Verified).await.unwrap());
    }
    assert_eq!(sent_with(&stores, created.id).await, Some(mine.secret.clone()));
    assert_eq!(sent_with(&stores, plain.id).await, None);
    let keys = ["key-1", "key-of-headers"];
    assert_eq!(stores.admin.secret_key_ids().await.unwrap(), keys);
    assert_eq!(stores.worker.secret_key_ids().await.unwrap(), keys);
    assert_eq!(stores.verifier.secret_key_ids().await.unwrap(), keys);
    let listed = stores.reader.subscription(&ALL, created.id).await.unwrap().unwrap();
    assert_eq!(listed.headers, created.headers);
}

pub async fn headers_are_replaced_and_removed_as_a_whole(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    let none = update(&stores, id, &given(None)).await;
    let first = update(&stores, id, &given(Some(headers("a,b", 1)))).await;
    assert_eq!(first.headers, ["a", "b"]);
    assert!(first.updated_at > none.updated_at && first.verified);
    let second = update(&stores, id, &given(Some(headers("c", 2)))).await;
    assert_eq!(second.headers, ["c"]);
    assert_eq!(sent_with(&stores, id).await, Some(headers("c", 2).secret));
    let pause = SubscriptionPatch { description: Some(Some("x".to_owned())), ..SubscriptionPatch::default() };
    assert_eq!(update(&stores, id, &pause).await.headers, ["c"], "another change leaves them");
    assert!(update(&stores, id, &given(None)).await.headers.is_empty());
    assert_eq!(sent_with(&stores, id).await, None);
    assert_eq!(count(db, "subscription_headers").await, 0);
}

pub async fn headers_do_not_follow_to_another_origin(db: &dyn TestDatabase) {
    let stores = db.stores();
    let to = |text: &str| SubscriptionPatch { callback_url: Some(url(text)), ..SubscriptionPatch::default() };
    let new = NewSubscription {
        headers: Some("a".to_owned()),
        ..new_subscription(TYPE, "https://one.example/hook")
    };
    let id = create(&stores, &new).await.id;
    for same in ["https://one.example/other?x=1", "https://ONE.example:443/", "https://one.example"] {
        assert_eq!(update(&stores, id, &to(same)).await.headers, ["a"], "{same}");
    }
    let both = SubscriptionPatch { headers: Some(Some(headers("b", 2))), ..to("https://two.example/") };
    assert_eq!(update(&stores, id, &both).await.headers, ["b"], "given again");
    verify(&stores, id).await;
    assert_eq!(sent_with(&stores, id).await, Some(headers("b", 2).secret));
    for other in ["https://three.example/", "https://three.example:444/", "http://three.example:444/"] {
        update(&stores, id, &given(Some(headers("c", 3)))).await;
        assert!(update(&stores, id, &to(other)).await.headers.is_empty(), "{other}");
        assert_eq!(count(db, "subscription_headers").await, 0);
    }
}

pub async fn a_trusted_endpoint_is_verified_with_the_name_of_who_vouched(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let first = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
    assert_eq!(first.vouched_by, None);
    let asked = stores.admin.request_verification(&ALL, id, Some("Zoë's key")).await.unwrap().unwrap();
    assert!(!asked.verified && asked.verification.trusted.is_none(), "the verifier has the last word");
    let check = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
    assert_eq!(check.vouched_by.as_deref(), Some("Zoë's key"));
    assert!(stores.verifier.record(&check, &CheckOutcome::Trusted).await.unwrap());

    let now = stores.reader.subscription(&ALL, id).await.unwrap().unwrap();
    assert!(now.verified);
    assert_eq!(now.verification.status, VerificationStatus::Verified);
    let trusted = now.verification.trusted.unwrap();
    assert_eq!(trusted.by, "Zoë's key");
    assert_eq!(Some(trusted.at), now.verification.checked_at);

    // A challenge that fails changes nothing. One that the endpoint returns needs nobody to vouch for it.
    for (outcome, still) in
        [(CheckOutcome::GivenUp(hooksaga_saga::ErrorCode::TIMEOUT), true), (CheckOutcome::Verified, false)]
    {
        stores.admin.request_verification(&ALL, id, None).await.unwrap();
        let check = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
        assert_eq!(check.vouched_by, None);
        stores.verifier.record(&check, &outcome).await.unwrap();
        let now = stores.reader.subscription(&ALL, id).await.unwrap().unwrap();
        assert_eq!((now.verified, now.verification.trusted.is_some()), (true, still));
    }
}

pub async fn nobody_vouches_for_the_next_url(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    stores.admin.request_verification(&ALL, id, Some("root")).await.unwrap();
    let check = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
    let to = SubscriptionPatch {
        callback_url: Some(url("https://other.example/")),
        ..SubscriptionPatch::default()
    };
    update(&stores, id, &to).await;
    assert!(!stores.verifier.record(&check, &CheckOutcome::Trusted).await.unwrap());
    assert_eq!(only(stores.verifier.take_checks(MANY, HOUR).await.unwrap()).vouched_by, None);
    // Trusted at one URL, then moved.
    stores.admin.request_verification(&ALL, id, Some("root")).await.unwrap();
    let check = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
    assert!(stores.verifier.record(&check, &CheckOutcome::Trusted).await.unwrap());
    let back = SubscriptionPatch { callback_url: Some(url(URL)), ..SubscriptionPatch::default() };
    let moved = update(&stores, id, &back).await;
    assert!(!moved.verified && moved.verification.trusted.is_none());
}

fn test_event() -> NewEvent {
    NewEvent { event_type: EventType::test(), ..new_event(TYPE) }
}

async fn send_test(stores: &Stores, event: NewEvent, id: SubscriptionId) -> TestOutcome {
    let event = append(stores, event).await.id;
    stores.dead_letters.send_test(&ALL, test_of(event, id)).await.unwrap()
}

pub async fn a_test_event_goes_to_its_subscription_alone(db: &dyn TestDatabase) {
    let stores = db.stores();
    let new = NewSubscription { max_retry_limit: Some(2), ..new_subscription(TYPE, URL) };
    let id = verified_with(&stores, &new).await;
    for (n, topics) in ["*", "hooksaga.*", "hooksaga.test", "hooksaga.test.*"].into_iter().enumerate() {
        verified(&stores, topics, &format!("https://other.example/{n}")).await;
    }
    let event = append(&stores, test_event()).await.id;
    assert!(route(&stores).await.is_empty(), "it matches no topic");
    let outcome = stores.dead_letters.send_test(&ALL, test_of(event, id)).await.unwrap();
    let TestOutcome::Delivery(saga) = outcome else { panic!("{outcome:?}") };
    let again = stores.dead_letters.send_test(&ALL, test_of(event, id)).await.unwrap();
    assert_eq!(again, outcome, "twice is once");
    assert!(route(&stores).await.is_empty());
    let row = saga_row(db, saga).await;
    assert_eq!((row.event_id, row.subscription_id, row.generation), (event, id, 0));
    assert_eq!((row.status, row.max_retry_limit), (SagaStatus::Pending, 2));
    deliver_round(&stores, None, AT_ONCE).await;
    assert_eq!(saga_row(db, saga).await.status, SagaStatus::Completed);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 1);
    let shown = stores.reader.event(&ALL, event).await.unwrap().unwrap();
    assert!(shown.routed && shown.deliveries.len() == 1);
}

pub async fn a_test_event_needs_an_active_and_verified_subscription_of_its_tenant(db: &dyn TestDatabase) {
    let stores = db.stores();
    let unverified = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let paused = verified(&stores, TYPE, "https://paused.example/").await;
    set_active(&stores, paused, false).await;
    for id in [unverified, paused] {
        assert_eq!(send_test(&stores, test_event(), id).await, TestOutcome::NotDeliverable);
    }
    set_active(&stores, paused, true).await;
    let foreign = NewEvent { tenant: tenant("another"), ..test_event() };
    assert_eq!(send_test(&stores, foreign, paused).await, TestOutcome::NotFound);
    assert_eq!(send_test(&stores, test_event(), SubscriptionId(4711)).await, TestOutcome::NotFound);
    let event = append(&stores, test_event()).await.id;
    let stranger = stores.dead_letters.send_test(&scope("another"), test_of(event, paused)).await;
    assert_eq!(stranger.unwrap(), TestOutcome::NotFound);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 0);
}
