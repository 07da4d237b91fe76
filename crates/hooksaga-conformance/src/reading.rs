//! What the API shows: lists, filters, pages and details.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, MANY, MUCH_LATER, TOKEN, TYPE, URL, append, append_many, asked, buried, bury_all,
        claim, correlation, create, deliver_round, external_id, failed, leased, letters, new_event,
        new_subscription, only, pending_saga, route, saga_in, some_events, topic, url, verified,
        verified_with_limit,
    },
    rows::{count, jobs_of, saga_row},
};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, JobStatus, SagaId, SagaStatus, Timestamp};
use hooksaga_store::{
    DeadLetterFilter, Delivery, DeliveryFilter, EventFilter, JobReport, NewEvent, NewSubscription, Page,
    PageRequest, RequeueOutcome, StoreResult, Stores, SubscriptionFilter, SubscriptionPatch,
};
use std::time::Duration;

const FIRST: PageRequest = PageRequest { limit: 500, before: None };

/// Every page of a list, two rows each; checks the paging itself on the way.
async fn all_pages<T>(page: impl AsyncFn(PageRequest) -> StoreResult<Page<T>>) -> Vec<T> {
    let mut items = Vec::new();
    let mut before = None;
    loop {
        let next = page(PageRequest { limit: 2, before }).await.unwrap();
        assert!(next.items.len() <= 2);
        assert!(next.next.is_none() || next.items.len() == 2, "a page before the last is full");
        items.extend(next.items);
        before = next.next;
        if before.is_none() {
            return items;
        }
    }
}

async fn deliveries(stores: &Stores, filter: DeliveryFilter) -> Vec<SagaId> {
    let items = all_pages(async |page| stores.reader.deliveries(page.of(&ALL, &filter)).await).await;
    assert!(items.is_sorted_by(|a, b| a.saga_id > b.saga_id), "newest first");
    items.iter().map(|delivery| delivery.saga_id).collect()
}

async fn delivery(stores: &Stores, id: SagaId) -> Delivery {
    stores.reader.delivery(&ALL, id).await.unwrap().expect("the delivery is there").delivery
}

pub async fn events_are_listed_by_each_filter(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (mut ids, mut times) = (Vec::new(), Vec::new());
    for (event_type, external_id, correlation_id) in [
        ("a", Some("x-1"), "c-1"),
        ("b", None, "c-1"),
        ("a", Some("x-2"), "c-2"),
        ("A", Some("X-1"), "C-1"),
        ("a", None, "c-3"),
    ] {
        let event = NewEvent {
            external_id: external_id.map(super::fixture::external_id),
            correlation_id: correlation(correlation_id),
            ..new_event(event_type)
        };
        let head = append(&stores, event).await;
        ids.push(head.id);
        times.push(head.created_at);
    }
    let later = |fits: &dyn Fn(Timestamp) -> bool| (0..5).rev().filter(|i| fits(times[*i])).collect();
    let none = EventFilter::default;
    for (filter, expected) in [
        (none(), vec![4, 3, 2, 1, 0]),
        (EventFilter { event_type: asked("a"), ..none() }, vec![4, 2, 0]),
        (EventFilter { external_id: asked("x-1"), ..none() }, vec![0]),
        (EventFilter { correlation_id: asked("c-1"), ..none() }, vec![1, 0]),
        (EventFilter { event_type: asked("a"), correlation_id: asked("c-1"), ..none() }, vec![0]),
        (EventFilter { external_id: asked("nothing"), ..none() }, vec![]),
        (EventFilter { created_after: Some(times[2]), ..none() }, later(&|time| time >= times[2])),
        (EventFilter { created_before: Some(times[2]), ..none() }, later(&|time| time < times[2])),
        (
            EventFilter { created_after: Some(times[1]), created_before: Some(times[3]), ..none() },
            later(&|time| time >= times[1] && time < times[3]),
        ),
        (EventFilter { created_after: Some(times[4]), created_before: Some(times[4]), ..none() }, vec![]),
    ] {
        let found = all_pages(async |page| stores.reader.events(page.of(&ALL, &filter)).await).await;
        let found: Vec<EventId> = found.iter().map(|event| event.id).collect();
        assert_eq!(found, expected.iter().map(|i: &usize| ids[*i]).collect::<Vec<_>>(), "{filter:?}");
    }
}

pub async fn an_event_shows_its_payload_and_whether_it_is_routed(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.reader.event(&ALL, EventId(4711)).await.unwrap(), None);
    verified(&stores, TYPE, "https://one.example/").await;
    verified(&stores, TYPE, "https://two.example/").await;
    let head = append(&stores, new_event(TYPE)).await;
    let detail = stores.reader.event(&ALL, head.id).await.unwrap().expect("it is there");
    assert_eq!(detail.head, head);
    assert_eq!(&*detail.payload, &*new_event(TYPE).payload);
    assert!(!detail.routed && detail.deliveries.is_empty());

    let sagas = route(&stores).await;
    let detail = stores.reader.event(&ALL, head.id).await.unwrap().expect("it is there");
    assert!(detail.routed);
    assert_eq!(detail.deliveries.iter().map(|d| d.saga_id).collect::<Vec<_>>(), sagas, "oldest first");
    assert_eq!(detail.deliveries[0], delivery(&stores, sagas[0]).await);
}

pub async fn subscriptions_are_listed_by_each_filter(db: &dyn TestDatabase) {
    let stores = db.stores();
    let paused = verified(&stores, "a", "https://paused.example/").await;
    let good = verified(&stores, "a", "https://good.example/").await;
    let other = verified(&stores, "b,c.*", "https://good.example/").await;
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, paused, &pause).await.unwrap();
    let inactive = NewSubscription { active: false, ..new_subscription("b", URL) };
    let inactive = create(&stores, &inactive).await.id;
    let waiting = create(&stores, &new_subscription("b", "https://waiting.example/")).await.id;
    let none = SubscriptionFilter::default;
    for (filter, expected) in [
        (none(), vec![waiting, inactive, other, good, paused]),
        (SubscriptionFilter { event_type: Some(topic("a")), ..none() }, vec![good, paused]),
        (SubscriptionFilter { event_type: Some(topic("B")), ..none() }, vec![]),
        (SubscriptionFilter { event_type: Some(topic("c.*")), ..none() }, vec![other]),
        (SubscriptionFilter { event_type: Some(topic("c.d")), ..none() }, vec![]),
        (
            SubscriptionFilter { callback_url: Some(url("https://good.example/")), ..none() },
            vec![other, good],
        ),
        (SubscriptionFilter { callback_url: Some(url("https://good.example")), ..none() }, vec![]),
        (
            SubscriptionFilter {
                callback_url: Some(url("https://good.example/")),
                event_type: Some(topic("a")),
                ..none()
            },
            vec![good],
        ),
        (SubscriptionFilter { active: Some(true), ..none() }, vec![waiting, other, good]),
        (SubscriptionFilter { active: Some(false), ..none() }, vec![inactive, paused]),
        (SubscriptionFilter { verified: Some(true), ..none() }, vec![other, good, paused]),
        (SubscriptionFilter { verified: Some(false), ..none() }, vec![waiting, inactive]),
        (
            SubscriptionFilter {
                event_type: Some(topic("b")),
                active: Some(true),
                verified: Some(true),
                ..none()
            },
            vec![other],
        ),
    ] {
        let found = all_pages(async |page| stores.reader.subscriptions(page.of(&ALL, &filter)).await).await;
        assert_eq!(found.iter().map(|s| s.id).collect::<Vec<_>>(), expected, "{filter:?}");
        for subscription in found {
            let single = stores.reader.subscription(&ALL, subscription.id).await.unwrap();
            assert_eq!(single, Some(subscription));
        }
    }
}

pub async fn deliveries_are_listed_by_each_filter(db: &dyn TestDatabase) {
    let stores = db.stores();
    let one = verified_with_limit(&stores, "https://one.example/", 1).await;
    let mut events = Vec::new();
    for n in 0..3 {
        let event = NewEvent {
            external_id: Some(external_id(&format!("x-{n}"))),
            correlation_id: correlation(&format!("c-{}", n % 2)),
            ..new_event(TYPE)
        };
        events.push(append(&stores, event).await.id);
    }
    let mut sagas = route(&stores).await;
    deliver_round(&stores, None, AT_ONCE).await;
    let two = verified_with_limit(&stores, "https://two.example/", 1).await;
    events.push(append(&stores, new_event("another.type")).await.id);
    events.push(append(&stores, new_event(TYPE)).await.id);
    sagas.extend(route(&stores).await);
    assert_eq!(sagas.len(), 5, "of the last event, one for each subscription");
    let mut of_two = Vec::new();
    for saga in &sagas {
        if saga_row(db, *saga).await.subscription_id == two {
            of_two.push(*saga);
        }
    }
    let created: Vec<Timestamp> = {
        let mut times = Vec::new();
        for saga in &sagas {
            times.push(delivery(&stores, *saga).await.created_at);
        }
        times
    };
    let newest_first = |mut ids: Vec<SagaId>| {
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids
    };
    let fits =
        |keep: &dyn Fn(usize) -> bool| newest_first((0..5).filter(|i| keep(*i)).map(|i| sagas[i]).collect());
    let none = DeliveryFilter::default;
    let boundary = created[3];
    let is_two = |i: usize| of_two.contains(&sagas[i]);
    for (filter, expected) in [
        (none(), fits(&|_| true)),
        (DeliveryFilter { statuses: [SagaStatus::Completed].into(), ..none() }, fits(&|i| i < 3)),
        (DeliveryFilter { statuses: [SagaStatus::Pending].into(), ..none() }, fits(&|i| i >= 3)),
        (
            DeliveryFilter { statuses: [SagaStatus::Completed, SagaStatus::Pending].into(), ..none() },
            fits(&|_| true),
        ),
        (
            DeliveryFilter { statuses: [SagaStatus::PendingRetry, SagaStatus::Pending].into(), ..none() },
            fits(&|i| i >= 3),
        ),
        (
            DeliveryFilter { statuses: [SagaStatus::DeadLettered, SagaStatus::InProgress].into(), ..none() },
            vec![],
        ),
        (DeliveryFilter { statuses: [SagaStatus::InProgress].into(), ..none() }, vec![]),
        (DeliveryFilter { statuses: [SagaStatus::PendingRetry].into(), ..none() }, vec![]),
        (DeliveryFilter { statuses: [SagaStatus::DeadLettered].into(), ..none() }, vec![]),
        (DeliveryFilter { subscription_id: Some(one), ..none() }, fits(&|i| !is_two(i))),
        (DeliveryFilter { subscription_id: Some(two), ..none() }, fits(&is_two)),
        (DeliveryFilter { event_id: Some(events[1]), ..none() }, fits(&|i| i == 1)),
        (DeliveryFilter { event_type: asked(TYPE), ..none() }, fits(&|_| true)),
        (DeliveryFilter { event_type: asked("another.type"), ..none() }, vec![]),
        (DeliveryFilter { external_id: asked("x-2"), ..none() }, fits(&|i| i == 2)),
        (DeliveryFilter { external_id: asked("X-2"), ..none() }, vec![]),
        (DeliveryFilter { correlation_id: asked("c-0"), ..none() }, fits(&|i| i == 0 || i == 2)),
        (DeliveryFilter { created_after: Some(boundary), ..none() }, fits(&|i| created[i] >= boundary)),
        (DeliveryFilter { created_before: Some(boundary), ..none() }, fits(&|i| created[i] < boundary)),
        (DeliveryFilter { created_after: Some(boundary), created_before: Some(boundary), ..none() }, vec![]),
        (
            DeliveryFilter {
                statuses: [SagaStatus::Completed].into(),
                subscription_id: Some(one),
                event_type: asked(TYPE),
                correlation_id: asked("c-1"),
                ..none()
            },
            fits(&|i| i == 1),
        ),
    ] {
        let shown = format!("{filter:?}");
        assert_eq!(deliveries(&stores, filter).await, expected, "{shown}");
    }
}

pub async fn an_open_delivery_is_listed_by_its_status_alone(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    let next = async || {
        append_many(&stores, 1).await;
        route(&stores).await;
    };
    next().await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    next().await;
    super::fixture::schedule_and_mark(&stores).await;
    next().await;
    for status in [SagaStatus::PendingRetry, SagaStatus::InProgress, SagaStatus::Pending] {
        let filter = DeliveryFilter { statuses: [status].into(), ..DeliveryFilter::default() };
        let request = PageRequest { limit: 10, before: None };
        let listed = only(stores.reader.deliveries(request.of(&ALL, &filter)).await.unwrap().items);
        assert_eq!(listed.status, status);
        let of_event = DeliveryFilter {
            statuses: [status].into(),
            event_id: Some(listed.event_id),
            ..DeliveryFilter::default()
        };
        assert_eq!(only(stores.reader.deliveries(request.of(&ALL, &of_event)).await.unwrap().items), listed);
    }
    let open = [SagaStatus::Pending, SagaStatus::InProgress, SagaStatus::PendingRetry];
    let filter = DeliveryFilter { statuses: open.into(), ..DeliveryFilter::default() };
    assert_eq!(deliveries(&stores, filter).await, deliveries(&stores, DeliveryFilter::default()).await);
}

pub async fn a_dead_delivery_is_listed_before_its_letter_is_written_and_after(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified_with_limit(&stores, "https://dead.example/", 1).await;
    let mut dead = Vec::new();
    for _ in 0..2 {
        append_many(&stores, 1).await;
        dead.extend(route(&stores).await);
        deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    }
    dead.reverse();
    for letters in [0, 1, 2] {
        assert_eq!(count(db, "dead_letters").await, letters);
        for subscription_id in [None, Some(subscription)] {
            for more in [None, Some(SagaStatus::InProgress)] {
                let statuses = [Some(SagaStatus::DeadLettered), more].into_iter().flatten().collect();
                let filter = DeliveryFilter { statuses, subscription_id, ..DeliveryFilter::default() };
                assert_eq!(deliveries(&stores, filter).await, dead, "{letters} letters, {more:?}");
            }
        }
        stores.dead_letters.bury(1).await.unwrap();
    }
}

pub async fn a_delivery_shows_its_saga_and_its_attempts(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.reader.delivery(&ALL, SagaId(4711)).await.unwrap(), None);
    let fixed = pending_saga(&stores).await;
    deliver_round(&stores, Some(ErrorCode::DNS_FAILED), AT_ONCE).await;
    super::fixture::schedule_and_mark(&stores).await;
    let job = only(claim(&stores, TOKEN).await.jobs);
    let report = JobReport {
        response_status: Some(429),
        response_excerpt: Some("slow down".to_owned()),
        duration: Duration::from_millis(77),
        ..failed(job.as_ref(), ErrorCode::http(429))
    };
    stores.worker.report(&[report]).await.unwrap();
    super::fixture::apply(&stores, AT_ONCE).await;
    super::fixture::schedule_and_mark(&stores).await;

    let detail = stores.reader.delivery(&ALL, fixed.saga_id).await.unwrap().expect("it is there");
    let row = saga_row(db, fixed.saga_id).await;
    let shown = &detail.delivery;
    assert_eq!((shown.saga_id, shown.event_id), (fixed.saga_id, fixed.event_id));
    assert_eq!((shown.subscription_id, shown.generation), (fixed.subscription_id, 0));
    assert_eq!((shown.status, shown.attempt_count), (SagaStatus::InProgress, 2));
    assert_eq!((shown.max_retry_limit, shown.next_attempt_at), (3, row.next_attempt_at));
    assert_eq!(shown.final_error_code, Some(ErrorCode::http(429)));
    assert_eq!((shown.created_at, shown.updated_at), (row.created_at, row.updated_at));
    assert!(!shown.held);

    let jobs = jobs_of(db, fixed.saga_id).await;
    assert_eq!(detail.attempts.iter().map(|attempt| attempt.job_id).collect::<Vec<_>>(), jobs);
    let [first, second, third] = detail.attempts.as_slice() else { panic!("{:?}", detail.attempts) };
    assert_eq!((first.status, &first.error_code), (JobStatus::Failed, &Some(ErrorCode::DNS_FAILED)));
    assert_eq!((first.response_status, first.duration_ms), (None, Some(34)));
    assert_eq!((second.attempt_at, second.response_status), (job.held.attempt_at, Some(429)));
    assert_eq!((second.duration_ms, second.response_excerpt.as_deref()), (Some(77), Some("slow down")));
    assert_eq!((third.status, &third.error_code, third.duration_ms), (JobStatus::Pending, &None, None));
    assert_eq!((third.attempt_at, third.lease_resets), (row.next_attempt_at, 0));
}

pub async fn open_deliveries_of_a_paused_or_unverified_subscription_are_held(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, _) = leased(db).await;
    append(&stores, new_event(TYPE)).await;
    let waiting = only(route(&stores).await);
    let held = async || {
        let listed =
            stores.reader.deliveries(FIRST.of(&ALL, &DeliveryFilter::default())).await.unwrap().items;
        let single = (delivery(&stores, fixed.saga_id).await.held, delivery(&stores, waiting).await.held);
        assert_eq!((listed[1].held, listed[0].held), single, "lists and details agree");
        single
    };
    let active = |active| SubscriptionPatch { active: Some(active), ..SubscriptionPatch::default() };
    assert_eq!(held().await, (false, false));
    stores.admin.update(&ALL, fixed.subscription_id, &active(false)).await.unwrap();
    assert_eq!(held().await, (true, true));
    stores.admin.update(&ALL, fixed.subscription_id, &active(true)).await.unwrap();
    let elsewhere =
        SubscriptionPatch { callback_url: Some(url("https://new.example/")), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, fixed.subscription_id, &elsewhere).await.unwrap();
    assert_eq!(held().await, (true, true));
}

pub async fn a_finished_delivery_is_not_held(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fixed = saga_in(db, SagaStatus::Completed).await;
    let pause = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, fixed.subscription_id, &pause).await.unwrap();
    assert!(!delivery(&stores, fixed.saga_id).await.held);
}

pub async fn dead_letters_are_listed_by_each_filter(db: &dyn TestDatabase) {
    let stores = db.stores();
    let one = verified_with_limit(&stores, "https://one.example/", 1).await;
    let mut ids: Vec<DeadLetterId> = Vec::new();
    for code in [ErrorCode::TIMEOUT, ErrorCode::http(500), ErrorCode::TIMEOUT] {
        append(&stores, new_event(TYPE)).await;
        route(&stores).await;
        ids.extend(bury_all(&stores, code).await);
    }
    let outcome = stores.dead_letters.requeue(&ALL, ids[0], 5).await.unwrap();
    let RequeueOutcome::Created(requeued, _) = outcome else { panic!("{outcome:?}") };
    let all = letters(&stores).await;
    let boundary = all[1].created_at;
    let none = DeadLetterFilter::default;
    let later = |letter: usize| all[2 - letter].created_at >= boundary;
    for (filter, expected) in [
        (none(), vec![2, 1, 0]),
        (DeadLetterFilter { subscription_id: Some(one), ..none() }, vec![2, 1, 0]),
        (DeadLetterFilter { subscription_id: Some(hooksaga_saga::SubscriptionId(99)), ..none() }, vec![]),
        (DeadLetterFilter { event_type: asked(TYPE), ..none() }, vec![2, 1, 0]),
        (DeadLetterFilter { event_type: asked("Order.created"), ..none() }, vec![]),
        (DeadLetterFilter { final_error_code: asked("TIMEOUT"), ..none() }, vec![2, 0]),
        (DeadLetterFilter { requeued: Some(true), ..none() }, vec![0]),
        (DeadLetterFilter { requeued: Some(false), ..none() }, vec![2, 1]),
        (
            DeadLetterFilter { created_after: Some(boundary), ..none() },
            (0..3).rev().filter(|i| later(*i)).collect(),
        ),
        (
            DeadLetterFilter { created_before: Some(boundary), ..none() },
            (0..3).rev().filter(|i| !later(*i)).collect(),
        ),
    ] {
        let found = all_pages(async |page| stores.reader.dead_letters(page.of(&ALL, &filter)).await).await;
        let found: Vec<_> = found.iter().map(|letter| letter.id).collect();
        assert_eq!(found, expected.iter().map(|i: &usize| ids[*i]).collect::<Vec<_>>(), "{filter:?}");
    }
    assert_eq!(all[2].requeued_saga_id, Some(requeued.saga_id));
    assert_eq!((all[1].requeued_saga_id, all[0].requeued_saga_id), (None, None));
}

pub async fn a_dead_letter_shows_its_payload(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.reader.dead_letter(&ALL, DeadLetterId(4711)).await.unwrap(), None);
    let (fixed, letter) = buried(db).await;
    let detail = stores.reader.dead_letter(&ALL, letter).await.unwrap().expect("it is there");
    let summary = &detail.summary;
    assert_eq!((summary.id, summary.saga_id), (letter, fixed.saga_id));
    assert_eq!((summary.event_id, summary.subscription_id), (fixed.event_id, fixed.subscription_id));
    assert_eq!((summary.event_type.as_str(), &summary.final_error_code), (TYPE, &ErrorCode::http(500)));
    assert_eq!(summary.requeued_saga_id, None);
    assert_eq!(&*detail.payload, &*new_event(TYPE).payload);
    assert_eq!(only(letters(&stores).await), detail.summary, "lists and details agree");

    stores.dead_letters.requeue(&ALL, letter, 5).await.unwrap();
    let detail = stores.reader.dead_letter(&ALL, letter).await.unwrap().expect("it is there");
    assert!(detail.summary.requeued_saga_id.is_some());
}

pub async fn pages_are_complete_and_repeat_nothing_while_rows_are_added(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified(&stores, TYPE, URL).await;
    let events = append_many(&stores, 23).await;
    let sagas = route(&stores).await;
    let (mut seen_events, mut seen_sagas) = (Vec::new(), Vec::new());
    let (mut before_event, mut before_saga) = (None, None);
    loop {
        let page = PageRequest { limit: 5, before: before_event };
        let page = stores.reader.events(page.of(&ALL, &EventFilter::default())).await.unwrap();
        seen_events.extend(page.items.iter().map(|event| event.id));
        before_event = page.next;
        let page = PageRequest { limit: 5, before: before_saga };
        let page = stores.reader.deliveries(page.of(&ALL, &DeliveryFilter::default())).await.unwrap();
        seen_sagas.extend(page.items.iter().map(|delivery| delivery.saga_id));
        before_saga = page.next;
        if before_event.is_none() {
            assert_eq!(before_saga, None);
            break;
        }
        append_many(&stores, 3).await;
        assert_eq!(stores.router.route(some_events(MANY), 5).await.unwrap().events.len(), 3);
    }
    assert_eq!(seen_events, events.into_iter().rev().collect::<Vec<_>>());
    assert_eq!(seen_sagas, sagas.into_iter().rev().collect::<Vec<_>>());
}

pub async fn an_empty_database_shows_empty_lists_and_is_ready(db: &dyn TestDatabase) {
    let reader = db.stores().reader;
    reader.ready().await.unwrap();
    let page = reader.events(FIRST.of(&ALL, &EventFilter::default())).await.unwrap();
    assert_eq!(page, Page { items: vec![], next: None });
    let page = reader.deliveries(FIRST.of(&ALL, &DeliveryFilter::default())).await.unwrap();
    assert_eq!(page, Page { items: vec![], next: None });
    let page = reader.subscriptions(FIRST.of(&ALL, &SubscriptionFilter::default())).await.unwrap();
    assert_eq!(page, Page { items: vec![], next: None });
    let page = reader.dead_letters(FIRST.of(&ALL, &DeadLetterFilter::default())).await.unwrap();
    assert_eq!(page, Page { items: vec![], next: None });
}
