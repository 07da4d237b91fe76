//! Verification rounds: which subscriptions are checked when, and the effect of each outcome.

use super::{
    TestDatabase,
    fixture::{ALL, MANY, TYPE, URL, create, new_subscription, only, sealed, tenant, url, verified},
    rows::{all_rows, db_now},
};
use hooksaga_saga::{ErrorCode, SubscriptionId};
use hooksaga_store::{
    Check, CheckOutcome, CheckTurn, NewSubscription, Stores, SubscriptionPatch, Verification,
    VerificationStatus,
};
use std::{collections::HashSet, time::Duration};

const HOUR: Duration = Duration::from_secs(3600);
const NOW: Duration = Duration::ZERO;

async fn take(stores: &Stores, hold: Duration) -> Vec<Check> {
    stores.verifier.take_checks(MANY, hold).await.unwrap()
}

async fn record(stores: &Stores, check: &Check, outcome: CheckOutcome) -> bool {
    stores.verifier.record(check, &outcome).await.unwrap()
}

/// Whether the subscription is verified, and the state of its rounds.
async fn state(stores: &Stores, id: SubscriptionId) -> (bool, Verification) {
    let subscription =
        stores.reader.subscription(&ALL, id).await.unwrap().expect("the subscription is there");
    (subscription.verified, subscription.verification)
}

pub async fn a_first_check_is_due_at_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.verifier.next_check_at().await.unwrap(), None);
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let due = stores.verifier.next_check_at().await.unwrap().expect("one waits");
    assert!(due <= db_now(db).await.after(Duration::from_millis(2)));
    let check = only(take(&stores, HOUR).await);
    assert_eq!((check.subscription_id, check.callback_url.as_str()), (id, URL));
    assert_eq!((check.round, check.attempt, check.number), (1, 1, 1));
    assert_eq!(check.secrets.iter().map(|stored| &stored.secret).collect::<Vec<_>>(), [&sealed(1)]);
}

pub async fn a_held_check_is_not_taken_twice(db: &dyn TestDatabase) {
    let stores = db.stores();
    create(&stores, &new_subscription(TYPE, URL)).await;
    let before = db_now(db).await;
    assert_eq!(take(&stores, HOUR).await.len(), 1);
    assert_eq!(take(&stores, HOUR).await.len(), 0);
    let next = stores.verifier.next_check_at().await.unwrap().expect("one is held");
    let held = next.since(before);
    assert!(held >= HOUR && held < HOUR + Duration::from_secs(60), "{held:?}");
}

pub async fn a_check_whose_holder_died_is_taken_over(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let first = only(take(&stores, NOW).await);
    let second = only(take(&stores, NOW).await);
    assert_eq!((second.round, second.attempt, second.number), (1, 2, 2));
    for outcome in [CheckOutcome::Verified, CheckOutcome::GivenUp(ErrorCode::TIMEOUT)] {
        assert!(!record(&stores, &first, outcome).await, "the first holder is too late");
    }
    assert_eq!(state(&stores, id).await.1.status, VerificationStatus::Pending);
    assert!(record(&stores, &second, CheckOutcome::Verified).await);
    assert!(state(&stores, id).await.0);
}

pub async fn a_success_verifies_the_url_and_ends_the_round(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let updated_at = stores.reader.subscription(&ALL, id).await.unwrap().unwrap().updated_at;
    let check = only(take(&stores, HOUR).await);
    assert!(record(&stores, &check, CheckOutcome::Verified).await);
    let (verified, verification) = state(&stores, id).await;
    assert!(verified);
    assert_eq!((verification.status, &verification.last_error), (VerificationStatus::Verified, &None));
    assert!(verification.checked_at.is_some());
    let after = stores.reader.subscription(&ALL, id).await.unwrap().unwrap();
    assert_eq!(after.updated_at, updated_at, "that is the configuration's");
    assert_eq!(take(&stores, NOW).await.len(), 0);
    assert_eq!(stores.verifier.next_check_at().await.unwrap(), None);

    let before = all_rows(db, "subscriptions").await;
    for outcome in [CheckOutcome::Verified, CheckOutcome::GivenUp(ErrorCode::TIMEOUT)] {
        assert!(!record(&stores, &check, outcome).await, "an outcome counts once");
    }
    assert_eq!(all_rows(db, "subscriptions").await, before);
}

pub async fn a_failed_try_is_repeated_after_its_delay(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let first = only(take(&stores, HOUR).await);
    assert!(record(&stores, &first, CheckOutcome::Retry(ErrorCode::CHALLENGE_MISMATCH, NOW)).await);
    let (verified, verification) = state(&stores, id).await;
    assert!(!verified);
    assert_eq!(verification.status, VerificationStatus::Pending);
    assert_eq!(verification.last_error, Some(ErrorCode::CHALLENGE_MISMATCH));
    assert!(verification.checked_at.is_some());

    let second = only(take(&stores, HOUR).await);
    assert_eq!((second.round, second.attempt, second.number), (1, 2, 2));
    let before = db_now(db).await;
    assert!(record(&stores, &second, CheckOutcome::Retry(ErrorCode::http(404), HOUR)).await);
    assert_eq!(take(&stores, NOW).await.len(), 0, "not yet");
    let wait = stores.verifier.next_check_at().await.unwrap().expect("a try waits").since(before);
    assert!(wait >= HOUR && wait < HOUR + Duration::from_secs(60), "{wait:?}");
    assert_eq!(state(&stores, id).await.1.last_error, Some(ErrorCode::http(404)));
}

/// The result of checking one URL says nothing about another.
pub async fn another_url_begins_without_the_former_ones_result(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let check = only(take(&stores, HOUR).await);
    assert!(record(&stores, &check, CheckOutcome::GivenUp(ErrorCode::TIMEOUT)).await);
    let (_, before) = state(&stores, id).await;
    assert!(before.last_error.is_some() && before.checked_at.is_some());
    let patch = SubscriptionPatch {
        callback_url: Some(url("https://second.example/")),
        ..SubscriptionPatch::default()
    };
    stores.admin.update(&ALL, id, &patch).await.unwrap();
    let (_, after) = state(&stores, id).await;
    assert_eq!((after.status, after.last_error, after.checked_at), (VerificationStatus::Pending, None, None));
}

pub async fn a_round_that_is_given_up_rests_until_it_is_asked_for_again(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let check = only(take(&stores, HOUR).await);
    assert!(record(&stores, &check, CheckOutcome::GivenUp(ErrorCode::CONNECT_FAILED)).await);
    let (verified, verification) = state(&stores, id).await;
    assert!(!verified);
    assert_eq!(verification.status, VerificationStatus::Failed);
    assert_eq!(verification.last_error, Some(ErrorCode::CONNECT_FAILED));
    assert_eq!(take(&stores, NOW).await.len(), 0);
    assert_eq!(stores.verifier.next_check_at().await.unwrap(), None);

    stores.admin.request_verification(&ALL, id, None).await.unwrap();
    assert_eq!(state(&stores, id).await.1.status, VerificationStatus::Pending);
    let again = only(take(&stores, HOUR).await);
    assert_eq!((again.round, again.attempt, again.number), (2, 1, 2), "numbers are never used twice");
    assert!(record(&stores, &again, CheckOutcome::Verified).await);
    assert_eq!(state(&stores, id).await.1.last_error, None);
}

pub async fn a_new_round_does_not_wait_for_the_old_ones_delay(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let first = only(take(&stores, HOUR).await);
    stores.admin.request_verification(&ALL, id, None).await.unwrap();
    assert!(!record(&stores, &first, CheckOutcome::Verified).await, "its round is over");
    let second = only(take(&stores, HOUR).await);
    assert_eq!((second.round, second.attempt), (2, 1));
    assert!(record(&stores, &second, CheckOutcome::Retry(ErrorCode::TIMEOUT, HOUR)).await);
    stores.admin.request_verification(&ALL, id, None).await.unwrap();
    let due = stores.verifier.next_check_at().await.unwrap().expect("one waits");
    assert!(due <= db_now(db).await.after(Duration::from_millis(2)), "the driver must not sleep an hour");
    assert_eq!(only(take(&stores, HOUR).await).round, 3);
}

pub async fn a_failed_reverification_does_not_unverify(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    stores.admin.request_verification(&ALL, id, None).await.unwrap();
    let check = only(take(&stores, HOUR).await);
    assert!(record(&stores, &check, CheckOutcome::Retry(ErrorCode::TIMEOUT, NOW)).await);
    assert_eq!(state(&stores, id).await.1.status, VerificationStatus::Pending);
    assert!(state(&stores, id).await.0);
    let check = only(take(&stores, HOUR).await);
    assert!(record(&stores, &check, CheckOutcome::GivenUp(ErrorCode::TIMEOUT)).await);
    let (verified, verification) = state(&stores, id).await;
    assert!(verified);
    assert_eq!(verification.status, VerificationStatus::Verified);
    assert_eq!(verification.last_error, Some(ErrorCode::TIMEOUT));
}

pub async fn an_outcome_needs_its_own_url_round_and_attempt(db: &dyn TestDatabase) {
    let stores = db.stores();
    create(&stores, &new_subscription(TYPE, URL)).await;
    let check = only(take(&stores, HOUR).await);
    let before = all_rows(db, "subscriptions").await;
    for other in [
        Check { callback_url: "https://other.example/".to_owned(), ..check.clone() },
        Check { round: check.round + 1, ..check.clone() },
        Check { round: check.round - 1, ..check.clone() },
        Check { attempt: check.attempt + 1, ..check.clone() },
        Check { subscription_id: SubscriptionId(4711), ..check.clone() },
    ] {
        assert!(!record(&stores, &other, CheckOutcome::Verified).await, "{other:?}");
        assert_eq!(all_rows(db, "subscriptions").await, before);
    }
    assert!(record(&stores, &check, CheckOutcome::Verified).await);
}

pub async fn inactive_subscriptions_are_checked_too(db: &dyn TestDatabase) {
    let stores = db.stores();
    let inactive = NewSubscription { active: false, ..new_subscription(TYPE, URL) };
    let id = create(&stores, &inactive).await.id;
    let check = only(take(&stores, HOUR).await);
    assert!(record(&stores, &check, CheckOutcome::Verified).await);
    assert!(state(&stores, id).await.0);
}

pub async fn a_pass_takes_no_more_checks_than_its_limit(db: &dyn TestDatabase) {
    let stores = db.stores();
    for n in 0..5 {
        create(&stores, &new_subscription(TYPE, &format!("https://receiver.example/{n}"))).await;
    }
    let mut seen = HashSet::new();
    for expected in [2, 2, 1, 0] {
        let checks = stores.verifier.take_checks(2, HOUR).await.unwrap();
        assert_eq!(checks.len(), expected);
        seen.extend(checks.iter().map(|check| check.subscription_id));
    }
    assert_eq!(seen.len(), 5);
}

/// Takes the checks of one turn. Returns their tenants, and where the next turn begins.
async fn take_in_turn(stores: &Stores, turn: &CheckTurn) -> (Vec<String>, Option<String>) {
    let taken = stores.verifier.take_checks_in_turn(turn, HOUR).await.unwrap();
    let mut tenants: Vec<String> = taken.checks.into_iter().map(|check| check.tenant).collect();
    tenants.sort();
    (tenants, taken.resume_after)
}

async fn create_many(stores: &Stores, owner: &str, count: u32) {
    for n in 0..count {
        let url = format!("https://receiver.example/{owner}/{n}");
        let new = NewSubscription { tenant: tenant(owner), ..new_subscription(TYPE, &url) };
        create(stores, &new).await;
    }
}

pub async fn tenants_take_turns_in_their_checks(db: &dyn TestDatabase) {
    let stores = db.stores();
    create_many(&stores, "crowd", 9).await;
    create_many(&stores, "other", 1).await;
    create_many(&stores, "third", 2).await;
    let turn = CheckTurn { limit: 4, per_tenant: 2, ..CheckTurn::default() };
    let (taken, resume_after) = take_in_turn(&stores, &turn).await;
    assert_eq!(taken, ["crowd", "crowd", "other", "third"], "not the four that are oldest");
    assert_eq!(resume_after.as_deref(), Some("third"));
    let turn = CheckTurn { after: resume_after, ..turn };
    assert_eq!(take_in_turn(&stores, &turn).await, (Vec::new(), None), "nobody is behind it");
    let turn = CheckTurn { after: None, full: vec!["crowd".to_owned()], ..turn };
    assert_eq!(take_in_turn(&stores, &turn).await, (vec!["third".to_owned()], None), "one is passed over");
    let turn = CheckTurn { full: Vec::new(), limit: MANY, per_tenant: MANY, ..turn };
    assert_eq!(take_in_turn(&stores, &turn).await, (vec!["crowd".to_owned(); 7], None));
}

/// A tenant whose open rounds fill a large part of the index, and are not due, is skipped with one jump.
pub async fn checks_that_wait_for_their_time_hide_nobody_elses(db: &dyn TestDatabase) {
    let stores = db.stores();
    create_many(&stores, "crowd", 150).await;
    assert_eq!(take(&stores, HOUR).await.len(), 150);
    create_many(&stores, "other", 1).await;
    let turn = CheckTurn { limit: 4, per_tenant: 2, ..CheckTurn::default() };
    assert_eq!(take_in_turn(&stores, &turn).await, (vec!["other".to_owned()], None));
}

pub async fn two_verifiers_at_once_never_take_the_same_check(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    for n in 0..40 {
        create(&instances[0], &new_subscription(TYPE, &format!("https://receiver.example/{n}"))).await;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..8 {
                let checks = stores.verifier.take_checks(6, HOUR).await.unwrap();
                taken.extend(checks.iter().map(|check| (check.subscription_id, check.attempt)));
            }
            taken
        });
    }
    let mut taken = tasks.join_all().await.concat();
    // Rows that another verifier was just locking are skipped: fetch what is left.
    taken.extend(take(&instances[0], HOUR).await.iter().map(|check| (check.subscription_id, check.attempt)));
    assert_eq!((taken.len(), taken.iter().collect::<HashSet<_>>().len()), (40, 40));
    assert!(taken.iter().all(|(_, attempt)| *attempt == 1));
}
