//! Deleted subscriptions: only the history still refers to them, and their open deliveries until these have failed.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, MANY, MUCH_LATER, TOKEN, TYPE, URL, allot, append, apply, buried, claim,
        create, create_jobs, failed, finish_claimable, leased, new_event, new_subscription, only, rotation,
        route, saga_in, schedule_and_mark, scope, sealed, set_active, some_events, test_of, topic, verified,
        verified_with,
    },
    rows::{all_rows, count, job_row, saga_row},
};
use hooksaga_saga::{ErrorCode, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{
    NewSubscription, PageRequest, RequeueOutcome, ResendOutcome, Stores, SubscriptionFilter,
    SubscriptionPatch, TestOutcome, UpdateOutcome,
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

async fn delete(stores: &Stores, id: SubscriptionId) {
    assert!(stores.admin.delete(&ALL, id).await.unwrap());
}

/// The only claimable job fails in the way that a worker fails it, and the result is applied.
async fn end_as_deleted(stores: &Stores) {
    let claimed = claim(stores, TOKEN).await;
    let job = only(claimed.jobs);
    let target = &claimed.targets[&job.held.subscription_id];
    assert!(target.deleted && target.deliverable);
    assert!(target.secrets.is_empty() && target.headers.is_none());
    let report = failed(job.as_ref(), ErrorCode::SUBSCRIPTION_DELETED);
    assert_eq!(stores.worker.report(&[report]).await.unwrap(), [job.job_id]);
    apply(stores, AT_ONCE).await;
}

pub async fn a_deleted_subscription_is_not_found(db: &dyn TestDatabase) {
    let stores = db.stores();
    let new = NewSubscription { headers: Some("x-key".to_owned()), ..new_subscription("a,b.*", URL) };
    let id = verified_with(&stores, &new).await;
    let other = verified(&stores, "a", "https://other.example/").await;
    assert!(!stores.admin.delete(&scope("another"), id).await.unwrap(), "not of this tenant");
    delete(&stores, id).await;

    assert!(!stores.admin.delete(&ALL, id).await.unwrap(), "again");
    assert_eq!(stores.reader.subscription(&ALL, id).await.unwrap(), None);
    let filters = [
        SubscriptionFilter::default(),
        SubscriptionFilter { event_type: Some(topic("a")), ..SubscriptionFilter::default() },
        SubscriptionFilter { verified: Some(true), ..SubscriptionFilter::default() },
    ];
    for filter in filters {
        let page = PageRequest { limit: 10, before: None };
        let listed = stores.reader.subscriptions(page.of(&ALL, &filter)).await.unwrap().items;
        assert_eq!(listed.iter().map(|it| it.id).collect::<Vec<_>>(), [other], "{filter:?}");
    }
    let filter =
        SubscriptionFilter { callback_url: Some(super::fixture::url(URL)), ..SubscriptionFilter::default() };
    let page = PageRequest { limit: 10, before: None };
    assert!(stores.reader.subscriptions(page.of(&ALL, &filter)).await.unwrap().items.is_empty());

    let patch = SubscriptionPatch { active: Some(true), ..SubscriptionPatch::default() };
    assert_eq!(stores.admin.update(&ALL, id, &patch).await.unwrap(), UpdateOutcome::NotFound);
    assert_eq!(stores.admin.request_verification(&ALL, id, None).await.unwrap(), None);
    assert!(!stores.admin.rotate_secret(&ALL, &rotation(id, sealed(2), HOUR)).await.unwrap());

    for table in ["subscription_topics", "subscription_secrets", "subscription_headers"] {
        let left = count(db, &format!("{table} WHERE subscription_id = {id}")).await;
        assert_eq!(left, 0, "{table}");
    }
    append(&stores, new_event("a")).await;
    append(&stores, new_event("b.c")).await;
    let routed = stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap();
    let reached: Vec<_> =
        routed.events.iter().flat_map(|event| event.sagas.iter().map(|saga| saga.subscription_id)).collect();
    assert_eq!(reached, [other]);
}

pub async fn its_place_is_free_and_taken_again(db: &dyn TestDatabase) {
    let stores = db.stores();
    for _ in 0..3 {
        let id = create(&stores, &new_subscription(TYPE, URL)).await.id;
        delete(&stores, id).await;
    }
    let id = verified(&stores, TYPE, URL).await;
    let other = create(&stores, &new_subscription(TYPE, "https://other.example/")).await.id;
    delete(&stores, id).await;
    let moved =
        SubscriptionPatch { callback_url: Some(super::fixture::url(URL)), ..SubscriptionPatch::default() };
    let outcome = stores.admin.update(&ALL, other, &moved).await.unwrap();
    assert!(matches!(outcome, UpdateOutcome::Updated(_)), "{outcome:?}");
}

pub async fn a_deleted_subscription_never_changes_again(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    delete(&stores, id).await;
    let before = all_rows(db, "subscriptions").await;
    for change in
        ["active = TRUE", "deleted_at = NULL", "callback_url = 'https://evil.example/'", "description = 'x'"]
    {
        let sql = format!("UPDATE subscriptions SET {change} WHERE id = {id}");
        assert!(db.execute_as_owner(&sql).await.is_err(), "{change}");
    }
    assert_eq!(all_rows(db, "subscriptions").await, before);
}

pub async fn its_due_deliveries_end_without_being_sent(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = saga_in(db, SagaStatus::Pending).await;
    delete(&stores, fixed.subscription_id).await;
    assert_eq!(only(schedule_and_mark(&stores).await).saga_id, fixed.saga_id);
    end_as_deleted(&stores).await;
    let saga = saga_row(db, fixed.saga_id).await;
    assert_eq!((saga.status, saga.attempt_count), (SagaStatus::DeadLettered, 1), "whatever its limit");
    assert_eq!(saga.final_error_code.as_deref(), Some("SUBSCRIPTION_DELETED"));
    let letter = only(stores.dead_letters.bury(MANY).await.unwrap());
    assert_eq!(letter.final_error_code, ErrorCode::SUBSCRIPTION_DELETED);
    let shown = stores.reader.delivery(&ALL, fixed.saga_id).await.unwrap().unwrap();
    assert_eq!(shown.delivery.callback_url, URL, "its history stays");
}

pub async fn a_paused_ones_deliveries_end_too(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    set_active(&stores, fixed.subscription_id, false).await;
    stores.worker.park(&[lease]).await.unwrap();
    assert_eq!(job_row(db, lease.job_id).await.lease_until, Timestamp::MAX);
    assert_eq!(stores.worker.unpark(MANY).await.unwrap(), 0);
    // Another one waits as a saga.
    append(&stores, new_event(TYPE)).await;
    assert!(route(&stores).await.is_empty(), "a paused subscription gets no sagas");

    delete(&stores, fixed.subscription_id).await;
    let shown = stores.reader.delivery(&ALL, fixed.saga_id).await.unwrap().unwrap();
    assert!(!shown.delivery.held, "nothing holds it any more");
    assert_eq!(stores.worker.unpark(MANY).await.unwrap(), 1);
    end_as_deleted(&stores).await;
    assert_eq!(saga_row(db, fixed.saga_id).await.status, SagaStatus::DeadLettered);
}

/// A worker found the subscription paused, and parks the job when it has been deleted.
pub async fn a_job_that_is_parked_after_the_deletion_can_be_claimed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    set_active(&stores, fixed.subscription_id, false).await;
    delete(&stores, fixed.subscription_id).await;
    stores.worker.park(&[lease]).await.unwrap();
    end_as_deleted(&stores).await;
}

pub async fn a_retry_of_a_deleted_one_ends_when_it_is_due(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = saga_in(db, SagaStatus::Pending).await;
    super::fixture::deliver_round(&stores, Some(ErrorCode::http(503)), MUCH_LATER).await;
    delete(&stores, fixed.subscription_id).await;
    assert!(allot(&stores, MANY).await.is_empty(), "not yet due");
    assert_eq!(saga_row(db, fixed.saga_id).await.status, SagaStatus::PendingRetry);
}

pub async fn nothing_is_sent_again_to_a_deleted_one(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, letter) = buried(db).await;
    delete(&stores, fixed.subscription_id).await;
    let id = fixed.subscription_id;
    let requeued = stores.dead_letters.requeue(&ALL, letter, DEFAULT_LIMIT).await.unwrap();
    assert_eq!(requeued, RequeueOutcome::NotDeliverable(id));
    let resent = stores.dead_letters.resend(&ALL, fixed.saga_id, DEFAULT_LIMIT).await.unwrap();
    assert_eq!(resent, ResendOutcome::NotDeliverable(id));
    let tested = stores.dead_letters.send_test(&ALL, test_of(fixed.event_id, id)).await.unwrap();
    assert_eq!(tested, TestOutcome::NotFound);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 1);
}

pub async fn verification_of_a_deleted_one_stops(db: &dyn TestDatabase) {
    let stores = db.stores();
    let taken = create(&stores, &new_subscription(TYPE, URL)).await.id;
    let check = only(stores.verifier.take_checks(MANY, HOUR).await.unwrap());
    let waiting = create(&stores, &new_subscription(TYPE, "https://other.example/")).await.id;
    for id in [taken, waiting] {
        delete(&stores, id).await;
    }
    assert!(!stores.verifier.record(&check, &hooksaga_store::CheckOutcome::Verified).await.unwrap());
    assert!(stores.verifier.take_checks(MANY, Duration::ZERO).await.unwrap().is_empty());
    assert_eq!(stores.verifier.next_check_at().await.unwrap(), None);
}

pub async fn what_was_counted_of_a_deleted_one_is_removed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let new = NewSubscription { rate_limit: Some(50), ..new_subscription(TYPE, URL) };
    let id = verified_with(&stores, &new).await;
    let kept = verified(&stores, TYPE, "https://other.example/").await;
    for _ in 0..2 {
        append(&stores, new_event(TYPE)).await;
    }
    route(&stores).await;
    create_jobs(&stores, &allot(&stores, 1).await).await;
    finish_claimable(&stores, Some(ErrorCode::http(500)), MUCH_LATER).await;
    create_jobs(&stores, &allot(&stores, 1).await).await;
    let under_way = claim(&stores, TOKEN).await.jobs;
    assert_eq!(under_way.len(), 2);
    let left = async |table: &str, id: SubscriptionId| {
        count(db, &format!("{table} WHERE subscription_id = {id}")).await
    };
    assert_eq!((left("endpoint_failures", id).await, left("rate_limits", id).await), (1, 1));

    delete(&stores, id).await;
    // Attempts that were in flight end after the deletion.
    let reports: Vec<_> = under_way.iter().map(|job| failed(job.as_ref(), ErrorCode::http(410))).collect();
    stores.worker.report(&reports).await.unwrap();
    assert_eq!(apply(&stores, AT_ONCE).await.results.len(), 2);
    assert_eq!((left("endpoint_failures", id).await, left("rate_limits", id).await), (0, 0));
    assert_eq!(left("endpoint_failures", kept).await, 1);
}
