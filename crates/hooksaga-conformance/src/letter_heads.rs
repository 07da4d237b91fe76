//! Lists of dead letters that are read from `letter_heads` show the same rows as lists that are read from the letters.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, MANY, MUCH_LATER, append, asked, deliver_round, letters, new_event,
        new_subscription, route, schedule_and_mark, scope, tenant, verified_with,
    },
    rows::count,
};
use hooksaga_saga::{ErrorCode, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{
    DeadLetterFilter, DeadLetterSummary, Delivery, DeliveryFilter, NewEvent, NewSubscription, PageRequest,
    RequeueOutcome, RequeueStep, ResendOutcome, Stores, TenantScope,
};

/// Reads a list in pages of three.
pub(crate) async fn list(
    stores: &Stores,
    scope: &TenantScope,
    filter: &DeadLetterFilter,
) -> Vec<DeadLetterSummary> {
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

pub(crate) async fn resend(stores: &Stores, saga: SagaId) {
    let outcome = stores.dead_letters.resend(&ALL, saga, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(outcome, ResendOutcome::Created(..)), "{outcome:?}");
}

/// Letters of two tenants, four subscriptions, two types and two codes. Some were sent again before they were stored, some
/// after, one by one and many at once, and some not at all.
pub(crate) async fn fill(stores: &Stores) -> Vec<SubscriptionId> {
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
    let mut filters = Vec::new();
    for subscription_id in [None].into_iter().chain(subscriptions.into_iter().map(Some)) {
        for event_type in [None, asked("common"), asked("rare"), asked("nothing")] {
            for final_error_code in [None, Some(ErrorCode::TIMEOUT)] {
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
                    && filter.event_type.as_ref().is_none_or(|wanted| wanted.as_str() == letter.event_type)
                    && filter
                        .final_error_code
                        .as_ref()
                        .is_none_or(|wanted| *wanted == letter.final_error_code)
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

/// Deliveries of both tenants: dead ones whose letters are not stored yet, ones that wait for a retry, ones in progress, and
/// ones that have not been tried yet. Returns the subscription with retries.
async fn add_open(stores: &Stores) -> SubscriptionId {
    let patient =
        NewSubscription { tenant: tenant("b"), ..new_subscription("common", "https://b.example/patient") };
    let patient = verified_with(stores, &patient).await;
    let append_and_route = async |names: &[(&str, &str)]| {
        for (name, type_name) in names {
            append(stores, NewEvent { tenant: tenant(name), ..new_event(type_name) }).await;
        }
        route(stores).await;
    };
    append_and_route(&[("a", "rare"), ("b", "rare"), ("b", "common")]).await;
    deliver_round(stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    append_and_route(&[("a", "rare"), ("b", "common")]).await;
    schedule_and_mark(stores).await;
    append_and_route(&[("a", "rare"), ("b", "rare")]).await;
    patient
}

/// Lists dead deliveries, with a letter or waiting for one, alone and together with other statuses.
pub async fn dead_deliveries_are_the_same_by_whatever_they_are_listed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut subscriptions = fill(&stores).await;
    subscriptions.push(add_open(&stores).await);
    let all = deliveries(&stores, &ALL, &DeliveryFilter::default()).await;
    let of = |status| all.iter().filter(|it| it.status == status).count();
    assert!(of(SagaStatus::DeadLettered) > 20 && of(SagaStatus::Pending) > 1, "{all:#?}");
    assert!(of(SagaStatus::PendingRetry) > 0 && of(SagaStatus::InProgress) > 1, "{all:#?}");
    assert!(count(db, "pending_dead_letters").await > 2);
    let middle = all[all.len() / 2].created_at;
    let (dead, pending, going, retry) =
        (SagaStatus::DeadLettered, SagaStatus::Pending, SagaStatus::InProgress, SagaStatus::PendingRetry);
    for statuses in [
        vec![dead],
        vec![dead, pending],
        vec![pending],
        vec![going],
        vec![pending, going, retry],
        vec![dead, going, retry],
    ] {
        for subscription_id in [None].into_iter().chain(subscriptions.iter().copied().map(Some)) {
            for event_type in [None, Some("common"), Some("rare"), Some("nothing")] {
                for (created_after, created_before) in
                    [(None, None), (Some(middle), None), (None, Some(middle))]
                {
                    let filter = DeliveryFilter {
                        statuses: statuses.iter().copied().collect(),
                        subscription_id,
                        event_type: event_type.and_then(asked),
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
