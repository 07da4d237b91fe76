//! Lists of dead letters by what is kept of each letter for them: the same rows as by the letters themselves.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, MANY, URL, append, append_many, deliver_round, letters, new_event,
        new_subscription, only, route, scope, tenant, verified_with, verified_with_limit,
    },
    rows::{changes, count},
};
use hooksaga_saga::{ErrorCode, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{
    DeadLetterFilter, DeadLetterSummary, Delivery, DeliveryFilter, NewEvent, NewSubscription, PageRequest,
    RequeueOutcome, RequeueStep, ResendOutcome, Stores, TenantScope,
};
use std::time::Duration;
use tokio::time::timeout;

/// In pages of three.
async fn list(stores: &Stores, scope: &TenantScope, filter: &DeadLetterFilter) -> Vec<DeadLetterSummary> {
    let (mut items, mut before) = (Vec::new(), None);
    loop {
        let page = PageRequest { limit: 3, before };
        let page = stores.reader.dead_letters(page.of(scope, filter)).await.unwrap();
        items.extend(page.items);
        before = page.next;
        if before.is_none() {
            return items;
        }
    }
}

async fn resend(stores: &Stores, saga: SagaId) {
    let outcome = stores.dead_letters.resend(&ALL, saga, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(outcome, ResendOutcome::Created(..)), "{outcome:?}");
}

/// Letters of two tenants, four subscriptions, two types and two codes: some sent again before they were stored, some after,
/// one by one and many at once, some not.
async fn fill(stores: &Stores) -> Vec<SubscriptionId> {
    let tenants = ["a", "b"];
    let mut subscriptions = Vec::new();
    for name in tenants {
        for topics in ["*", "rare"] {
            let new = NewSubscription {
                tenant: tenant(name),
                max_retry_limit: Some(1),
                ..new_subscription(topics, &format!("https://{name}.example/{}", topics.len()))
            };
            subscriptions.push(verified_with(stores, &new).await);
        }
    }
    for (round, code) in
        [ErrorCode::TIMEOUT, ErrorCode::http(500), ErrorCode::TIMEOUT].into_iter().enumerate()
    {
        for name in tenants {
            for type_name in ["common", "rare"] {
                append(stores, NewEvent { tenant: tenant(name), ..new_event(type_name) }).await;
            }
        }
        let sagas = route(stores).await;
        deliver_round(stores, Some(code), AT_ONCE).await;
        if round == 1 {
            // Not buried yet. What it becomes dies in the next round, and is a letter of its own.
            resend(stores, sagas[0]).await;
        }
        stores.dead_letters.bury(MANY).await.unwrap();
    }
    let all = letters(stores).await;
    let outcome = stores.dead_letters.requeue(&ALL, all[all.len() - 1].id, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(outcome, RequeueOutcome::Created(..)), "{outcome:?}");
    resend(stores, all[0].saga_id).await;
    let many = RequeueStep {
        filter: DeadLetterFilter { subscription_id: Some(subscriptions[3]), ..DeadLetterFilter::default() },
        after: None,
        examine: MANY,
        requeue: 2,
        dry_run: false,
        default_limit: DEFAULT_LIMIT,
    };
    assert_eq!(stores.dead_letters.requeue_step(&ALL, &many).await.unwrap().requeued, 2);
    subscriptions
}

pub async fn letters_are_the_same_by_whatever_they_are_listed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = fill(&stores).await;
    let all = letters(&stores).await;
    let requeued = all.iter().filter(|letter| letter.requeued_saga_id.is_some()).count();
    assert_eq!((all.len(), requeued), (19, 5), "{all:#?}");
    let middle = all[9].created_at;
    let none = DeadLetterFilter::default;
    let text = |text: &str| Some(text.to_owned());
    let mut filters = Vec::new();
    for subscription_id in [None].into_iter().chain(subscriptions.into_iter().map(Some)) {
        for event_type in [None, text("common"), text("rare"), text("nothing")] {
            for final_error_code in [None, text("TIMEOUT")] {
                for requeued in [None, Some(true), Some(false)] {
                    filters.push(DeadLetterFilter {
                        subscription_id,
                        event_type: event_type.clone(),
                        final_error_code: final_error_code.clone(),
                        requeued,
                        ..none()
                    });
                }
            }
        }
    }
    for requeued in [None, Some(true), Some(false)] {
        filters.push(DeadLetterFilter { created_after: Some(middle), requeued, ..none() });
        filters.push(DeadLetterFilter { created_before: Some(middle), requeued, ..none() });
    }
    for scope in [ALL, scope("a"), scope("b"), scope("nobody")] {
        for filter in &filters {
            let fits = |letter: &&DeadLetterSummary| {
                scope.includes(&letter.tenant)
                    && filter.subscription_id.is_none_or(|id| id == letter.subscription_id)
                    && filter.event_type.as_ref().is_none_or(|wanted| *wanted == letter.event_type)
                    && filter
                        .final_error_code
                        .as_ref()
                        .is_none_or(|wanted| wanted == letter.final_error_code.as_str())
                    && filter.requeued.is_none_or(|wanted| wanted == letter.requeued_saga_id.is_some())
                    && filter.created_after.is_none_or(|after| letter.created_at >= after)
                    && filter.created_before.is_none_or(|before| letter.created_at < before)
            };
            let expected: Vec<_> = all.iter().filter(fits).cloned().collect();
            assert_eq!(list(&stores, &scope, filter).await, expected, "{scope:?} {filter:?}");
        }
    }
    assert_eq!(count(db, "letter_heads").await, 19, "one of each letter");
}

/// For servers. `repair` is what a migration after a restore does for lists: it returns how many rows were wrong.
pub async fn lists_are_repaired_after_a_restore<R: AsyncFn() -> u64>(db: &dyn TestDatabase, repair: R) {
    let stores = db.stores();
    fill(&stores).await;
    let all = letters(&stores).await;
    assert_eq!(repair().await, 0, "triggers keep them");
    let lost = format!("DELETE FROM letter_heads WHERE letter_id IN ({}, {})", all[3].id, all[9].id);
    changes(db, &lost, 2).await;
    let requeued = all.iter().filter(|letter| letter.requeued_saga_id.is_some()).count();
    db.execute_as_owner("UPDATE letter_heads SET requeued = FALSE WHERE requeued").await.unwrap();
    let stray = format!("UPDATE letter_heads SET letter_id = 1000000 WHERE letter_id = {}", all[5].id);
    changes(db, &stray, 1).await;
    assert!(repair().await >= 2 + requeued as u64 + 2);
    for wanted in [None, Some(true), Some(false)] {
        let filter = DeadLetterFilter { requeued: wanted, ..DeadLetterFilter::default() };
        let fits = |letter: &&DeadLetterSummary| {
            wanted.is_none_or(|wanted| wanted == letter.requeued_saga_id.is_some())
        };
        let expected: Vec<_> = all.iter().filter(fits).cloned().collect();
        assert_eq!(list(&stores, &ALL, &filter).await, expected, "{filter:?}");
    }
    assert_eq!(repair().await, 0, "twice is once");
}

async fn deliveries(stores: &Stores, scope: &TenantScope, filter: &DeliveryFilter) -> Vec<Delivery> {
    let (mut items, mut before) = (Vec::new(), None);
    loop {
        let page = PageRequest { limit: 3, before };
        let page = stores.reader.deliveries(page.of(scope, filter)).await.unwrap();
        items.extend(page.items);
        before = page.next;
        if before.is_none() {
            return items;
        }
    }
}

/// Those with a letter and those that wait for one, alone and beside others.
pub async fn dead_deliveries_are_the_same_by_whatever_they_are_listed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = fill(&stores).await;
    for name in ["a", "b"] {
        append(&stores, NewEvent { tenant: tenant(name), ..new_event("rare") }).await;
    }
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    append(&stores, NewEvent { tenant: tenant("a"), ..new_event("rare") }).await;
    route(&stores).await;
    let all = deliveries(&stores, &ALL, &DeliveryFilter::default()).await;
    let of = |status| all.iter().filter(|it| it.status == status).count();
    assert!(of(SagaStatus::DeadLettered) > 20 && of(SagaStatus::Pending) > 1, "{all:#?}");
    assert!(count(db, "pending_dead_letters").await > 2);
    let middle = all[all.len() / 2].created_at;
    let dead = SagaStatus::DeadLettered;
    for statuses in [vec![dead], vec![dead, SagaStatus::Pending], vec![SagaStatus::Pending]] {
        for subscription_id in [None].into_iter().chain(subscriptions.iter().copied().map(Some)) {
            for event_type in [None, Some("common"), Some("rare"), Some("nothing")] {
                for (created_after, created_before) in
                    [(None, None), (Some(middle), None), (None, Some(middle))]
                {
                    let filter = DeliveryFilter {
                        statuses: statuses.iter().copied().collect(),
                        subscription_id,
                        event_type: event_type.map(str::to_owned),
                        created_after,
                        created_before,
                        ..DeliveryFilter::default()
                    };
                    for scope in [ALL, scope("a"), scope("b"), scope("nobody")] {
                        let fits = |it: &&Delivery| {
                            scope.includes(&it.tenant)
                                && statuses.contains(&it.status)
                                && subscription_id.is_none_or(|id| id == it.subscription_id)
                                && event_type.is_none_or(|wanted| wanted == it.event_type)
                                && created_after.is_none_or(|after| it.created_at >= after)
                                && created_before.is_none_or(|before| it.created_at < before)
                        };
                        let expected: Vec<_> = all.iter().filter(fits).cloned().collect();
                        let listed = deliveries(&stores, &scope, &filter).await;
                        assert_eq!(listed, expected, "{scope:?} {filter:?}");
                    }
                }
            }
        }
    }
}

const WAITS: Duration = Duration::from_millis(300);

/// A saga that has just died.
async fn dead_saga(stores: &Stores) -> SagaId {
    verified_with_limit(stores, URL, 1).await;
    append_many(stores, 1).await;
    let saga = only(route(stores).await);
    deliver_round(stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    saga
}

async fn sent_again(stores: &Stores) -> Vec<SagaId> {
    let filter = DeadLetterFilter { requeued: Some(true), ..DeadLetterFilter::default() };
    list(stores, &ALL, &filter).await.into_iter().map(|letter| letter.saga_id).collect()
}

/// For servers. `open` runs statements in a transaction of the schema's owner, and returns what commits it.
pub async fn who_sends_again_waits_for_a_letter_that_is_being_stored<C: Future<Output = ()>>(
    stores: &Stores,
    open: impl AsyncFnOnce(Vec<String>) -> C,
) {
    let saga = dead_saga(stores).await;
    let store = [
        "SELECT saga_id FROM pending_dead_letters FOR UPDATE".to_owned(),
        format!(
            "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload)
             SELECT id, event_id, subscription_id, 'TIMEOUT', '1' FROM webhook_delivery_sagas WHERE id = {saga}"
        ),
        "DELETE FROM pending_dead_letters".to_owned(),
    ];
    let commit = open(store.into()).await;
    let mut resent = Box::pin(resend(stores, saga));
    assert!(timeout(WAITS, resent.as_mut()).await.is_err(), "it does not wait");
    commit.await;
    resent.await;
    assert_eq!(sent_again(stores).await, [saga]);
}

/// For servers, as above.
pub async fn no_letter_is_stored_while_its_saga_is_sent_again<C: Future<Output = ()>>(
    stores: &Stores,
    open: impl AsyncFnOnce(Vec<String>) -> C,
) {
    let saga = dead_saga(stores).await;
    let successor = format!(
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit)
         SELECT event_id, subscription_id, 1, 5 FROM webhook_delivery_sagas WHERE id = {saga}"
    );
    let commit = open(vec![successor]).await;
    assert_eq!(stores.dead_letters.bury(MANY).await.unwrap().len(), 0, "it is left out");
    commit.await;
    stores.dead_letters.bury(MANY).await.unwrap();
    assert_eq!(sent_again(stores).await, [saga]);
}
