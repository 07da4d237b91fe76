//! Lists by the coarse index: they show the same rows whether these are indexed or not.

use super::{
    TestDatabase,
    fixture::{ALL, MANY, asked, new_event, only, tenant, verified_for},
    old_history::old_saga,
    rows::{count, ids},
};
use hooksaga_saga::{EventId, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{
    Delivery, DeliveryFilter, EventFilter, EventHead, IndexStep, IndexedList, NewEvent, PageRequest,
    RouteLimits, Stores, TenantScope, Trimmed,
};
use std::time::Duration;

const FIRST: PageRequest = PageRequest { limit: 500, before: None };
/// More than one block of each list.
const EVENTS: usize = 400;
const RARE: usize = 37;

/// Two tenants. Every event is delivered to one subscription, every thirty-seventh also to another one.
async fn fill(stores: &Stores) -> Vec<SubscriptionId> {
    let tenants = ["a", "b"];
    let mut subscriptions = Vec::new();
    for name in tenants {
        for topics in ["*", "rare"] {
            let url = format!("https://{name}.example/{}", topics.len());
            subscriptions.push(verified_for(stores, name, topics, &url).await);
        }
    }
    let event = |i: usize| NewEvent {
        tenant: tenant(tenants[usize::from(i.is_multiple_of(3))]),
        ..new_event(if i.is_multiple_of(RARE) { "rare" } else { "common" })
    };
    for batch in 0..4 {
        let events: Vec<NewEvent> = (batch * EVENTS / 4..(batch + 1) * EVENTS / 4).map(event).collect();
        stores.ingest.append(&events).await.unwrap();
    }
    while !stores.router.route(RouteLimits { events: MANY, sagas: MANY }, 5).await.unwrap().events.is_empty()
    {
    }
    subscriptions
}

async fn every_page<T>(
    next_page: impl AsyncFn(PageRequest) -> hooksaga_store::Page<T>,
    limit: u32,
) -> Vec<T> {
    let (mut items, mut before) = (Vec::new(), None);
    loop {
        let page = next_page(PageRequest { limit, before }).await;
        items.extend(page.items);
        before = page.next;
        if before.is_none() {
            return items;
        }
    }
}

async fn deliveries(
    stores: &Stores,
    scope: &TenantScope,
    filter: &DeliveryFilter,
    limit: u32,
) -> Vec<Delivery> {
    every_page(async |page| stores.reader.deliveries(page.of(scope, filter)).await.unwrap(), limit).await
}

async fn events(stores: &Stores, scope: &TenantScope, filter: &EventFilter) -> Vec<EventHead> {
    every_page(async |page| stores.reader.events(page.of(scope, filter)).await.unwrap(), 50).await
}

/// A step that finds something. On PostgreSQL a step over events waits until all transactions have ended that were open
/// at the previous step, also those of other databases.
async fn step(stores: &Stores, list: IndexedList, limit: u32) -> IndexStep {
    for _ in 0..500 {
        let step = stores.list_index.index(list, limit, Duration::ZERO).await.unwrap();
        if step.rows > 0 {
            return step;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{list:?} is not indexed");
}

/// Checks that several steps in a row find nothing to index.
async fn no_step(stores: &Stores, list: IndexedList, settled: Duration) {
    for _ in 0..5 {
        let step = stores.list_index.index(list, MANY, settled).await.unwrap();
        assert_eq!((step.rows, step.more), (0, false), "{list:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Compares every filter that the index has, and pairs of them, with the list without a filter.
async fn compare(stores: &Stores, subscriptions: &[SubscriptionId]) {
    let all = deliveries(stores, &ALL, &DeliveryFilter::default(), 500).await;
    assert!(all.len() >= EVENTS - 10 && all.is_sorted_by(|a, b| a.saga_id > b.saga_id), "{}", all.len());
    let middle = all[all.len() / 2].created_at;
    let none = DeliveryFilter::default;
    let mut filters = vec![
        DeliveryFilter { event_type: asked("rare"), ..none() },
        DeliveryFilter { event_type: asked("nothing"), ..none() },
        DeliveryFilter { created_after: Some(middle), ..none() },
        DeliveryFilter { created_before: Some(middle), ..none() },
        DeliveryFilter { created_before: Some(middle), event_type: asked("rare"), ..none() },
        DeliveryFilter { statuses: [SagaStatus::Completed].into(), event_type: asked("rare"), ..none() },
    ];
    for id in subscriptions {
        filters.push(DeliveryFilter { subscription_id: Some(*id), ..none() });
        filters.push(DeliveryFilter { subscription_id: Some(*id), created_after: Some(middle), ..none() });
    }
    for scope in [ALL, TenantScope::One(tenant("a")), TenantScope::One(tenant("b"))] {
        for filter in filters.iter().chain([&none()]) {
            let fits = |delivery: &&Delivery| {
                scope.includes(&delivery.tenant)
                    && filter.subscription_id.is_none_or(|id| id == delivery.subscription_id)
                    && filter.event_type.as_ref().is_none_or(|wanted| wanted.as_str() == delivery.event_type)
                    && filter.created_after.is_none_or(|after| delivery.created_at >= after)
                    && filter.created_before.is_none_or(|before| delivery.created_at < before)
                    && (filter.statuses.is_empty() || filter.statuses.contains(&delivery.status))
            };
            let expected: Vec<_> = all.iter().filter(fits).cloned().collect();
            for limit in [7, 500] {
                let found = deliveries(stores, &scope, filter, limit).await;
                assert_eq!(found, expected, "{scope:?} {filter:?} {limit}");
            }
        }
    }
    let all = events(stores, &ALL, &EventFilter::default()).await;
    let middle: Timestamp = all[all.len() / 2].created_at;
    let any = EventFilter::default;
    for filter in [
        EventFilter { event_type: asked("rare"), ..any() },
        EventFilter { event_type: asked("nothing"), ..any() },
        EventFilter { created_before: Some(middle), ..any() },
        EventFilter { created_after: Some(middle), ..any() },
        EventFilter { created_after: Some(middle), created_before: Some(middle), ..any() },
        EventFilter { created_after: Some(middle), event_type: asked("common"), ..any() },
        EventFilter { created_before: Some(middle), event_type: asked("rare"), ..any() },
    ] {
        for scope in [ALL, TenantScope::One(tenant("a")), TenantScope::One(tenant("b"))] {
            let fits = |event: &&EventHead| {
                scope.includes(&event.tenant)
                    && filter.event_type.as_ref().is_none_or(|wanted| wanted.as_str() == event.event_type)
                    && filter.created_after.is_none_or(|after| event.created_at >= after)
                    && filter.created_before.is_none_or(|before| event.created_at < before)
            };
            let expected: Vec<_> = all.iter().filter(fits).cloned().collect();
            assert_eq!(events(stores, &scope, &filter).await, expected, "{scope:?} {filter:?}");
        }
    }
}

pub async fn lists_are_the_same_however_much_of_them_is_indexed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = fill(&stores).await;
    compare(&stores, &subscriptions).await;
    // A part, with an end in the middle of a block; then everything.
    for limit in [300, MANY] {
        for list in stores.list_index.lists() {
            let step = step(&stores, *list, limit).await;
            assert_eq!(step.more, step.rows == u64::from(limit), "{step:?}");
        }
        compare(&stores, &subscriptions).await;
    }
    for list in stores.list_index.lists() {
        no_step(&stores, *list, Duration::ZERO).await;
    }
    assert!(count(db, "list_blocks").await < 80, "a row per block and value, not per delivery");
}

/// A page reads many blocks that hold a row each: several by one statement, where that is quicker.
pub async fn rows_far_apart_are_listed_the_same(db: &dyn TestDatabase) {
    const BLOCKS: i64 = 60;
    let stores = db.stores();
    let subscriptions = fill(&stores).await;
    let now = db.dialect().now();
    let (mut events, mut sagas) = (Vec::new(), Vec::new());
    for n in 10..10 + BLOCKS {
        let (id, name, subscription) = match n % 3 {
            0 => (n * 512, "b", subscriptions[3]),
            _ => (n * 512 + 255, "a", subscriptions[1]),
        };
        events.push(format!("({id}, '{name}', 'rare', {now}, 'c', '1')"));
        sagas.push(format!("({id}, {id}, {}, 0, 'Pending', 0, 5, {now}, {now}, {now})", subscription.0));
    }
    for sql in [
        format!(
            "INSERT INTO events (id, tenant, event_type, created_at, correlation_id, payload) VALUES {}",
            events.join(", ")
        ),
        format!(
            "INSERT INTO webhook_delivery_sagas (id, event_id, subscription_id, generation, status, attempt_count, \
             max_retry_limit, next_attempt_at, created_at, updated_at) VALUES {}",
            sagas.join(", ")
        ),
    ] {
        db.execute_as_owner(&sql).await.unwrap();
    }
    for list in stores.list_index.lists() {
        while step(&stores, *list, MANY).await.more {}
    }
    compare(&stores, &subscriptions).await;
}

pub async fn what_is_young_is_indexed_later(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = fill(&stores).await;
    for list in stores.list_index.lists() {
        no_step(&stores, *list, Duration::from_secs(60)).await;
    }
    assert_eq!(count(db, "list_blocks").await, 0);
    let filter = DeliveryFilter { subscription_id: Some(subscriptions[1]), ..DeliveryFilter::default() };
    let page = stores.reader.deliveries(FIRST.of(&ALL, &filter)).await.unwrap();
    assert!(!page.items.is_empty(), "it is listed all the same");
}

pub async fn blocks_that_hold_nothing_are_forgotten_and_no_others(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscriptions = fill(&stores).await;
    stores.list_index.index(IndexedList::Deliveries, MANY, Duration::ZERO).await.unwrap();
    let blocks = count(db, "list_blocks").await;
    let trim =
        async |after, limit| stores.list_index.trim(IndexedList::Deliveries, after, limit).await.unwrap();
    assert_eq!(trim(-1, MANY).await, Trimmed::default(), "every block holds something");
    assert_eq!(trim(-1, 1).await, Trimmed { blocks: 0, resume_after: Some(0) }, "one step at a time");

    // Blocks 50 and 51 held rows that are gone; something newer is indexed.
    let now = db.dialect().now();
    let entries = "INSERT INTO list_blocks (facet, value, block)
                   VALUES (1, '7', 50), (2, 'x', 50), (3, 'y', 51), (5, 'x/y', 51), (4, 'z', 50), (6, 'x/z', 50)";
    db.execute_as_owner(entries).await.unwrap();
    let times = format!(
        "INSERT INTO list_block_times (list, block, first_at, last_at)
         VALUES (1, 50, {now}, {now}), (1, 51, {now}, {now})"
    );
    db.execute_as_owner(&times).await.unwrap();
    assert_eq!(trim(-1, MANY).await.blocks, 0, "what is not indexed yet is left alone");
    db.execute_as_owner("UPDATE list_progress SET below = 20000 WHERE list = 1").await.unwrap();
    assert_eq!(trim(50, MANY).await.blocks, 1, "only what is behind the place where it resumes");
    assert_eq!(trim(-1, MANY).await.blocks, 1);
    assert_eq!(count(db, "list_blocks WHERE facet IN (4, 6)").await, 2, "another list's");
    assert_eq!(count(db, "list_blocks WHERE facet NOT IN (4, 6)").await, blocks);

    step(&stores, IndexedList::Events, MANY).await;
    let times =
        format!("INSERT INTO list_block_times (list, block, first_at, last_at) VALUES (2, 50, {now}, {now})");
    db.execute_as_owner(&times).await.unwrap();
    db.execute_as_owner("UPDATE list_progress SET below = 20000 WHERE list = 2").await.unwrap();
    let trimmed = stores.list_index.trim(IndexedList::Events, -1, MANY).await.unwrap();
    assert_eq!(trimmed, Trimmed { blocks: 1, resume_after: None });
    assert_eq!(count(db, "list_blocks WHERE block = 50").await, 0);
    compare(&stores, &subscriptions).await;
}

/// A tenant that filters by another tenant's subscription must not learn from the response time how many rows that has: its
/// rows are not read. To show this, the subscription has a row that cannot exist otherwise: for an event of the asking tenant.
/// A query that reads the rows would find it.
pub async fn another_tenants_subscription_lists_nothing(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = fill(&stores).await[0];
    let event = EventId(only(ids(db, "SELECT min(id) FROM events WHERE tenant = 'b'").await));
    let strange = old_saga(db, event, (subscription.0, 0), SagaStatus::Pending, 0).await;
    let filter = DeliveryFilter { subscription_id: Some(subscription), ..DeliveryFilter::default() };
    let page = stores.reader.deliveries(FIRST.of(&ALL, &filter)).await.unwrap();
    assert!(page.items.iter().any(|delivery| delivery.saga_id == strange), "who may see all tenants sees it");
    for (name, some) in [("a", true), ("b", false), ("nobody", false)] {
        let page =
            stores.reader.deliveries(FIRST.of(&TenantScope::One(tenant(name)), &filter)).await.unwrap();
        assert_eq!(!page.items.is_empty(), some, "{name}");
    }
}
