//! Redrives: large work in steps. Each step creates sagas and stores its progress in one transaction.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, MANY, TYPE, URL, append, append_many, bury_all, deliver_round,
        new_event, only, route, scope, set_active, tenant, verified, verified_for, verified_with_limit,
    },
    rows::{count, db_now, ids, set_topics},
};
use hooksaga_saga::{ErrorCode, KeyId, RedriveId, SubscriptionId, Timestamp};
use hooksaga_store::{
    CancelOutcome, DeadLetterFilter, NewEvent, NewRedrive, PageRequest, Redrive, RedriveStatus, RedriveWork,
    RunningLimits, StartOutcome, Starter, StepLimits, StepOf, StoreError, Stores, TenantScope, TooMany,
};
use std::time::Duration;
use tokio::task::JoinSet;

const ANY_NUMBER: RunningLimits = RunningLimits { in_all: MANY, for_tenants: MANY, of_a_tenant: MANY };
const PAGE: PageRequest = PageRequest { limit: 100, before: None };

fn limits(examine: u32, create: u32) -> StepLimits {
    StepLimits { examine, create, default_limit: DEFAULT_LIMIT }
}

fn somebody() -> Starter {
    Starter { key_id: Some(KeyId(7)), name: "support".to_owned() }
}

/// All events so far.
fn all_events(subscription_id: SubscriptionId) -> RedriveWork {
    RedriveWork::Events { subscription_id, since: Timestamp::from_micros(0), until: None }
}

fn all_letters() -> RedriveWork {
    RedriveWork::DeadLetters(DeadLetterFilter::default())
}

async fn start(stores: &Stores, scope: &TenantScope, work: &RedriveWork) -> Redrive {
    match stores.redrives.start(NewRedrive { scope, work, starter: &somebody() }, ANY_NUMBER).await.unwrap() {
        StartOutcome::Started(redrive) => *redrive,
        other => panic!("not started: {other:?}"),
    }
}

async fn one(stores: &Stores, id: RedriveId) -> Redrive {
    stores.reader.redrive(&ALL, id).await.unwrap().expect("the redrive is there")
}

/// Takes steps until no redrive runs, and returns how many it took.
async fn to_the_end(stores: &Stores, limits: StepLimits) -> u32 {
    for steps in 0..200 {
        let Some(step) = stores.redrives.advance(limits).await.unwrap() else { return steps };
        assert!(step.sagas.len() <= limits.create as usize, "{step:?}");
        assert!(step.examined <= u64::from(limits.examine), "{step:?}");
    }
    panic!("it does not end");
}

/// The counts: examined, created, skipped.
fn tally(redrive: &Redrive) -> (u64, u64, u64) {
    (redrive.examined, redrive.created, redrive.skipped)
}

/// Waits until the clock has advanced, so that the next rows have a later time.
async fn a_moment_later(db: &dyn TestDatabase) -> Timestamp {
    tokio::time::sleep(Duration::from_millis(5)).await;
    db_now(db).await
}

pub async fn old_events_are_sent_to_a_new_subscription_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let before = verified(&stores, TYPE, "https://before.example/").await;
    append_many(&stores, 10).await;
    // Neither another type nor another tenant's event is part of it.
    append(&stores, new_event("other.type")).await;
    append(&stores, NewEvent { tenant: tenant("globex"), ..new_event(TYPE) }).await;
    route(&stores).await;
    let new = verified(&stores, "order.*", URL).await;
    while stores.redrives.catch_up(limits(MANY, MANY), None).await.unwrap().is_some() {}

    let redrive = start(&stores, &ALL, &all_events(new)).await;
    assert_eq!((redrive.status, tally(&redrive)), (RedriveStatus::Running, (0, 0, 0)));
    assert_eq!((redrive.tenant.as_deref(), &redrive.started_by), (Some("default"), &somebody()));
    let steps = to_the_end(&stores, limits(4, 3)).await;
    assert!(steps >= 4, "{steps}");
    let done = one(&stores, redrive.id).await;
    assert_eq!((done.status, tally(&done)), (RedriveStatus::Done, (10, 10, 0)));
    assert!(done.updated_at >= done.created_at);
    let of_new = format!("webhook_delivery_sagas WHERE subscription_id = {new} AND generation = 0");
    assert_eq!(count(db, &of_new).await, 10);
    assert_eq!(count(db, &format!("webhook_delivery_sagas WHERE subscription_id = {before}")).await, 10);

    // A second run finds nothing to create, and neither does the router.
    let again = start(&stores, &ALL, &all_events(new)).await;
    to_the_end(&stores, limits(MANY, MANY)).await;
    assert_eq!(tally(&one(&stores, again.id).await), (10, 0, 10));
    assert_eq!(count(db, &of_new).await, 10);
    assert_eq!(deliver_round(&stores, None, AT_ONCE).await.results.len(), 20, "they are delivered");
}

pub async fn a_redrive_takes_the_events_of_its_time(db: &dyn TestDatabase) {
    let stores = db.stores();
    append_many(&stores, 3).await;
    let since = a_moment_later(db).await;
    let wanted = append_many(&stores, 4).await;
    let until = a_moment_later(db).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    let id = verified(&stores, TYPE, URL).await;
    while stores.redrives.catch_up(limits(MANY, MANY), None).await.unwrap().is_some() {}
    let work = RedriveWork::Events { subscription_id: id, since, until: Some(until) };
    let redrive = start(&stores, &ALL, &work).await;
    assert_eq!(redrive.work, work);
    to_the_end(&stores, limits(2, 2)).await;
    assert_eq!(tally(&one(&stores, redrive.id).await), (4, 4, 0));
    let events = ids(db, "SELECT event_id FROM webhook_delivery_sagas ORDER BY event_id").await;
    assert_eq!(events, wanted.iter().map(|id| id.0).collect::<Vec<_>>());
}

pub async fn a_redrive_shows_how_far_it_came_among_foreign_events(db: &dyn TestDatabase) {
    let stores = db.stores();
    let since = db_now(db).await;
    for _ in 0..3 {
        a_moment_later(db).await;
        append(&stores, NewEvent { tenant: tenant("globex"), ..new_event(TYPE) }).await;
    }
    route(&stores).await;
    let id = verified(&stores, TYPE, URL).await;
    while stores.redrives.catch_up(limits(MANY, MANY), None).await.unwrap().is_some() {}
    let work = RedriveWork::Events { subscription_id: id, since, until: None };
    let redrive = start(&stores, &ALL, &work).await;
    assert_eq!((redrive.reached, redrive.percent()), (None, Some(0)));
    let mut before = redrive;
    for _ in 0..3 {
        stores.redrives.advance(limits(1, 1)).await.unwrap().expect("it runs");
        let now = one(&stores, before.id).await;
        assert_eq!(tally(&now), (0, 0, 0));
        assert!(now.reached > before.reached && now.percent() >= before.percent(), "{now:?} {before:?}");
        before = now;
    }
    assert!(before.percent() < Some(100));
    to_the_end(&stores, limits(1, 1)).await;
    assert_eq!(one(&stores, before.id).await.percent(), Some(100));
}

pub async fn what_comes_later_is_not_part_of_a_redrive(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 1).await;
    append_many(&stores, 3).await;
    route(&stores).await;
    bury_all(&stores, ErrorCode::TIMEOUT).await;
    a_moment_later(db).await;
    let redrive = start(&stores, &ALL, &all_letters()).await;
    a_moment_later(db).await;
    // What it sends again fails again every time. It must not go on sending those failures for ever.
    for _ in 0..20 {
        if stores.redrives.advance(limits(1, 1)).await.unwrap().is_none() {
            break;
        }
        bury_all(&stores, ErrorCode::TIMEOUT).await;
    }
    let done = one(&stores, redrive.id).await;
    assert_eq!((done.status, tally(&done)), (RedriveStatus::Done, (3, 3, 0)));
    assert_eq!(count(db, "dead_letters").await, 6);
}

pub async fn dead_letters_that_match_are_sent_again_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 1).await;
    let paused = verified_with_limit(&stores, "https://paused.example/", 1).await;
    append_many(&stores, 4).await;
    route(&stores).await;
    let letters = bury_all(&stores, ErrorCode::TIMEOUT).await;
    append_many(&stores, 1).await;
    route(&stores).await;
    bury_all(&stores, ErrorCode::http(500)).await;
    set_active(&stores, paused, false).await;
    stores.dead_letters.requeue(&ALL, letters[0], DEFAULT_LIMIT).await.unwrap();
    let requeued = count(db, "webhook_delivery_sagas WHERE generation = 1").await;
    a_moment_later(db).await;

    let filter =
        DeadLetterFilter { final_error_code: Some(ErrorCode::TIMEOUT), ..DeadLetterFilter::default() };
    let redrive = start(&stores, &ALL, &RedriveWork::DeadLetters(filter)).await;
    to_the_end(&stores, limits(3, 1)).await;
    let done = one(&stores, redrive.id).await;
    assert_eq!((done.status, done.examined, done.created + done.skipped), (RedriveStatus::Done, 8, 8));
    let made = count(db, "webhook_delivery_sagas WHERE generation = 1").await - requeued;
    assert_eq!(i64::try_from(done.created).unwrap(), made);
    assert_eq!(
        count(db, "webhook_delivery_sagas WHERE generation = 1").await,
        4,
        "the active one's, each once"
    );
}

pub async fn a_tenants_redrive_takes_blocked_addresses_for_unknown_names(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_for(&stores, "acme", TYPE, URL).await;
    for code in [ErrorCode::BLOCKED_ADDRESS, ErrorCode::DNS_FAILED, ErrorCode::TIMEOUT] {
        let event = NewEvent { tenant: tenant("acme"), ..new_event(TYPE) };
        append(&stores, event).await;
        route(&stores).await;
        assert_eq!(bury_all(&stores, code).await.len(), 1);
    }
    a_moment_later(db).await;
    for (who, code, expected) in [
        (scope("acme"), ErrorCode::BLOCKED_ADDRESS, (0, 0, 0)),
        (scope("acme"), ErrorCode::DNS_FAILED, (2, 2, 0)),
        (ALL, ErrorCode::BLOCKED_ADDRESS, (1, 0, 1)),
        (ALL, ErrorCode::DNS_FAILED, (1, 0, 1)),
    ] {
        let final_error_code = Some(code.clone());
        let filter = DeadLetterFilter { final_error_code, ..DeadLetterFilter::default() };
        let redrive = start(&stores, &who, &RedriveWork::DeadLetters(filter)).await;
        to_the_end(&stores, limits(2, 2)).await;
        let done = one(&stores, redrive.id).await;
        assert_eq!((done.status, tally(&done)), (RedriveStatus::Done, expected), "{who:?} {code}");
    }
}

pub async fn two_redrivers_at_once_make_each_saga_once(db: &dyn TestDatabase) {
    let (stores, other) = (db.stores(), db.second_instance().await);
    append_many(&stores, 120).await;
    route(&stores).await;
    let id = verified(&stores, TYPE, URL).await;
    let redrive = start(&stores, &ALL, &all_events(id)).await;
    let run = |stores: Stores| async move {
        let mut made = 0;
        loop {
            let step = stores.redrives.advance(limits(10, 7)).await.unwrap();
            made += step.as_ref().map_or(0, |step| step.sagas.len());
            // While the other process holds it, there is nothing to do.
            if step.is_none() && stores.redrives.running().await.unwrap() == 0 {
                return made;
            }
        }
    };
    let (one_made, other_made) = tokio::join!(run(stores.clone()), run(other));
    assert_eq!(one_made + other_made, 120);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 120);
    let done = one(&stores, redrive.id).await;
    assert_eq!((done.status, tally(&done)), (RedriveStatus::Done, (120, 120, 0)));
}

pub async fn a_redrive_beside_the_router_makes_each_saga_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    append_many(&stores, 60).await;
    a_moment_later(db).await;
    start(&stores, &ALL, &all_events(id)).await;
    let routed = async {
        while count(db, "unrouted_events").await > 0 {
            let limits = hooksaga_store::RouteLimits { events: 5, sagas: 5 };
            stores.router.route(limits, DEFAULT_LIMIT).await.unwrap();
        }
    };
    tokio::join!(routed, to_the_end(&stores, limits(7, 5)));
    assert_eq!(count(db, "webhook_delivery_sagas").await, 60);
}

pub async fn a_cancelled_redrive_does_nothing_more(db: &dyn TestDatabase) {
    let stores = db.stores();
    append_many(&stores, 10).await;
    route(&stores).await;
    let id = verified(&stores, TYPE, URL).await;
    let redrive = start(&stores, &ALL, &all_events(id)).await;
    stores.redrives.advance(limits(4, 4)).await.unwrap().expect("it runs");
    let CancelOutcome::Cancelled(cancelled) = stores.redrives.cancel(&ALL, redrive.id).await.unwrap() else {
        panic!("not cancelled");
    };
    assert_eq!((cancelled.status, tally(&cancelled)), (RedriveStatus::Cancelled, (4, 4, 0)));
    assert_eq!(stores.redrives.advance(limits(4, 4)).await.unwrap(), None);
    assert_eq!(one(&stores, redrive.id).await, *cancelled);
    let again = stores.redrives.cancel(&ALL, redrive.id).await.unwrap();
    assert_eq!(again, CancelOutcome::NotRunning(RedriveStatus::Cancelled));
    assert_eq!(stores.redrives.cancel(&ALL, RedriveId(4711)).await.unwrap(), CancelOutcome::NotFound);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 4, "what it made stays");
}

/// The topics of its subscription cannot be read.
pub async fn a_redrive_that_cannot_go_on_lets_others_go_first(db: &dyn TestDatabase) {
    let stores = db.stores();
    append_many(&stores, 3).await;
    route(&stores).await;
    let (id, other) =
        (verified(&stores, TYPE, URL).await, verified(&stores, TYPE, "https://other.example/").await);
    let stuck = start(&stores, &ALL, &all_events(id)).await;
    a_moment_later(db).await;
    let second = start(&stores, &ALL, &all_events(other)).await;
    set_topics(db, id, "?").await;
    for _ in 0..2 {
        let failed = stores.redrives.advance(limits(MANY, MANY)).await;
        assert!(matches!(&failed, Err(error) if error.is_of_rows()), "it is its turn: {failed:?}");
    }
    a_moment_later(db).await;
    stores.redrives.put_off_redrive().await.unwrap();
    let step = stores.redrives.advance(limits(MANY, MANY)).await.unwrap().expect("it runs");
    assert_eq!((step.of, step.created()), (StepOf::Redrive(second.id), 3));

    set_topics(db, id, TYPE).await;
    to_the_end(&stores, limits(MANY, MANY)).await;
    assert_eq!(tally(&one(&stores, stuck.id).await), (3, 3, 0));
    stores.redrives.put_off_redrive().await.unwrap();
}

pub async fn a_redrive_fails_when_its_subscription_is_paused(db: &dyn TestDatabase) {
    let stores = db.stores();
    append_many(&stores, 10).await;
    route(&stores).await;
    let id = verified(&stores, TYPE, URL).await;
    let redrive = start(&stores, &ALL, &all_events(id)).await;
    stores.redrives.advance(limits(4, 4)).await.unwrap().expect("it runs");
    set_active(&stores, id, false).await;
    to_the_end(&stores, limits(4, 4)).await;
    let failed = one(&stores, redrive.id).await;
    assert_eq!((failed.status, tally(&failed)), (RedriveStatus::Failed, (4, 4, 0)));
    assert!(failed.error.is_some_and(|error| error.contains("active and verified")));
    let start = |id| {
        let (stores, work) = (stores.clone(), all_events(id));
        async move {
            stores
                .redrives
                .start(NewRedrive { scope: &ALL, work: &work, starter: &somebody() }, ANY_NUMBER)
                .await
                .unwrap()
        }
    };
    assert_eq!(start(id).await, StartOutcome::NotDeliverable(id));
    let nobody = SubscriptionId(4711);
    assert_eq!(start(nobody).await, StartOutcome::NoSuchSubscription(nobody));
}

pub async fn only_so_many_redrives_run_at_a_time(db: &dyn TestDatabase) {
    let stores = db.stores();
    let few = RunningLimits { in_all: 4, for_tenants: 3, of_a_tenant: 2 };
    let start = |scope: TenantScope| {
        let stores = stores.clone();
        async move {
            stores
                .redrives
                .start(NewRedrive { scope: &scope, work: &all_letters(), starter: &somebody() }, few)
                .await
                .unwrap()
        }
    };
    assert!(matches!(start(scope("acme")).await, StartOutcome::Started(_)));
    assert!(matches!(start(scope("acme")).await, StartOutcome::Started(_)));
    assert_eq!(
        start(scope("acme")).await,
        StartOutcome::TooMany(TooMany::OfTenant(2)),
        "its own share is used up"
    );
    assert!(matches!(start(ALL).await, StartOutcome::Started(_)));
    assert_eq!(
        start(scope("globex")).await,
        StartOutcome::TooMany(TooMany::InAll),
        "so is that of all tenants"
    );
    assert!(matches!(start(ALL).await, StartOutcome::Started(_)), "a place is kept for the operator");
    assert_eq!(start(ALL).await, StartOutcome::TooMany(TooMany::InAll));
    assert_eq!(stores.redrives.running().await.unwrap(), 4);
    to_the_end(&stores, limits(10, 10)).await;
    assert_eq!(stores.redrives.running().await.unwrap(), 0);
    assert!(matches!(start(scope("globex")).await, StartOutcome::Started(_)));
}

/// Starts several at the same time: each would find room if it counted before another one was stored.
pub async fn starts_at_the_same_moment_exceed_no_limit(db: &dyn TestDatabase) {
    let few = RunningLimits { in_all: MANY, for_tenants: MANY, of_a_tenant: 2 };
    let (here, there) = (db.stores(), db.second_instance().await);
    for round in 0..10 {
        let scope = scope(&format!("tenant-{round}"));
        let start = |stores: &Stores| {
            let (stores, scope) = (stores.clone(), scope.clone());
            async move {
                let new = NewRedrive { scope: &scope, work: &all_letters(), starter: &somebody() };
                stores.redrives.start(new, few).await.unwrap()
            }
        };
        let mut starts = JoinSet::new();
        for _ in 0..4 {
            starts.spawn(start(&here));
            starts.spawn(start(&there));
        }
        let outcomes = starts.join_all().await;
        let started = outcomes.iter().filter(|outcome| matches!(outcome, StartOutcome::Started(_)));
        assert_eq!(started.count(), 2, "{outcomes:?}");
        let refused =
            outcomes.iter().filter(|outcome| **outcome == StartOutcome::TooMany(TooMany::OfTenant(2)));
        assert_eq!(refused.count(), 6, "{outcomes:?}");
    }
}

pub async fn a_redrive_stays_within_its_tenant(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut subscriptions = Vec::new();
    for name in ["acme", "globex"] {
        let id = verified_for(&stores, name, TYPE, URL).await;
        for _ in 0..3 {
            append(&stores, NewEvent { tenant: tenant(name), ..new_event(TYPE) }).await;
        }
        subscriptions.push(id);
    }
    route(&stores).await;
    bury_all(&stores, ErrorCode::TIMEOUT).await;
    a_moment_later(db).await;
    let acme = start(&stores, &scope("acme"), &all_letters()).await;
    let foreign = stores
        .redrives
        .start(
            NewRedrive { scope: &scope("acme"), work: &all_events(subscriptions[1]), starter: &somebody() },
            ANY_NUMBER,
        )
        .await
        .unwrap();
    assert_eq!(foreign, StartOutcome::NoSuchSubscription(subscriptions[1]));
    to_the_end(&stores, limits(2, 2)).await;
    assert_eq!(tally(&one(&stores, acme.id).await), (3, 3, 0));
    let made =
        ids(db, "SELECT DISTINCT subscription_id FROM webhook_delivery_sagas WHERE generation = 1").await;
    assert_eq!(made, [subscriptions[0].0]);

    let everybodys = start(&stores, &ALL, &all_letters()).await;
    let listed = |scope: TenantScope| {
        let stores = stores.clone();
        async move { stores.reader.redrives(&scope, PAGE).await.unwrap().items }
    };
    assert_eq!(only(listed(scope("acme")).await).id, acme.id);
    assert_eq!(listed(scope("globex")).await, []);
    let ids: Vec<_> = listed(ALL).await.iter().map(|redrive| redrive.id).collect();
    assert_eq!(ids, [everybodys.id, acme.id], "newest first");
    for (who, id) in [("globex", acme.id), ("acme", everybodys.id)] {
        assert_eq!(stores.reader.redrive(&scope(who), id).await.unwrap(), None);
        assert_eq!(stores.redrives.cancel(&scope(who), id).await.unwrap(), CancelOutcome::NotFound);
    }
}

pub async fn a_redrive_that_has_ended_never_changes(db: &dyn TestDatabase) {
    let stores = db.stores();
    let redrive = start(&stores, &ALL, &all_letters()).await;
    let refused = |sql: String| async move {
        let answer = db.execute_as_owner(&sql).await;
        assert!(matches!(answer, Err(StoreError::Refused(_))), "{sql}: {answer:?}");
    };
    let id = redrive.id;
    db.execute_as_owner(&format!("UPDATE redrives SET after_id = 9, examined = 9 WHERE id = {id}"))
        .await
        .unwrap();
    refused(format!("UPDATE redrives SET after_id = 8 WHERE id = {id}")).await;
    refused(format!("UPDATE redrives SET examined = 8 WHERE id = {id}")).await;
    refused(format!("UPDATE redrives SET kind = 'events' WHERE id = {id}")).await;
    refused(format!("UPDATE redrives SET tenant = 'acme' WHERE id = {id}")).await;
    refused(format!("DELETE FROM redrives WHERE id = {id}")).await;
    stores.redrives.cancel(&ALL, id).await.unwrap();
    refused(format!("UPDATE redrives SET status = 'running' WHERE id = {id}")).await;
}
