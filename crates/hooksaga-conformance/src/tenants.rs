//! Tenants: one customer can never read or change the rows of another.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, MANY, TOKEN, TYPE, URL, append, asked, bury_all, claim, correlation,
        create, deliver_round, external_id, new_event, new_subscription, only, rotation, route,
        schedule_and_mark, scope, sealed, some_events, tenant, topic, url, verified_for, verified_with,
    },
    rows::{all_rows, count},
};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{
    Allotted, Appended, CreateOutcome, DeadLetterFilter, DeliveryFilter, EventFilter, NewEvent,
    NewSubscription, PageRequest, RequeueOutcome, RequeueStep, Stores, SubscriptionFilter, SubscriptionPatch,
    TenantGauges, UpdateOutcome,
};
use std::{collections::HashMap, sync::Arc, time::Duration};

const ACME: &str = "acme";
/// Another tenant, with a very similar name.
const RIVAL: &str = "Acme";
const PAGE: PageRequest = PageRequest { limit: 100, before: None };

fn event(name: &str, id: &str) -> NewEvent {
    NewEvent { tenant: tenant(name), external_id: Some(external_id(id)), ..new_event(TYPE) }
}

/// One tenant's rows: a completed delivery, one that is dead and buried, and one that waits.
struct Owned {
    subscription: SubscriptionId,
    /// Oldest first.
    events: Vec<EventId>,
    sagas: Vec<SagaId>,
    letter: DeadLetterId,
}

/// Two tenants with the same external ids, types, URLs and correlation ids.
async fn two_tenants(stores: &Stores) -> (Owned, Owned) {
    let mut owned = Vec::new();
    for name in [ACME, RIVAL] {
        let new =
            NewSubscription { tenant: tenant(name), max_retry_limit: Some(1), ..new_subscription(TYPE, URL) };
        let subscription = verified_with(stores, &new).await;
        let (mut events, mut sagas, mut letters) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..2 {
            events.push(append(stores, event(name, &format!("x-{n}"))).await.id);
            sagas.extend(route(stores).await);
            match n {
                0 => drop(deliver_round(stores, None, AT_ONCE).await),
                _ => letters.extend(bury_all(stores, ErrorCode::TIMEOUT).await),
            }
        }
        owned.push(Owned { subscription, events, sagas, letter: only(letters) });
    }
    for (name, owned) in [ACME, RIVAL].iter().zip(&mut owned) {
        owned.events.push(append(stores, event(name, "x-2")).await.id);
        owned.sagas.extend(route(stores).await);
        assert_eq!((owned.events.len(), owned.sagas.len()), (3, 3));
    }
    let [one, two] = <[Owned; 2]>::try_from(owned).ok().unwrap();
    (one, two)
}

/// Newest first.
fn newest<T: Copy>(ids: &[T]) -> Vec<T> {
    ids.iter().rev().copied().collect()
}

pub async fn events_reach_subscriptions_of_their_own_tenant_only(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut subscriptions = HashMap::new();
    for name in ["default", ACME, RIVAL, "acme.x"] {
        let exact = verified_for(&stores, name, TYPE, URL).await;
        let any = verified_for(&stores, name, "*", URL).await;
        subscriptions.insert(name, vec![exact, any]);
    }
    for name in ["default", ACME, RIVAL, "acme.x", "nobody", "acm", "ACME"] {
        append(&stores, event(name, "x-1")).await;
    }
    let routed = stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events;
    assert_eq!(routed.len(), 7);
    for event in routed {
        let mut reached: Vec<_> = event.sagas.iter().map(|saga| saga.subscription_id).collect();
        reached.sort_unstable();
        let expected = subscriptions.get(event.tenant.as_str()).cloned().unwrap_or_default();
        assert_eq!(reached, expected, "{}", event.tenant);
    }
    assert_eq!(count(db, "webhook_delivery_sagas").await, 8);
}

pub async fn an_external_id_is_unique_within_its_tenant(db: &dyn TestDatabase) {
    let stores = db.stores();
    let content = |name: &str, payload: &str| NewEvent { payload: Arc::from(payload), ..event(name, "same") };
    let batch = [content(ACME, "1"), content(RIVAL, "2"), content(ACME, "1"), content(RIVAL, "1")];
    let answers = stores.ingest.append(&batch).await.unwrap();
    let [Appended::Created(one), Appended::Created(two), Appended::Duplicate(again), conflict] =
        answers.as_slice()
    else {
        panic!("{answers:?}")
    };
    assert_eq!((one.tenant.as_str(), two.tenant.as_str()), (ACME, RIVAL));
    assert_eq!(again, one);
    assert_eq!(conflict, &Appended::Conflict { existing: two.id });
    let answers = stores.ingest.append(&[content(RIVAL, "2"), content(ACME, "2")]).await.unwrap();
    assert_eq!(answers, [Appended::Duplicate(two.clone()), Appended::Conflict { existing: one.id }]);
    append(&stores, content("third", "1")).await;
    assert_eq!(count(db, "events").await, 3);
    assert_eq!(count(db, "unrouted_events").await, 3);
}

pub async fn a_subscription_is_unique_within_its_tenant(db: &dyn TestDatabase) {
    let stores = db.stores();
    let new =
        |name: &str, text: &str| NewSubscription { tenant: tenant(name), ..new_subscription(TYPE, text) };
    let one = create(&stores, &new(ACME, URL)).await;
    let two = create(&stores, &new(RIVAL, URL)).await;
    assert_eq!((one.tenant.as_str(), two.tenant.as_str()), (ACME, RIVAL));
    for existing in [&one, &two] {
        let outcome = stores.admin.create(&new(&existing.tenant, URL), &sealed(2)).await.unwrap();
        assert_eq!(outcome, CreateOutcome::Exists(existing.id));
    }
    let other = create(&stores, &new(RIVAL, "https://other.example/")).await.id;
    let to = |text: &str| SubscriptionPatch { callback_url: Some(url(text)), ..SubscriptionPatch::default() };
    let taken = stores.admin.update(&ALL, other, &to(URL)).await.unwrap();
    assert_eq!(taken, UpdateOutcome::Exists(two.id), "its own tenant's, never another's");
    let moved = stores.admin.update(&scope(ACME), one.id, &to("https://other.example/")).await.unwrap();
    assert!(matches!(moved, UpdateOutcome::Updated(_)), "the rival's is in nobody's way: {moved:?}");
}

pub async fn everything_says_whose_it_is(db: &dyn TestDatabase) {
    let stores = db.stores();
    let new =
        NewSubscription { tenant: tenant(ACME), max_retry_limit: Some(1), ..new_subscription(TYPE, URL) };
    let subscription = create(&stores, &new).await;
    let check = only(stores.verifier.take_checks(MANY, Duration::ZERO).await.unwrap());
    assert_eq!((subscription.tenant.as_str(), check.tenant.as_str()), (ACME, ACME));
    super::fixture::verify(&stores, subscription.id).await;
    let head = append(&stores, event(ACME, "x-1")).await;
    let routed = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events);
    schedule_and_mark(&stores).await;
    let job = only(claim(&stores, TOKEN).await.jobs);
    assert_eq!([&head.tenant, &routed.tenant, &job.held.tenant], [ACME; 3]);
    let failed = super::fixture::failed(job.as_ref(), ErrorCode::TIMEOUT);
    stores.worker.report(&[failed]).await.unwrap();
    super::fixture::apply(&stores, AT_ONCE).await;
    let buried = only(stores.dead_letters.bury(MANY).await.unwrap());
    let letter = only(super::fixture::letters(&stores).await);
    let shown = stores.reader.event(&ALL, head.id).await.unwrap().expect("it is there");
    let delivery = only(shown.deliveries);
    assert_eq!([&buried.tenant, &letter.tenant, &delivery.tenant, &shown.head.tenant], [ACME; 4]);
    let listed =
        only(stores.reader.deliveries(PAGE.of(&ALL, &DeliveryFilter::default())).await.unwrap().items);
    assert_eq!(listed, delivery);
}

pub async fn a_foreign_subscription_does_not_exist(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified_for(&stores, ACME, TYPE, URL).await;
    let tables = ["subscriptions", "subscription_secrets", "subscription_topics"];
    let mut before = Vec::new();
    for table in tables {
        before.push(all_rows(db, table).await);
    }
    let patch = SubscriptionPatch {
        active: Some(false),
        topics: Some(super::fixture::topics("*")),
        callback_url: Some(url("https://evil.example/")),
        description: Some(Some("mine now".to_owned())),
        ..SubscriptionPatch::default()
    };
    for foreign in [RIVAL, "default", "nobody"].map(scope) {
        assert_eq!(stores.reader.subscription(&foreign, id).await.unwrap(), None);
        for patch in [&patch, &SubscriptionPatch::default()] {
            assert_eq!(stores.admin.update(&foreign, id, patch).await.unwrap(), UpdateOutcome::NotFound);
        }
        assert_eq!(stores.admin.request_verification(&foreign, id, None).await.unwrap(), None);
        let rotated =
            stores.admin.rotate_secret(&foreign, &rotation(id, sealed(9), Duration::ZERO)).await.unwrap();
        assert!(!rotated);
    }
    for (table, before) in tables.iter().zip(before) {
        assert_eq!(all_rows(db, table).await, before, "{table}");
    }
    let own = scope(ACME);
    assert!(stores.reader.subscription(&own, id).await.unwrap().is_some());
    assert!(stores.admin.request_verification(&own, id, None).await.unwrap().is_some());
    assert!(stores.admin.rotate_secret(&own, &rotation(id, sealed(9), Duration::ZERO)).await.unwrap());
    let outcome = stores.admin.update(&own, id, &patch).await.unwrap();
    let UpdateOutcome::Updated(updated) = outcome else { panic!("{outcome:?}") };
    assert_eq!((updated.tenant.as_str(), updated.description.as_deref()), (ACME, Some("mine now")));
}

pub async fn foreign_events_deliveries_and_letters_do_not_exist(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (acme, _) = two_tenants(&stores).await;
    let (event, saga) = (acme.events[1], acme.sagas[1]);
    let before = all_rows(db, "webhook_delivery_sagas").await;
    for foreign in [RIVAL, "default"].map(scope) {
        assert_eq!(stores.reader.event(&foreign, event).await.unwrap(), None);
        assert_eq!(stores.reader.delivery(&foreign, saga).await.unwrap(), None);
        assert_eq!(stores.reader.dead_letter(&foreign, acme.letter).await.unwrap(), None);
        let outcome = stores.dead_letters.requeue(&foreign, acme.letter, DEFAULT_LIMIT).await.unwrap();
        assert_eq!(outcome, RequeueOutcome::NotFound);
    }
    assert_eq!(all_rows(db, "webhook_delivery_sagas").await, before);
    let own = scope(ACME);
    for scope in [&own, &ALL] {
        let shown = stores.reader.event(scope, event).await.unwrap().expect("it is there");
        assert_eq!(only(shown.deliveries).saga_id, saga);
        assert!(stores.reader.delivery(scope, saga).await.unwrap().is_some());
        assert!(stores.reader.dead_letter(scope, acme.letter).await.unwrap().is_some());
    }
    let outcome = stores.dead_letters.requeue(&own, acme.letter, DEFAULT_LIMIT).await.unwrap();
    let RequeueOutcome::Created(requeued, _) = outcome else { panic!("{outcome:?}") };
    let foreign = stores.dead_letters.requeue(&scope(RIVAL), acme.letter, DEFAULT_LIMIT).await.unwrap();
    assert_eq!(foreign, RequeueOutcome::NotFound, "requeued or not");
    assert_eq!(stores.reader.delivery(&scope(RIVAL), requeued.saga_id).await.unwrap(), None);
}

pub async fn a_requeue_of_many_stays_within_the_tenant(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (acme, rival) = two_tenants(&stores).await;
    let step = |filter| RequeueStep {
        filter,
        after: None,
        examine: MANY,
        requeue: MANY,
        dry_run: false,
        default_limit: DEFAULT_LIMIT,
    };
    let foreign =
        DeadLetterFilter { subscription_id: Some(acme.subscription), ..DeadLetterFilter::default() };
    let batch = stores.dead_letters.requeue_step(&scope(RIVAL), &step(foreign)).await.unwrap();
    assert_eq!((batch.requeued, batch.skipped), (0, 0), "another's id matches nothing");
    let all = step(DeadLetterFilter::default());
    let batch = stores.dead_letters.requeue_step(&scope(RIVAL), &all).await.unwrap();
    assert_eq!(only(batch.sagas).subscription_id, rival.subscription);
    assert_eq!(count(db, "webhook_delivery_sagas WHERE generation = 1").await, 1);
    let batch = stores.dead_letters.requeue_step(&scope("nobody"), &all).await.unwrap();
    assert_eq!((batch.requeued, batch.skipped), (0, 0));
}

pub async fn lists_show_the_tenants_own_rows_only(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (acme, rival) = two_tenants(&stores).await;
    for (name, own, other) in [(ACME, &acme, &rival), (RIVAL, &rival, &acme)] {
        let scope = &scope(name);
        let none = EventFilter::default;
        for (filter, expected) in [
            (none(), newest(&own.events)),
            (EventFilter { event_type: asked(TYPE), ..none() }, newest(&own.events)),
            (EventFilter { external_id: asked("x-1"), ..none() }, vec![own.events[1]]),
            (EventFilter { correlation_id: asked("correlation-1"), ..none() }, newest(&own.events)),
        ] {
            let found = stores.reader.events(PAGE.of(scope, &filter)).await.unwrap().items;
            assert_eq!(found.iter().map(|event| event.id).collect::<Vec<_>>(), expected, "{name} {filter:?}");
        }
        let none = DeliveryFilter::default;
        for (filter, expected) in [
            (none(), newest(&own.sagas)),
            (DeliveryFilter { statuses: [SagaStatus::Pending].into(), ..none() }, vec![own.sagas[2]]),
            (DeliveryFilter { statuses: [SagaStatus::Completed].into(), ..none() }, vec![own.sagas[0]]),
            (DeliveryFilter { statuses: [SagaStatus::DeadLettered].into(), ..none() }, vec![own.sagas[1]]),
            (
                DeliveryFilter { statuses: [SagaStatus::Pending, SagaStatus::PendingRetry].into(), ..none() },
                vec![own.sagas[2]],
            ),
            (
                DeliveryFilter { statuses: [SagaStatus::Completed, SagaStatus::Pending].into(), ..none() },
                vec![own.sagas[2], own.sagas[0]],
            ),
            (DeliveryFilter { statuses: [SagaStatus::InProgress].into(), ..none() }, vec![]),
            (
                DeliveryFilter {
                    statuses: [SagaStatus::Pending, SagaStatus::InProgress, SagaStatus::PendingRetry].into(),
                    ..none()
                },
                vec![own.sagas[2]],
            ),
            (
                DeliveryFilter { statuses: [SagaStatus::DeadLettered, SagaStatus::Pending].into(), ..none() },
                vec![own.sagas[2], own.sagas[1]],
            ),
            (
                DeliveryFilter {
                    statuses: [SagaStatus::DeadLettered].into(),
                    event_type: asked(TYPE),
                    ..none()
                },
                vec![own.sagas[1]],
            ),
            (
                DeliveryFilter {
                    statuses: [SagaStatus::DeadLettered].into(),
                    subscription_id: Some(own.subscription),
                    ..none()
                },
                vec![own.sagas[1]],
            ),
            (
                DeliveryFilter {
                    statuses: [SagaStatus::DeadLettered].into(),
                    subscription_id: Some(other.subscription),
                    ..none()
                },
                vec![],
            ),
            (
                DeliveryFilter {
                    statuses: [SagaStatus::Pending].into(),
                    subscription_id: Some(own.subscription),
                    ..none()
                },
                vec![own.sagas[2]],
            ),
            (DeliveryFilter { subscription_id: Some(own.subscription), ..none() }, newest(&own.sagas)),
            (DeliveryFilter { subscription_id: Some(other.subscription), ..none() }, vec![]),
            (DeliveryFilter { event_id: Some(own.events[0]), ..none() }, vec![own.sagas[0]]),
            (DeliveryFilter { event_id: Some(other.events[0]), ..none() }, vec![]),
            (DeliveryFilter { event_type: asked(TYPE), ..none() }, newest(&own.sagas)),
            (DeliveryFilter { external_id: asked("x-2"), ..none() }, vec![own.sagas[2]]),
            (DeliveryFilter { correlation_id: asked("correlation-1"), ..none() }, newest(&own.sagas)),
        ] {
            let found = stores.reader.deliveries(PAGE.of(scope, &filter)).await.unwrap().items;
            let found: Vec<_> = found.iter().map(|delivery| delivery.saga_id).collect();
            assert_eq!(found, expected, "{name} {filter:?}");
        }
        let none = DeadLetterFilter::default;
        for (filter, expected) in [
            (none(), vec![own.letter]),
            (DeadLetterFilter { subscription_id: Some(own.subscription), ..none() }, vec![own.letter]),
            (DeadLetterFilter { subscription_id: Some(other.subscription), ..none() }, vec![]),
            (DeadLetterFilter { event_type: asked(TYPE), ..none() }, vec![own.letter]),
            (
                DeadLetterFilter { final_error_code: asked("TIMEOUT"), requeued: Some(false), ..none() },
                vec![own.letter],
            ),
            (DeadLetterFilter { requeued: Some(true), ..none() }, vec![]),
            (DeadLetterFilter { event_type: asked(TYPE), requeued: Some(false), ..none() }, vec![own.letter]),
            (DeadLetterFilter { event_type: asked("another"), requeued: Some(false), ..none() }, vec![]),
        ] {
            let found = stores.reader.dead_letters(PAGE.of(scope, &filter)).await.unwrap().items;
            assert_eq!(
                found.iter().map(|letter| letter.id).collect::<Vec<_>>(),
                expected,
                "{name} {filter:?}"
            );
        }
        let none = SubscriptionFilter::default;
        for filter in [
            none(),
            SubscriptionFilter { event_type: Some(topic(TYPE)), ..none() },
            SubscriptionFilter { callback_url: Some(url(URL)), ..none() },
            SubscriptionFilter { active: Some(true), verified: Some(true), ..none() },
        ] {
            let found = stores.reader.subscriptions(PAGE.of(scope, &filter)).await.unwrap().items;
            assert_eq!(
                found.iter().map(|it| it.id).collect::<Vec<_>>(),
                [own.subscription],
                "{name} {filter:?}"
            );
        }
        let first = PageRequest { limit: 1, before: None };
        let paged = stores.reader.events(first.of(scope, &EventFilter::default())).await.unwrap();
        assert_eq!(paged.next, Some(own.events[2].0));
        let before = PageRequest { limit: 5, before: paged.next };
        let rest = stores.reader.events(before.of(scope, &EventFilter::default())).await.unwrap();
        assert_eq!(rest.items.iter().map(|event| event.id).collect::<Vec<_>>(), newest(&own.events[..2]));
    }
    let all = stores.reader.deliveries(PAGE.of(&ALL, &DeliveryFilter::default())).await.unwrap().items;
    assert_eq!(all.len(), 6);
    let nobody =
        stores.reader.events(PAGE.of(&scope("nobody"), &EventFilter::default())).await.unwrap().items;
    assert_eq!(nobody, []);
}

pub async fn statistics_count_the_tenants_own_only(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (acme, rival) = two_tenants(&stores).await;
    let tenant_gauges = async |tenant: &str| stores.reader.tenant_gauges(tenant).await.unwrap();
    assert_eq!(tenant_gauges("nobody").await, TenantGauges::default());
    assert_eq!(stores.reader.stats(&scope("nobody")).await.unwrap().oldest_due_age_micros, 0);
    for (name, own) in [(ACME, &acme), (RIVAL, &rival)] {
        let stats = stores.reader.stats(&scope(name)).await.unwrap();
        let counts = only(stats.subscriptions);
        assert_eq!(counts.subscription_id, own.subscription);
        assert_eq!((counts.delivered, counts.failed, counts.dead_lettered), (1, 1, 1));
        let sums = stats.minutes.iter().fold((0, 0, 0), |sum, minute| {
            (sum.0 + minute.delivered, sum.1 + minute.failed, sum.2 + minute.dead_lettered)
        });
        assert_eq!(sums, (1, 1, 1), "{name}");
        assert!((1..60_000_000).contains(&stats.oldest_due_age_micros), "{}", stats.oldest_due_age_micros);
        let gauges = tenant_gauges(name).await;
        assert_eq!((gauges.pending_sagas, gauges.in_progress_sagas, gauges.held_sagas), (1, 0, 0));
    }
    super::fixture::create_jobs(&stores, &[Allotted { subscription_id: rival.subscription, jobs: 1 }]).await;
    super::fixture::set_active(&stores, acme.subscription, false).await;
    super::fixture::set_active(&stores, rival.subscription, false).await;
    let held = TenantGauges { held_sagas: 1, ..TenantGauges::default() };
    let of_acme = TenantGauges { pending_sagas: 1, ..held };
    assert_eq!(tenant_gauges(ACME).await, of_acme);
    let of_rival = TenantGauges { in_progress_sagas: 1, ..held };
    assert_eq!(tenant_gauges(RIVAL).await, of_rival);
    assert_eq!(stores.reader.gauges().await.unwrap().held_sagas, 2);
    assert_eq!(stores.reader.stats(&ALL).await.unwrap().subscriptions.len(), 2);
}

pub async fn a_tenants_name_is_never_left_out(db: &dyn TestDatabase) {
    // An event and a subscription that name none belong to the default tenant, in the schema too.
    let stores = db.stores();
    let event = NewEvent { correlation_id: correlation("c-1"), ..new_event(TYPE) };
    assert_eq!(append(&stores, event).await.tenant, "default");
    let now = db.dialect().now();
    for sql in [
        format!(
            "INSERT INTO events (event_type, created_at, payload, correlation_id) VALUES ('t', {now}, '1', 'c')"
        ),
        format!(
            "INSERT INTO subscriptions (event_type, callback_url, active, created_at, updated_at) \
             VALUES ('t', 'https://x.example/', TRUE, {now}, {now})"
        ),
    ] {
        super::rows::changes(db, &sql, 1).await;
    }
    assert_eq!(count(db, "events WHERE tenant = 'default'").await, 2);
    assert_eq!(count(db, "subscriptions WHERE tenant = 'default'").await, 1);
}
