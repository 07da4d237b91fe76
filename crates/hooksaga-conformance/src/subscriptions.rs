//! Configuring subscriptions and their secrets.

use super::{
    TestDatabase,
    fixture::{
        ALL, MANY, TYPE, URL, create, new_subscription, only, rotation, sealed, topics, url, verified, verify,
    },
    rows::{all_rows, count, db_now, ids},
};
use hooksaga_saga::{DisabledReason, SubscriptionId};
use hooksaga_store::{
    CheckOutcome, CreateOutcome, NewSubscription, PageRequest, SealedSecret, Stores, Subscription,
    SubscriptionFilter, SubscriptionPatch, UpdateOutcome, VerificationStatus,
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

async fn read(stores: &Stores, id: SubscriptionId) -> Subscription {
    stores.reader.subscription(&ALL, id).await.unwrap().expect("the subscription is there")
}

async fn update(stores: &Stores, id: SubscriptionId, patch: &SubscriptionPatch) -> Subscription {
    match stores.admin.update(&ALL, id, patch).await.unwrap() {
        UpdateOutcome::Updated(subscription) => {
            assert_eq!(subscription, read(stores, id).await, "the answer is what is stored");
            subscription
        }
        other => panic!("not updated: {other:?}"),
    }
}

fn to_url(text: &str) -> SubscriptionPatch {
    SubscriptionPatch { callback_url: Some(url(text)), ..SubscriptionPatch::default() }
}

/// The distinguishing bytes of the valid secrets, newest first, as a verifier reads them.
async fn valid_secrets(stores: &Stores, id: SubscriptionId) -> Vec<u8> {
    stores.admin.request_verification(&ALL, id, None).await.unwrap();
    let check = only(stores.verifier.take_checks(MANY, Duration::ZERO).await.unwrap());
    assert!(check.secrets.is_sorted_by(|a, b| a.id > b.id));
    check.secrets.iter().map(|stored| stored.secret.sealed[0]).collect()
}

pub async fn a_new_subscription_wants_verification(db: &dyn TestDatabase) {
    let stores = db.stores();
    let before = db_now(db).await;
    let new =
        NewSubscription { max_retry_limit: Some(7), rate_limit: Some(25), ..new_subscription(TYPE, URL) };
    let subscription = create(&stores, &new).await;
    assert_eq!((subscription.event_type.as_str(), subscription.callback_url.as_str()), (TYPE, URL));
    assert_eq!((subscription.active, subscription.verified), (true, false));
    assert_eq!(subscription.max_retry_limit, Some(7));
    assert_eq!(subscription.verification.status, VerificationStatus::Pending);
    assert_eq!((&subscription.verification.last_error, subscription.verification.checked_at), (&None, None));
    assert_eq!(subscription.created_at, subscription.updated_at);
    assert!(subscription.created_at.since(before) < Duration::from_secs(60));
    assert_eq!(read(&stores, subscription.id).await, subscription);
    assert_eq!(count(db, "subscription_secrets").await, 1);
    assert_eq!(stores.verifier.take_checks(MANY, HOUR).await.unwrap().len(), 1);
}

pub async fn an_inactive_subscription_can_be_created(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription =
        create(&stores, &NewSubscription { active: false, ..new_subscription(TYPE, URL) }).await;
    assert_eq!((subscription.active, subscription.max_retry_limit), (false, None));
}

pub async fn the_same_type_and_url_again_is_no_second_subscription(db: &dyn TestDatabase) {
    let stores = db.stores();
    let first = create(&stores, &new_subscription(TYPE, URL)).await;
    let again = NewSubscription { active: false, max_retry_limit: Some(1), ..new_subscription(TYPE, URL) };
    let outcome = stores.admin.create(&again, &sealed(2)).await.unwrap();
    assert_eq!(outcome, CreateOutcome::Exists(first.id));
    assert_eq!(read(&stores, first.id).await, first);
    assert_eq!(count(db, "subscriptions").await, 1);
    assert_eq!(count(db, "subscription_secrets").await, 1, "no stray secret");
}

pub async fn subscriptions_differ_by_type_and_url_to_the_letter(db: &dyn TestDatabase) {
    let stores = db.stores();
    for (event_type, url) in [
        (TYPE, URL),
        ("Order.created", URL),
        (TYPE, "https://receiver.example/Hook"),
        (TYPE, "https://receiver.example/hook/"),
        (TYPE, &format!("https://receiver.example/{}", "x".repeat(475))),
    ] {
        create(&stores, &new_subscription(event_type, url)).await;
    }
    assert_eq!(count(db, "subscriptions").await, 5);
}

pub async fn many_creators_of_one_subscription_make_one(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..10_u8 {
        let stores = instances[usize::from(n % 2)].clone();
        tasks.spawn(
            async move { stores.admin.create(&new_subscription(TYPE, URL), &sealed(n)).await.unwrap() },
        );
    }
    let outcomes = tasks.join_all().await;
    let created = outcomes.iter().filter(|outcome| matches!(outcome, CreateOutcome::Created(_))).count();
    assert_eq!(created, 1);
    assert_eq!(count(db, "subscriptions").await, 1);
    assert_eq!(count(db, "subscription_secrets").await, 1);
}

pub async fn each_field_can_be_changed_by_itself(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let none = SubscriptionPatch::default;
    let patches = [
        SubscriptionPatch { topics: Some(topics("order.paid")), ..none() },
        SubscriptionPatch { active: Some(false), ..none() },
        SubscriptionPatch { max_retry_limit: Some(Some(100)), ..none() },
        SubscriptionPatch { max_retry_limit: Some(None), ..none() },
        SubscriptionPatch { rate_limit: Some(Some(10_000)), ..none() },
        SubscriptionPatch { rate_limit: Some(None), ..none() },
        SubscriptionPatch { description: Some(Some("the shop's till".to_owned())), ..none() },
        to_url("https://other.example/"),
        SubscriptionPatch { description: Some(None), ..none() },
        SubscriptionPatch { active: Some(true), max_retry_limit: Some(Some(1)), ..none() },
    ];
    for patch in patches {
        let before = read(&stores, id).await;
        let after = update(&stores, id, &patch).await;
        assert!(after.updated_at >= before.updated_at);
        let expected = Subscription {
            event_type: patch.topics.map_or(before.event_type, |topics| topics.as_str().to_owned()),
            callback_url: patch.callback_url.map_or(before.callback_url, |url| url.as_str().to_owned()),
            description: patch.description.unwrap_or(before.description),
            active: patch.active.unwrap_or(before.active),
            max_retry_limit: patch.max_retry_limit.unwrap_or(before.max_retry_limit),
            rate_limit: patch.rate_limit.unwrap_or(before.rate_limit),
            updated_at: after.updated_at,
            ..before
        };
        assert_eq!(after, expected);
    }
}

pub async fn a_patch_that_changes_nothing_leaves_the_row_alone(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    let before = all_rows(db, "subscriptions").await;
    let same = SubscriptionPatch {
        topics: Some(topics(TYPE)),
        description: Some(None),
        callback_url: Some(url(URL)),
        active: Some(true),
        max_retry_limit: Some(None),
        rate_limit: Some(None),
        headers: Some(None),
    };
    for patch in [SubscriptionPatch::default(), same] {
        let after = update(&stores, id, &patch).await;
        assert!(after.verified);
        assert_eq!(all_rows(db, "subscriptions").await, before);
    }
}

pub async fn an_update_to_anothers_type_and_url_is_refused(db: &dyn TestDatabase) {
    let stores = db.stores();
    let taken = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let other = create(&stores, &new_subscription(TYPE, "https://other.example/")).await.id;
    let before = all_rows(db, "subscriptions").await;
    let patch = SubscriptionPatch { active: Some(false), ..to_url(URL) };
    assert_eq!(stores.admin.update(&ALL, other, &patch).await.unwrap(), UpdateOutcome::Exists(taken));
    assert_eq!(all_rows(db, "subscriptions").await, before, "nothing of the patch is applied");
}

pub async fn an_unknown_subscription_is_not_found(db: &dyn TestDatabase) {
    let stores = db.stores();
    let unknown = SubscriptionId(4711);
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    for patch in [pause, SubscriptionPatch::default()] {
        assert_eq!(stores.admin.update(&ALL, unknown, &patch).await.unwrap(), UpdateOutcome::NotFound);
    }
    assert_eq!(stores.admin.request_verification(&ALL, unknown, None).await.unwrap(), None);
    assert!(!stores.admin.rotate_secret(&ALL, &rotation(unknown, sealed(1), HOUR)).await.unwrap());
    assert_eq!(count(db, "subscription_secrets").await, 0);
    assert_eq!(stores.reader.subscription(&ALL, unknown).await.unwrap(), None);
}

pub async fn a_new_url_has_to_prove_itself(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    assert!(read(&stores, id).await.verified);
    let moved = update(&stores, id, &to_url("https://new.example/")).await;
    assert!(!moved.verified);
    assert_eq!(moved.verification.status, VerificationStatus::Pending);
    let check = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
    assert_eq!((check.subscription_id, check.callback_url.as_str()), (id, "https://new.example/"));
    assert_eq!((check.round, check.attempt), (2, 1), "a new round, due at once");
    assert!(stores.verifier.record(&check, &CheckOutcome::Verified).await.unwrap());
    assert!(read(&stores, id).await.verified);
}

pub async fn a_late_verifier_cannot_verify_the_new_url(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let old = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
    update(&stores, id, &to_url("https://new.example/")).await;
    let before = all_rows(db, "subscriptions").await;
    for outcome in [
        CheckOutcome::Verified,
        CheckOutcome::GivenUp(hooksaga_saga::ErrorCode::TIMEOUT),
        CheckOutcome::Retry(hooksaga_saga::ErrorCode::TIMEOUT, HOUR),
    ] {
        assert!(!stores.verifier.record(&old, &outcome).await.unwrap());
        assert_eq!(all_rows(db, "subscriptions").await, before);
    }
    verify(&stores, id).await;
    assert!(read(&stores, id).await.verified, "the new URL's own check counts");
}

pub async fn asking_for_verification_starts_a_new_round(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    assert_eq!(stores.verifier.take_checks(MANY, HOUR).await.unwrap().len(), 0);
    let before = read(&stores, id).await;
    let asked = stores.admin.request_verification(&ALL, id, None).await.unwrap().expect("it is there");
    assert_eq!(asked.verification.status, VerificationStatus::Pending);
    assert_eq!(asked.updated_at, before.updated_at, "nothing is configured anew");
    assert!(asked.verified, "until the URL changes, what was proved stays");
    assert_eq!(asked, read(&stores, id).await);
    assert_eq!(only(stores.verifier.take_checks(MANY, HOUR).await.unwrap()).round, 2);
}

pub async fn older_secrets_stay_valid_for_the_overlap(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let before = db_now(db).await;
    assert!(stores.admin.rotate_secret(&ALL, &rotation(id, sealed(2), HOUR)).await.unwrap());
    assert_eq!(valid_secrets(&stores, id).await, [2, 1]);
    let expires = format!(
        "SELECT {} FROM subscription_secrets WHERE expires_at IS NOT NULL",
        db.dialect().micros("expires_at")
    );
    let first = only(ids(db, &expires).await);
    let expected = before.after(HOUR).as_micros();
    assert!((expected..expected + 60_000_000).contains(&first), "{first} is not an hour from {before:?}");

    assert!(stores.admin.rotate_secret(&ALL, &rotation(id, sealed(3), 24 * HOUR)).await.unwrap());
    assert_eq!(valid_secrets(&stores, id).await, [3, 2, 1]);
    let oldest = format!("{expires} ORDER BY id");
    assert_eq!(ids(db, &oldest).await[0], first, "a later rotation does not prolong an older secret");

    assert!(stores.admin.rotate_secret(&ALL, &rotation(id, sealed(4), Duration::ZERO)).await.unwrap());
    assert_eq!(valid_secrets(&stores, id).await, [4]);
    assert_eq!(count(db, "subscription_secrets WHERE expires_at IS NULL").await, 1);
}

pub async fn a_sixth_secret_drops_the_oldest(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let bystander = create(&stores, &new_subscription(TYPE, "https://other.example/")).await.id;
    verify(&stores, bystander).await;
    for n in 2..=7 {
        assert!(stores.admin.rotate_secret(&ALL, &rotation(id, sealed(n), HOUR)).await.unwrap());
        let expected: Vec<u8> = (1..=n).rev().take(5).collect();
        assert_eq!(valid_secrets(&stores, id).await, expected);
    }
    let others = format!("subscription_secrets WHERE subscription_id = {bystander} AND expires_at IS NULL");
    assert_eq!(count(db, &others).await, 1, "another subscription's secret is not touched");
}

pub async fn the_keys_that_sealed_the_secrets_are_known(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.admin.secret_key_ids().await.unwrap(), [] as [&str; 0]);
    assert_eq!(stores.verifier.secret_key_ids().await.unwrap(), [] as [&str; 0]);
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    create(&stores, &new_subscription(TYPE, "https://other.example/")).await;
    let other = SealedSecret { key_id: "key-2".to_owned(), ..sealed(2) };
    stores.admin.rotate_secret(&ALL, &rotation(id, other, HOUR)).await.unwrap();
    for mut keys in
        [stores.admin.secret_key_ids().await.unwrap(), stores.verifier.secret_key_ids().await.unwrap()]
    {
        keys.sort();
        assert_eq!(keys, ["key-1", "key-2"], "each once");
    }
}

pub async fn the_key_of_an_expired_secret_is_of_no_interest(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let other = SealedSecret { key_id: "key-2".to_owned(), ..sealed(2) };
    stores.admin.rotate_secret(&ALL, &rotation(id, other, Duration::ZERO)).await.unwrap();
    assert_eq!(count(db, "subscription_secrets").await, 2);
    for keys in [
        stores.admin.secret_key_ids().await.unwrap(),
        stores.verifier.secret_key_ids().await.unwrap(),
        stores.worker.secret_key_ids().await.unwrap(),
    ] {
        assert_eq!(keys, ["key-2"]);
    }
}

pub async fn activating_clears_why_it_was_disabled_and_pausing_keeps_it(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    let other = verified(&stores, TYPE, "https://other.example/").await;
    let disable = format!(
        "UPDATE subscriptions SET active = FALSE, disabled_reason = 'FAILING', disabled_at = updated_at WHERE id = {id}"
    );
    assert_eq!(db.execute_as_owner(&disable).await.unwrap(), 1);
    let disabled = read(&stores, id).await;
    let why = disabled.disabled.unwrap();
    assert_eq!((why.reason, why.at), (DisabledReason::Failing, disabled.updated_at));
    for (wanted, found) in [(true, id), (false, other)] {
        let filter = SubscriptionFilter { disabled: Some(wanted), ..SubscriptionFilter::default() };
        let page = PageRequest { limit: 10, before: None };
        let listed = stores.reader.subscriptions(page.of(&ALL, &filter)).await.unwrap();
        assert_eq!(listed.items.iter().map(|it| it.id).collect::<Vec<_>>(), [found]);
    }
    for (since, found) in [(why.at, vec![id]), (why.at.after(Duration::from_micros(1)), vec![])] {
        let filter = SubscriptionFilter { disabled_after: Some(since), ..SubscriptionFilter::default() };
        let page = PageRequest { limit: 10, before: None };
        let listed = stores.reader.subscriptions(page.of(&ALL, &filter)).await.unwrap();
        assert_eq!(listed.items.iter().map(|it| it.id).collect::<Vec<_>>(), found, "{since:?}");
    }

    let active = |active| SubscriptionPatch { active: Some(active), ..SubscriptionPatch::default() };
    let limited = SubscriptionPatch { rate_limit: Some(Some(5)), ..SubscriptionPatch::default() };
    for patch in [active(false), limited] {
        assert_eq!(update(&stores, id, &patch).await.disabled, Some(why));
    }
    assert_eq!(update(&stores, id, &active(true)).await.disabled, None);
    assert_eq!(update(&stores, id, &active(false)).await.disabled, None, "a pause is no reason");
    let both = format!("{disable} AND active = FALSE").replacen("active = FALSE,", "active = TRUE,", 1);
    assert!(db.execute_as_owner(&both).await.is_err(), "what is disabled is not active");
}
