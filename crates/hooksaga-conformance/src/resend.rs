//! Sending again any delivery that has ended: once, as the next generation.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, MANY, URL, buried, deliver_round, only, saga_in, scope, set_active, url,
    },
    rows::{all_rows, count, db_now, ids, saga_row},
};
use hooksaga_saga::{ErrorCode, SagaId, SagaStatus};
use hooksaga_store::{RequeueOutcome, Requeued, ResendOutcome, Stores, SubscriptionPatch, Trace};
use std::time::Duration;

async fn resend(stores: &Stores, id: SagaId) -> ResendOutcome {
    stores.dead_letters.resend(&ALL, id, DEFAULT_LIMIT).await.unwrap()
}

async fn resent(stores: &Stores, id: SagaId) -> Requeued {
    match resend(stores, id).await {
        ResendOutcome::Created(requeued, _) => requeued,
        other => panic!("not created: {other:?}"),
    }
}

/// AG-1: a new saga of the next generation, the old one untouched.
async fn a_new_saga_follows(db: &dyn TestDatabase, ended: SagaStatus) {
    let stores = db.stores();
    let fixed = saga_in(db, ended).await;
    let old = saga_row(db, fixed.saga_id).await;
    let jobs = all_rows(db, "webhook_delivery_jobs").await;
    let before = db_now(db).await;

    let ResendOutcome::Created(new, trace) = resend(&stores, fixed.saga_id).await else {
        panic!("not created")
    };
    let event = stores.reader.event(&ALL, fixed.event_id).await.unwrap().unwrap();
    assert_eq!(trace, Trace::new("default", &event.head.correlation_id));
    assert_ne!(new.saga_id, fixed.saga_id);
    let row = saga_row(db, new.saga_id).await;
    assert_eq!((row.event_id, row.subscription_id), (fixed.event_id, fixed.subscription_id));
    assert_eq!((new.generation, row.generation), (1, 1));
    assert_eq!((row.status, row.attempt_count), (SagaStatus::Pending, 0));
    assert_eq!((row.max_retry_limit, row.final_error_code), (3, None), "the subscription's limit");
    assert!(row.next_attempt_at.since(before) < Duration::from_secs(60));
    assert_eq!(saga_row(db, fixed.saga_id).await, old, "the old saga stays as it was");
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, jobs, "and so do its jobs");

    assert_eq!(resend(&stores, fixed.saga_id).await, ResendOutcome::Already(new), "twice is once");
    deliver_round(&stores, None, AT_ONCE).await;
    assert_eq!(saga_row(db, new.saga_id).await.status, SagaStatus::Completed);
    assert_eq!(resend(&stores, fixed.saga_id).await, ResendOutcome::Already(new), "also when it is done");
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);
}

pub async fn a_completed_delivery_is_sent_again_as_a_new_saga(db: &dyn TestDatabase) {
    a_new_saga_follows(db, SagaStatus::Completed).await;
}

/// Its letter is not written yet.
pub async fn a_dead_delivery_is_sent_again_as_a_new_saga(db: &dyn TestDatabase) {
    a_new_saga_follows(db, SagaStatus::DeadLettered).await;
    assert_eq!(
        only(db.stores().dead_letters.bury(MANY).await.unwrap()).final_error_code,
        ErrorCode::http(500)
    );
}

pub async fn a_resend_and_a_requeue_are_the_same_thing(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, letter) = buried(db).await;
    let first = resent(&stores, fixed.saga_id).await;
    let requeue = stores.dead_letters.requeue(&ALL, letter, DEFAULT_LIMIT).await.unwrap();
    assert_eq!(requeue, RequeueOutcome::Already(first));
    while !deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await.results.is_empty() {}
    let second_letter = only(stores.dead_letters.bury(MANY).await.unwrap()).dead_letter_id.unwrap();
    let requeue = stores.dead_letters.requeue(&ALL, second_letter, DEFAULT_LIMIT).await.unwrap();
    let RequeueOutcome::Created(second, _) = requeue else { panic!("{requeue:?}") };
    assert_eq!(resend(&stores, first.saga_id).await, ResendOutcome::Already(second));
    assert_eq!(resend(&stores, fixed.saga_id).await, ResendOutcome::Already(first), "not the latest");
    let sql = "SELECT generation FROM webhook_delivery_sagas ORDER BY generation";
    assert_eq!(ids(db, sql).await, [0, 1, 2]);
}

async fn an_open_one_stays_alone(db: &dyn TestDatabase, open: SagaStatus) {
    let stores = db.stores();
    let fixed = saga_in(db, open).await;
    let before = all_rows(db, "webhook_delivery_sagas").await;
    assert_eq!(resend(&stores, fixed.saga_id).await, ResendOutcome::Open);
    set_active(&stores, fixed.subscription_id, false).await;
    assert_eq!(resend(&stores, fixed.saga_id).await, ResendOutcome::Open);
    assert_eq!(all_rows(db, "webhook_delivery_sagas").await, before);
}

pub async fn a_pending_delivery_is_not_sent_again(db: &dyn TestDatabase) {
    an_open_one_stays_alone(db, SagaStatus::Pending).await;
}

pub async fn a_delivery_in_progress_is_not_sent_again(db: &dyn TestDatabase) {
    an_open_one_stays_alone(db, SagaStatus::InProgress).await;
}

pub async fn a_delivery_that_waits_for_a_retry_is_not_sent_again(db: &dyn TestDatabase) {
    an_open_one_stays_alone(db, SagaStatus::PendingRetry).await;
}

pub async fn a_resend_needs_an_active_and_verified_subscription(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = saga_in(db, SagaStatus::Completed).await;
    let refused = ResendOutcome::NotDeliverable(fixed.subscription_id);
    set_active(&stores, fixed.subscription_id, false).await;
    assert_eq!(resend(&stores, fixed.saga_id).await, refused);
    set_active(&stores, fixed.subscription_id, true).await;
    let moved = |to: &str| SubscriptionPatch { callback_url: Some(url(to)), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, fixed.subscription_id, &moved("https://new.example/")).await.unwrap();
    assert_eq!(resend(&stores, fixed.saga_id).await, refused);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 1);
    stores.admin.update(&ALL, fixed.subscription_id, &moved(URL)).await.unwrap();
    let new = resent(&stores, fixed.saga_id).await;
    set_active(&stores, fixed.subscription_id, false).await;
    assert_eq!(resend(&stores, fixed.saga_id).await, ResendOutcome::Already(new), "what was done is done");
}

pub async fn a_resend_without_a_limit_of_the_subscriptions_takes_the_default(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = saga_in(db, SagaStatus::Completed).await;
    let clear = SubscriptionPatch { max_retry_limit: Some(None), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, fixed.subscription_id, &clear).await.unwrap();
    let outcome = stores.dead_letters.resend(&ALL, fixed.saga_id, 11).await.unwrap();
    let ResendOutcome::Created(new, _) = outcome else { panic!("{outcome:?}") };
    assert_eq!(saga_row(db, new.saga_id).await.max_retry_limit, 11);
}

pub async fn another_tenants_delivery_is_not_found(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = saga_in(db, SagaStatus::Completed).await;
    let foreign = async || {
        stores.dead_letters.resend(&scope("somebody-else"), fixed.saga_id, DEFAULT_LIMIT).await.unwrap()
    };
    assert_eq!(resend(&stores, SagaId(4711)).await, ResendOutcome::NotFound);
    assert_eq!(foreign().await, ResendOutcome::NotFound);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 1);
    let own = stores.dead_letters.resend(&scope("default"), fixed.saga_id, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(own, ResendOutcome::Created(..)), "{own:?}");
    assert_eq!(foreign().await, ResendOutcome::NotFound, "sent again or not");
}

pub async fn many_resends_and_requeues_at_once_make_one_saga(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    let (fixed, letter) = buried(db).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move {
            match n % 3 {
                0 => stores.dead_letters.requeue(&ALL, letter, DEFAULT_LIMIT).await.unwrap(),
                _ => resend(&stores, fixed.saga_id).await.into(),
            }
        });
    }
    let outcomes = tasks.join_all().await;
    let created = |outcome: &&RequeueOutcome| matches!(outcome, RequeueOutcome::Created(..));
    assert_eq!(outcomes.iter().filter(created).count(), 1, "{outcomes:?}");
    let sagas = ids(db, "SELECT id FROM webhook_delivery_sagas WHERE generation = 1").await;
    let new = Requeued { saga_id: SagaId(only(sagas)), generation: 1 };
    for outcome in outcomes {
        let (RequeueOutcome::Created(seen, _) | RequeueOutcome::Already(seen)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(seen, new);
    }
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);
}
