//! Retention: old finished history is removed, whole events at a time, and nothing else ever is.

use super::{
    TestDatabase,
    fixture::{ALL, DEFAULT_LIMIT, TYPE, URL, append, external_id, new_event, only, verified},
    guards::refused,
    old_history::{
        DAY, HOUR, MINUTE, RETENTION, ago, last_id, old_delivery, old_event, old_letter, old_saga, sweep,
        tree,
    },
    rows::{changes, count, db_now, ids},
};
use hooksaga_saga::{DeadLetterId, EventId, Retention, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{
    Appended, DeadLetterFilter, EventPart, NewEvent, NewRedrive, RedriveWork, Removed, RequeueOutcome,
    RequeueStep, ResendOutcome, Role, RunningLimits, ScanStep, StartOutcome, Starter, StepLimits, StoreError,
};
use std::time::Duration;

pub async fn old_and_final_history_goes_with_all_that_belongs_to_it(db: &dyn TestDatabase) {
    old_delivery(db, 2 * HOUR).await;
    old_event(db, 2 * HOUR).await;
    let unmatched = old_event(db, 2 * HOUR).await;
    let sql = format!(
        "INSERT INTO unmatched_events (event_id, paused, disabled, unverified) VALUES ({unmatched}, 1, 0, 0)"
    );
    changes(db, &sql, 1).await;
    let requeued = old_event(db, 2 * DAY).await;
    let dead = old_saga(db, requeued, (1, 0), SagaStatus::DeadLettered, 2 * DAY).await;
    old_letter(db, dead, 2 * DAY).await;
    old_saga(db, requeued, (1, 1), SagaStatus::Completed, 2 * HOUR).await;
    old_saga(db, requeued, (2, 0), SagaStatus::Completed, 2 * DAY).await;
    assert_eq!(tree(db).await, [4, 4, 4, 1, 1, 0]);
    assert_eq!(count(db, "letter_heads").await, 1);

    let removed = sweep(&db.stores(), &RETENTION).await;
    assert_eq!(removed, Removed { events: 4, sagas: 4, jobs: 4, dead_letters: 1 });
    assert_eq!(tree(db).await, [0; 6]);
    assert_eq!(count(db, "letter_heads").await, 0, "with its letter");
    assert_eq!(sweep(&db.stores(), &RETENTION).await, Removed::default());
}

pub async fn what_is_open_young_or_waits_stays(db: &dyn TestDatabase) {
    let stores = db.stores();
    let open = old_event(db, 2 * DAY).await;
    old_saga(db, open, (1, 0), SagaStatus::Completed, 2 * DAY).await;
    old_saga(db, open, (2, 0), SagaStatus::Pending, 2 * DAY).await;
    let young = old_event(db, 2 * DAY).await;
    old_saga(db, young, (1, 0), SagaStatus::Completed, HOUR / 2).await;
    let queued = old_event(db, 2 * DAY).await;
    changes(db, &format!("INSERT INTO unrouted_events (event_id) VALUES ({queued})"), 1).await;
    let unburied = old_event(db, 2 * DAY).await;
    let dead = old_saga(db, unburied, (1, 0), SagaStatus::DeadLettered, 2 * DAY).await;
    changes(db, &format!("INSERT INTO pending_dead_letters (saga_id) VALUES ({dead})"), 1).await;
    let buried = old_event(db, 2 * DAY).await;
    let dead = old_saga(db, buried, (1, 0), SagaStatus::DeadLettered, 2 * DAY).await;
    old_letter(db, dead, 2 * HOUR).await;
    old_event(db, HOUR / 2).await;
    let before = tree(db).await;

    let found = stores.janitor.old_events(&RETENTION, ScanStep { after: None, limit: 100 }).await.unwrap();
    assert_eq!(
        (found.may_go.len(), found.kept, found.is_end),
        (0, 5, true),
        "the last is too young to be looked at"
    );
    let all: Vec<EventId> = ids(db, "SELECT id FROM events").await.into_iter().map(EventId).collect();
    // A clock that is ahead makes nothing older.
    for as_of in [db_now(db).await, Timestamp::MAX] {
        let removed = stores.janitor.remove(&all, RETENTION.as_of(as_of)).await.unwrap();
        assert_eq!(removed, Removed::default());
    }
    // However short the retention time, nothing is removed within a minute.
    let at_once = Retention { finished: Duration::ZERO, dead_letters: Some(Duration::ZERO) };
    old_delivery(db, MINUTE / 2).await;
    let last = [EventId(last_id(db, "events").await)];
    let now = db_now(db).await;
    assert_eq!(stores.janitor.remove(&last, at_once.as_of(now)).await.unwrap(), Removed::default());
    assert_eq!(tree(db).await, [before[0] + 1, before[1] + 1, before[2] + 1, before[3], 0, 0]);

    // Letters that are kept for good keep their events.
    let for_good = Retention { dead_letters: None, ..RETENTION };
    let shorter = Retention { dead_letters: Some(Duration::from_secs(HOUR)), ..RETENTION };
    assert_eq!(stores.janitor.remove(&[buried], for_good.as_of(now)).await.unwrap().events, 0);
    assert_eq!(stores.janitor.remove(&[buried], shorter.as_of(now)).await.unwrap().events, 1);
}

pub async fn what_stays_holds_up_nothing_behind_it(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut kept = Vec::new();
    for age in (2..6).rev() {
        let open = old_event(db, age * HOUR).await;
        old_saga(db, open, (1, 0), SagaStatus::Pending, age * HOUR).await;
        kept.push(open.0);
        old_delivery(db, age * HOUR).await;
    }
    let (mut after, mut seen) = (None, 0);
    loop {
        let found = stores.janitor.old_events(&RETENTION, ScanStep { after, limit: 1 }).await.unwrap();
        if found.is_end {
            break;
        }
        assert_eq!(found.may_go.len() + found.kept as usize, 1);
        let going: Vec<EventId> = found.may_go.iter().map(|event| event.id).collect();
        stores.janitor.remove(&going, RETENTION.as_of(found.as_of)).await.unwrap();
        after = found.last;
        seen += 1;
    }
    assert_eq!(seen, 8, "each once");
    assert_eq!(ids(db, "SELECT id FROM events ORDER BY id").await, kept);
}

pub async fn the_schema_lets_nothing_go_that_is_not_finished(db: &dyn TestDatabase) {
    let open = old_event(db, DAY).await;
    let open_saga = old_saga(db, open, (1, 0), SagaStatus::Pending, DAY).await;
    let young = old_event(db, DAY).await;
    let young_saga = old_saga(db, young, (1, 0), SagaStatus::Completed, MINUTE / 2).await;
    let queued = old_event(db, DAY).await;
    changes(db, &format!("INSERT INTO unrouted_events (event_id) VALUES ({queued})"), 1).await;
    let new = old_event(db, MINUTE / 2).await;
    let before = tree(db).await;
    let as_janitor = async |sql: String| {
        let refusal = db.execute_as(Role::HistoryJanitor, &sql).await;
        assert!(matches!(refusal, Err(StoreError::Refused(_))), "{sql}: {refusal:?}");
    };
    for event in [open, young, queued, new, EventId(999_999)] {
        as_janitor(format!("INSERT INTO removals (kind, subject_id) VALUES ('event', {event})")).await;
        as_janitor(format!("DELETE FROM events WHERE id = {event} OR id = {open}")).await;
    }
    for saga in [open_saga, young_saga] {
        as_janitor(format!("DELETE FROM webhook_delivery_sagas WHERE id = {saga}")).await;
    }
    as_janitor(format!("DELETE FROM webhook_delivery_jobs WHERE saga_id = {young_saga}")).await;
    assert_eq!(tree(db).await, before);
}

pub async fn the_schema_keeps_what_a_dead_letter_needs(db: &dyn TestDatabase) {
    let event = old_event(db, DAY).await;
    let saga = old_saga(db, event, (1, 0), SagaStatus::DeadLettered, DAY).await;
    old_letter(db, saga, DAY).await;
    let event_goes = format!("DELETE FROM events WHERE id = {event}");
    let saga_goes = format!("DELETE FROM webhook_delivery_sagas WHERE id = {saga}");
    let jobs_go = format!("DELETE FROM webhook_delivery_jobs WHERE saga_id = {saga}");
    let letter_goes = format!("DELETE FROM dead_letters WHERE saga_id = {saga}");
    // Nobody, not even the owner, removes what is not listed.
    for sql in [&event_goes, &saga_goes, &jobs_go, &letter_goes] {
        refused(db, sql).await;
    }
    let as_janitor = async |sql: &str| db.execute_as(Role::HistoryJanitor, sql).await;
    let listed = format!("INSERT INTO removals (kind, subject_id) VALUES ('event', {event})");
    assert_eq!(as_janitor(&listed).await.unwrap(), 1);
    refused(db, "UPDATE removals SET subject_id = subject_id + 1").await;
    // What is listed is deleted from the letter to the event, and in no other order.
    for sql in [&event_goes, &saga_goes, &jobs_go] {
        assert!(matches!(as_janitor(sql).await, Err(StoreError::Refused(_))), "{sql}");
    }
    assert_eq!(as_janitor(&letter_goes).await.unwrap(), 1);
    for sql in [&event_goes, &saga_goes] {
        assert!(matches!(as_janitor(sql).await, Err(StoreError::Refused(_))), "{sql}");
    }
    assert_eq!(as_janitor(&jobs_go).await.unwrap(), 1);
    assert!(matches!(as_janitor(&event_goes).await, Err(StoreError::Refused(_))));
    assert_eq!(as_janitor(&saga_goes).await.unwrap(), 1);
    assert_eq!(as_janitor(&event_goes).await.unwrap(), 1);
    assert_eq!(as_janitor("DELETE FROM removals").await.unwrap(), 1);
    assert_eq!(tree(db).await, [0; 6]);
}

pub async fn an_external_id_is_remembered_as_long_as_its_event(db: &dyn TestDatabase) {
    let stores = db.stores();
    let at = ago(db, DAY).await;
    let event = NewEvent { external_id: Some(external_id("x-1")), ..new_event(TYPE) };
    let sql = format!(
        "INSERT INTO events (tenant, event_type, created_at, payload, external_id, correlation_id) \
         VALUES ('default', '{TYPE}', {at}, '{}', 'x-1', 'c-1')",
        event.payload
    );
    changes(db, &sql, 1).await;
    let id = EventId(last_id(db, "events").await);
    let again = only(stores.ingest.append(std::slice::from_ref(&event)).await.unwrap());
    assert!(matches!(&again, Appended::Duplicate(head) if head.id == id), "{again:?}");
    assert_eq!(sweep(&stores, &RETENTION).await.events, 1);
    let new = append(&stores, event).await;
    assert!(new.id > id, "{} after {id}", new.id);
}

pub async fn no_id_is_given_out_again(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await.0;
    let event = old_event(db, DAY).await;
    let saga = old_saga(db, event, (subscription, 0), SagaStatus::DeadLettered, 2 * DAY).await;
    old_letter(db, saga, 2 * DAY).await;
    let (job, letter) = (last_id(db, "webhook_delivery_jobs").await, last_id(db, "dead_letters").await);
    assert_eq!(sweep(&stores, &RETENTION).await.events, 1);
    assert_eq!(tree(db).await, [0; 6]);
    // The rows with the largest ids are gone. New rows get larger ids all the same, also from another process.
    let other = db.second_instance().await;
    let next = append(&other, new_event(TYPE)).await.id;
    assert!(next > event, "{next} after {event}");
    let next_saga = old_saga(db, next, (subscription, 0), SagaStatus::DeadLettered, 2 * DAY).await;
    old_letter(db, next_saga, 2 * DAY).await;
    assert!(next_saga > saga, "{next_saga} after {saga}");
    assert!(last_id(db, "webhook_delivery_jobs").await > job);
    assert!(last_id(db, "dead_letters").await > letter);
}

pub async fn an_event_with_many_deliveries_goes_in_bounded_steps(db: &dyn TestDatabase) {
    let stores = db.stores();
    let event = old_event(db, DAY).await;
    for subscription in 1..=7 {
        old_saga(db, event, (subscription, 0), SagaStatus::Completed, DAY).await;
    }
    let looked = stores.janitor.old_events(&RETENTION, ScanStep { after: None, limit: 10 }).await.unwrap();
    let found = only(looked.may_go);
    assert_eq!((found.id, found.rows), (event, 15), "itself, seven sagas, seven jobs");
    let mut after = None;
    let mut step = async || {
        let part = stores
            .janitor
            .remove_part(EventPart { event, after, limit: 3 }, RETENTION.as_of(looked.as_of))
            .await
            .unwrap();
        after = part.resume_after;
        let removed = part.removed;
        (removed.events, removed.sagas, removed.jobs, after.map(|place| place.subscription_id.0))
    };
    assert_eq!([step().await, step().await], [(0, 3, 3, Some(3)), (0, 3, 3, Some(6))]);
    assert_eq!(tree(db).await, [1, 1, 1, 0, 0, 1], "it stays listed while some of it is left");
    assert_eq!(step().await, (1, 1, 1, None));
    assert_eq!(tree(db).await, [0; 6]);
    assert_eq!(step().await, (0, 0, 0, None), "nothing is left");
}

pub async fn what_is_young_open_or_changed_goes_in_no_step(db: &dyn TestDatabase) {
    let stores = db.stores();
    let event = old_event(db, DAY).await;
    for subscription in 1..=3 {
        old_saga(db, event, (subscription, 0), SagaStatus::Completed, DAY).await;
    }
    let step = async |as_of, after| {
        let part = stores
            .janitor
            .remove_part(EventPart { event, after, limit: 1 }, RETENTION.as_of(as_of))
            .await
            .unwrap();
        (part.removed.sagas, part.resume_after)
    };
    let now = db_now(db).await;
    assert_eq!(step(now.before(Duration::from_secs(DAY)), None).await, (0, None), "not as old as that then");
    let (removed, after) = step(now, None).await;
    assert_eq!((removed, after.is_some()), (1, true));
    // An insert that does not check the list.
    old_saga(db, event, (2, 1), SagaStatus::Completed, HOUR / 2).await;
    let (removed, after) = step(now, after).await;
    assert_eq!((removed, after.is_some()), (1, true));
    assert_eq!(step(now, after).await, (0, None), "too young, whatever was decided before");
    assert_eq!(tree(db).await, [1, 2, 2, 0, 0, 1]);
    let all = stores.janitor.remove(&[event], RETENTION.as_of(now)).await.unwrap();
    assert_eq!(all, Removed::default());
}

pub async fn what_is_being_removed_is_not_sent_again(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await;
    let other = verified(&stores, TYPE, "https://other.example/").await;
    let event = old_event(db, 2 * DAY).await;
    old_saga(db, event, (subscription.0, 0), SagaStatus::Completed, 2 * DAY).await;
    let dead = old_saga(db, event, (other.0, 0), SagaStatus::DeadLettered, 2 * DAY).await;
    old_letter(db, dead, 2 * DAY).await;
    let letter = DeadLetterId(last_id(db, "dead_letters").await);
    let whole = old_event(db, DAY).await;
    let now = db_now(db).await;
    let part = stores
        .janitor
        .remove_part(EventPart { event, after: None, limit: 1 }, RETENTION.as_of(now))
        .await
        .unwrap();
    assert_eq!((part.removed.sagas, part.removed.events), (1, 0));

    // Neither the remaining delivery nor its letter is sent again, alone or with others.
    let resent = stores.dead_letters.resend(&ALL, dead, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(resent, ResendOutcome::NotFound), "{resent:?}");
    let requeued = stores.dead_letters.requeue(&ALL, letter, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(requeued, RequeueOutcome::NotFound), "{requeued:?}");
    let step = RequeueStep {
        filter: DeadLetterFilter::default(),
        after: None,
        requeue: 10,
        examine: 10,
        dry_run: false,
        default_limit: DEFAULT_LIMIT,
    };
    assert_eq!(stores.dead_letters.requeue_step(&ALL, &step).await.unwrap().requeued, 0);
    // Nor is the event sent to the subscription whose saga is gone; only the complete event is.
    let since = now.before(Duration::from_secs(3 * DAY));
    let work = RedriveWork::Events { subscription_id: subscription, since, until: None };
    let starter = Starter { key_id: None, name: "somebody".to_owned() };
    let limits = RunningLimits { in_all: 10, for_tenants: 10, of_a_tenant: 10 };
    let started = stores
        .redrives
        .start(NewRedrive { scope: &ALL, work: &work, starter: &starter }, limits)
        .await
        .unwrap();
    assert!(matches!(started, StartOutcome::Started(_)), "{started:?}");
    let limits = StepLimits { examine: 10, create: 10, default_limit: DEFAULT_LIMIT };
    let step = stores.redrives.advance(limits).await.unwrap().unwrap();
    assert_eq!((step.created(), step.skipped), (1, 1));
    assert_eq!(count(db, &format!("webhook_delivery_sagas WHERE event_id = {whole}")).await, 1);
    assert_eq!(count(db, &format!("webhook_delivery_sagas WHERE event_id = {event}")).await, 1);

    let rest = stores
        .janitor
        .remove_part(EventPart { event, after: part.resume_after, limit: 10 }, RETENTION.as_of(now))
        .await
        .unwrap();
    assert_eq!((rest.removed.events, rest.removed.dead_letters), (1, 1));
    assert_eq!(count(db, "removals").await, 0);
}

pub async fn two_janitors_at_once_remove_each_event_once(db: &dyn TestDatabase) {
    let (one, two) = (db.stores(), db.second_instance().await);
    let mut events = Vec::new();
    for _ in 0..20 {
        events.push(old_delivery(db, DAY).await);
    }
    let now = db_now(db).await;
    let (first, second) = tokio::join!(
        one.janitor.remove(&events, RETENTION.as_of(now)),
        two.janitor.remove(&events, RETENTION.as_of(now))
    );
    assert_eq!(first.unwrap().events + second.unwrap().events, 20);
    assert_eq!(tree(db).await, [0; 6]);
}

pub async fn what_is_sent_again_meanwhile_stays(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await.0;
    let event = old_event(db, DAY).await;
    let saga = old_saga(db, event, (subscription, 0), SagaStatus::Completed, DAY).await;
    let found = stores.janitor.old_events(&RETENTION, ScanStep { after: None, limit: 10 }).await.unwrap();
    assert_eq!(only(found.may_go).id, event);
    let resent = stores.dead_letters.resend(&ALL, saga, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(resent, ResendOutcome::Created(..)), "{resent:?}");
    let removed = stores.janitor.remove(&[event], RETENTION.as_of(found.as_of)).await.unwrap();
    assert_eq!(removed, Removed::default());
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);

    // It was found three hours ago, then sent again, and final two hours ago: it is old enough by now, but not what was
    // found.
    let event = old_event(db, DAY).await;
    old_saga(db, event, (subscription, 0), SagaStatus::Completed, DAY).await;
    old_saga(db, event, (subscription, 1), SagaStatus::Completed, 2 * HOUR).await;
    let now = db_now(db).await;
    let remove =
        async |as_of: Timestamp| stores.janitor.remove(&[event], RETENTION.as_of(as_of)).await.unwrap();
    assert_eq!(remove(now.before(Duration::from_secs(3 * HOUR))).await, Removed::default());
    assert_eq!(count(db, "webhook_delivery_sagas").await, 4);
    assert_eq!(remove(now).await, Removed { events: 1, sagas: 2, jobs: 2, dead_letters: 0 });
}

pub async fn an_event_is_never_sent_again_and_removed_at_once(db: &dyn TestDatabase) {
    let (stores, other) = (db.stores(), db.second_instance().await);
    let subscription = verified(&stores, TYPE, URL).await.0;
    for _ in 0..15 {
        let event = old_event(db, DAY).await;
        let saga = old_saga(db, event, (subscription, 0), SagaStatus::Completed, DAY).await;
        let (events, now) = ([event], db_now(db).await);
        let (resent, removed) = tokio::join!(
            stores.dead_letters.resend(&ALL, saga, DEFAULT_LIMIT),
            other.janitor.remove(&events, RETENTION.as_of(now))
        );
        let (resent, removed) = (resent.unwrap(), removed.unwrap());
        let left = count(db, &format!("webhook_delivery_sagas WHERE event_id = {event}")).await;
        let events = count(db, &format!("events WHERE id = {event}")).await;
        match resent {
            ResendOutcome::Created(..) => assert_eq!((removed.events, events, left), (0, 1, 2)),
            ResendOutcome::NotFound => assert_eq!((removed.events, events, left), (1, 0, 0)),
            unexpected => panic!("{unexpected:?}"),
        }
    }
}

pub async fn what_is_archived_is_all_that_there_is(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await.0;
    let (first, second) = (old_event(db, DAY).await, old_event(db, DAY).await);
    old_saga(db, second, (999, 0), SagaStatus::Completed, DAY).await;
    let dead = old_saga(db, first, (subscription, 0), SagaStatus::DeadLettered, DAY).await;
    old_letter(db, dead, DAY).await;
    let requeued = old_saga(db, first, (subscription, 1), SagaStatus::Completed, DAY).await;

    let events = stores.janitor.archived_events(&[second, first, EventId(999_999)]).await.unwrap();
    let heads: Vec<_> =
        events.iter().map(|event| (event.id, &*event.payload, &*event.correlation_id)).collect();
    assert_eq!(heads, [(first, r#"{"n": 1}"#, "c-1"), (second, r#"{"n": 1}"#, "c-1")]);

    let deliveries = stores.janitor.archived_deliveries(&[first, second]).await.unwrap();
    let keys: Vec<_> = deliveries.iter().map(|one| (one.event_id, one.place())).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(keys, sorted, "by event, subscription and generation");
    // The same by pages.
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = stores.janitor.archived_page(EventPart { event: first, after, limit: 1 }).await.unwrap();
        let Some(last) = page.last() else { break };
        assert_eq!(page.len(), 1);
        after = Some(last.place());
        paged.extend(page);
    }
    let second_page =
        stores.janitor.archived_page(EventPart { event: second, after: None, limit: 10 }).await.unwrap();
    assert_eq!((paged.len(), second_page.len()), (2, 1));
    paged.extend(second_page);
    assert_eq!(paged, deliveries);
    assert_eq!(deliveries.len(), 3);
    let of_dead = deliveries.iter().find(|delivery| delivery.saga_id == dead).unwrap();
    assert_eq!((of_dead.event_id, of_dead.subscription_id), (first, SubscriptionId(subscription)));
    assert_eq!((of_dead.callback_url.as_str(), of_dead.status), (URL, SagaStatus::DeadLettered));
    let attempt = only(of_dead.attempts.clone());
    assert_eq!(attempt.error_code.unwrap().as_str(), "HTTP_500");
    let letter = of_dead.dead_letter.as_ref().unwrap();
    assert_eq!((letter.requeued_saga_id, letter.final_error_code.as_str()), (Some(requeued), "HTTP_500"));
    let other = deliveries.iter().find(|delivery| delivery.event_id == second).unwrap();
    assert_eq!(
        (other.callback_url.as_str(), other.dead_letter.is_none()),
        ("", true),
        "no such subscription"
    );
    assert_eq!(only(other.attempts.clone()).response_status, Some(204));
}
