//! Retention: finished history goes when it is old, whole events at a time, and nothing else ever goes.

use super::{
    TestDatabase,
    aged::{
        DAY, HOUR, MINUTE, RETENTION, ago, last_id, old_delivery, old_event, old_letter, old_saga, sweep,
        tree,
    },
    fixture::{
        ALL, DEFAULT_LIMIT, TYPE, URL, append, external_id, new_event, only, scope, verified, verified_for,
    },
    guards::refused,
    rows::{changes, count, db_now, ids},
};
use hooksaga_saga::{DeadLetterId, EventId, Retention, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{
    Appended, DeadLetterFilter, NewApiKey, NewEvent, RedriveWork, Removed, RequeueOutcome, RequeueStep,
    ResendOutcome, Role, RunningLimits, Scopes, StartOutcome, Starter, StepLimits, StoreError, Stores,
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

    let removed = sweep(&db.stores(), &RETENTION).await;
    assert_eq!(removed, Removed { events: 4, sagas: 4, jobs: 4, dead_letters: 1 });
    assert_eq!(tree(db).await, [0; 6]);
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

    let found = stores.janitor.old_events(&RETENTION, None, 100).await.unwrap();
    assert_eq!(
        (found.may_go.len(), found.kept, found.is_end),
        (0, 5, true),
        "the last is too young to be looked at"
    );
    let all: Vec<EventId> = ids(db, "SELECT id FROM events").await.into_iter().map(EventId).collect();
    // A clock that is ahead makes nothing older than it is.
    for as_of in [db_now(db).await, Timestamp::MAX] {
        let removed = stores.janitor.remove(&all, &RETENTION, as_of).await.unwrap();
        assert_eq!(removed, Removed::default());
    }
    // However short the time, nothing goes within a minute.
    let at_once = Retention { finished: Duration::ZERO, dead_letters: Some(Duration::ZERO) };
    old_delivery(db, MINUTE / 2).await;
    let last = [EventId(last_id(db, "events").await)];
    let now = db_now(db).await;
    assert_eq!(stores.janitor.remove(&last, &at_once, now).await.unwrap(), Removed::default());
    assert_eq!(tree(db).await, [before[0] + 1, before[1] + 1, before[2] + 1, before[3], 0, 0]);

    // Letters that are kept for good keep their events.
    let for_good = Retention { dead_letters: None, ..RETENTION };
    let shorter = Retention { dead_letters: Some(Duration::from_secs(HOUR)), ..RETENTION };
    assert_eq!(stores.janitor.remove(&[buried], &for_good, now).await.unwrap().events, 0);
    assert_eq!(stores.janitor.remove(&[buried], &shorter, now).await.unwrap().events, 1);
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
        let found = stores.janitor.old_events(&RETENTION, after, 1).await.unwrap();
        if found.is_end {
            break;
        }
        assert_eq!(found.may_go.len() + found.kept as usize, 1);
        let going: Vec<EventId> = found.may_go.iter().map(|event| event.id).collect();
        stores.janitor.remove(&going, &RETENTION, found.as_of).await.unwrap();
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
    // What is listed goes from the letter to the event, and in no other order.
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
    // The largest ids there were are gone; what comes gets larger ones all the same, from another process too.
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
    let looked = stores.janitor.old_events(&RETENTION, None, 10).await.unwrap();
    let found = only(looked.may_go);
    assert_eq!((found.id, found.rows), (event, 15), "itself, seven sagas, seven jobs");
    let mut after = None;
    let mut step = async || {
        let part = stores.janitor.remove_part(event, &RETENTION, looked.as_of, after, 3).await.unwrap();
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
        let part = stores.janitor.remove_part(event, &RETENTION, as_of, after, 1).await.unwrap();
        (part.removed.sagas, part.resume_after)
    };
    let now = db_now(db).await;
    assert_eq!(step(now.before(Duration::from_secs(DAY)), None).await, (0, None), "not as old as that then");
    let (removed, after) = step(now, None).await;
    assert_eq!((removed, after.is_some()), (1, true));
    // As somebody who does not look at the list would make it.
    old_saga(db, event, (2, 1), SagaStatus::Completed, HOUR / 2).await;
    let (removed, after) = step(now, after).await;
    assert_eq!((removed, after.is_some()), (1, true));
    assert_eq!(step(now, after).await, (0, None), "too young, whatever was decided before");
    assert_eq!(tree(db).await, [1, 2, 2, 0, 0, 1]);
    let all = stores.janitor.remove(&[event], &RETENTION, now).await.unwrap();
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
    let part = stores.janitor.remove_part(event, &RETENTION, now, None, 1).await.unwrap();
    assert_eq!((part.removed.sagas, part.removed.events), (1, 0));

    // Not the delivery that is left, nor its letter, one by one or with others.
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
    // Nor, to the subscription whose saga is gone, the event: only the one that is whole.
    let since = now.before(Duration::from_secs(3 * DAY));
    let work = RedriveWork::Events { subscription_id: subscription, since, until: None };
    let starter = Starter { key_id: None, name: "somebody".to_owned() };
    let limits = RunningLimits { in_all: 10, for_tenants: 10, of_a_tenant: 10 };
    let started = stores.redrives.start(&ALL, &work, &starter, limits).await.unwrap();
    assert!(matches!(started, StartOutcome::Started(_)), "{started:?}");
    let limits = StepLimits { examine: 10, create: 10, default_limit: DEFAULT_LIMIT };
    let step = stores.redrives.advance(limits).await.unwrap().unwrap();
    assert_eq!((step.created(), step.skipped), (1, 1));
    assert_eq!(count(db, &format!("webhook_delivery_sagas WHERE event_id = {whole}")).await, 1);
    assert_eq!(count(db, &format!("webhook_delivery_sagas WHERE event_id = {event}")).await, 1);

    let rest = stores.janitor.remove_part(event, &RETENTION, now, part.resume_after, 10).await.unwrap();
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
        one.janitor.remove(&events, &RETENTION, now),
        two.janitor.remove(&events, &RETENTION, now)
    );
    assert_eq!(first.unwrap().events + second.unwrap().events, 20);
    assert_eq!(tree(db).await, [0; 6]);
}

pub async fn what_is_sent_again_meanwhile_stays(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, URL).await.0;
    let event = old_event(db, DAY).await;
    let saga = old_saga(db, event, (subscription, 0), SagaStatus::Completed, DAY).await;
    let found = stores.janitor.old_events(&RETENTION, None, 10).await.unwrap();
    assert_eq!(only(found.may_go).id, event);
    let resent = stores.dead_letters.resend(&ALL, saga, DEFAULT_LIMIT).await.unwrap();
    assert!(matches!(resent, ResendOutcome::Created(..)), "{resent:?}");
    let removed = stores.janitor.remove(&[event], &RETENTION, found.as_of).await.unwrap();
    assert_eq!(removed, Removed::default());
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);

    // Found three hours ago, sent again and final two hours ago: old enough by now, and not what was found.
    let event = old_event(db, DAY).await;
    old_saga(db, event, (subscription, 0), SagaStatus::Completed, DAY).await;
    old_saga(db, event, (subscription, 1), SagaStatus::Completed, 2 * HOUR).await;
    let now = db_now(db).await;
    let remove = async |as_of: Timestamp| stores.janitor.remove(&[event], &RETENTION, as_of).await.unwrap();
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
            other.janitor.remove(&events, &RETENTION, now)
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

pub async fn old_records_go_and_young_ones_stay(db: &dyn TestDatabase) {
    let stores = db.stores();
    for (age, ends) in [(2 * HOUR, true), (2 * HOUR, false), (HOUR / 2, true)] {
        let at = ago(db, age).await;
        let sql = format!(
            "INSERT INTO redrives (kind, until, started_by, created_at, updated_at) \
             VALUES ('events', {at}, 'somebody', {at}, {at})"
        );
        changes(db, &sql, 1).await;
        let id = last_id(db, "redrives").await;
        if ends {
            changes(db, &format!("UPDATE redrives SET status = 'done' WHERE id = {id}"), 1).await;
        }
        let sql =
            format!("INSERT INTO audit_records (at, key_name, action, target) VALUES ({at}, 'k', 'a', 't')");
        changes(db, &sql, 1).await;
        // Hours stay two days at least: statistics are made of them.
        let hour = ago(db, if age > HOUR { 3 * DAY } else { DAY }).await;
        let sql = format!(
            "INSERT INTO delivery_hours (hour, subscription_id, delivered, failed, dead_lettered) \
             VALUES ({hour}, 1, 1, 1, 1)"
        );
        changes(db, &sql, 1).await;
    }
    let first = only(ids(db, "SELECT min(id) FROM redrives").await);
    refused(db, &format!("DELETE FROM redrives WHERE id = {first}")).await;
    refused(db, "DELETE FROM audit_records").await;
    let running = format!("INSERT INTO removals (kind, subject_id) VALUES ('redrive', {})", first + 1);
    let refusal = db.execute_as(Role::HistoryJanitor, &running).await;
    assert!(matches!(refusal, Err(StoreError::Refused(_))), "{refusal:?}");

    let removed = stores.janitor.remove_records(Some(RETENTION.finished), 10).await.unwrap();
    assert_eq!((removed.redrives, removed.audit_records, removed.hours), (1, 2, 2));
    let left =
        [count(db, "redrives").await, count(db, "audit_records").await, count(db, "delivery_hours").await];
    assert_eq!(left, [2, 1, 1]);
    assert_eq!(count(db, "removals").await, 0);
    let again = stores.janitor.remove_records(Some(RETENTION.finished), 10).await.unwrap();
    assert_eq!((again.redrives, again.audit_records, again.hours), (0, 0, 0));
}

pub async fn keys_go_a_while_after_they_expired_and_no_others(db: &dyn TestDatabase) {
    let stores = db.stores();
    for (n, expired_days_ago) in [Some(8_u64), Some(9), Some(6), None, Some(30)].into_iter().enumerate() {
        let expires_at = match expired_days_ago {
            Some(days) => ago(db, days * DAY).await,
            None => "NULL".to_owned(),
        };
        let sha256 = db.dialect().bytes(&[u8::try_from(n).unwrap(); 32]);
        let at = ago(db, 60 * DAY).await;
        let sql = format!(
            "INSERT INTO api_keys (name, scopes, sha256, created_at, expires_at, by_admin) \
             VALUES ('key {n}', 'read', {sha256}, {at}, {expires_at}, TRUE)"
        );
        changes(db, &sql, 1).await;
    }
    let newest = ids(db, "SELECT max(id) FROM api_keys").await[0];
    refused(db, "DELETE FROM api_keys WHERE expires_at IS NULL").await;
    // Also where history stays for good, and in bounded steps.
    let step = async || stores.janitor.remove_records(None, 2).await.unwrap().keys;
    assert_eq!([step().await, step().await, step().await], [2, 1, 0]);
    let left = db.query_text("SELECT name FROM api_keys ORDER BY id").await.unwrap();
    let left: Vec<_> = left.iter().filter_map(|row| row[0].as_deref()).collect();
    assert_eq!(left, ["key 2", "key 3"], "one that expired lately, and one that never does");
    // Audit records name keys by their ids.
    let next = NewApiKey {
        name: "next".to_owned(),
        scopes: Scopes::all(),
        sha256: [100; 32],
        tenant: None,
        expires_in: None,
    };
    assert!(stores.keys.create(&next).await.unwrap().id.0 > newest, "no id is given twice");
}

/// A count of a minute: delivered 1, failed 10, dead-lettered 100.
async fn counted(db: &dyn TestDatabase, at: i64, subscription: i64, shard: u32) {
    let at = db.dialect().time(Timestamp::from_micros(at));
    let sql = format!(
        "INSERT INTO delivery_counts (minute, subscription_id, shard, delivered, failed, dead_lettered) \
         VALUES ({at}, {subscription}, {shard}, 1, 10, 100)"
    );
    changes(db, &sql, 1).await;
}

/// Sums up all there is. Returns the number of steps.
async fn roll_up(stores: &Stores, limit: u32) -> u32 {
    let mut steps = 1;
    while stores.janitor.roll_up_counts(limit).await.unwrap() {
        steps += 1;
    }
    steps
}

pub async fn counts_of_minutes_become_counts_of_hours(db: &dyn TestDatabase) {
    let stores = db.stores();
    let now = db_now(db).await.as_micros();
    let hour = 3_600_000_000;
    let old_hour = now - now % hour - 72 * hour;
    let minute = |n: i64| old_hour + n * 60_000_000;
    let (past, present) = (now - now % hour - 2 * hour, now - now % 60_000_000);
    for (at, subscription, shard) in [
        (minute(0), 1, 0),
        (minute(0), 1, 1),
        (minute(59), 1, 0),
        (minute(60), 1, 0),
        (minute(5), 2, 0),
        (minute(5), 9, 0),
        (past, 1, 0),
        (present, 1, 0),
    ] {
        counted(db, at, subscription, shard).await;
    }
    let steps = roll_up(&stores, 2).await;
    assert!(steps >= 6, "a minute, three steps of hours, three of removals: {steps}");
    let left = format!("delivery_counts WHERE minute >= {}", db.dialect().time(Timestamp::from_micros(past)));
    assert_eq!([count(db, "delivery_counts").await, count(db, &left).await], [2; 2], "two days stay");
    let sql = format!(
        "SELECT {}, subscription_id, delivered, failed, dead_lettered FROM delivery_hours ORDER BY hour, subscription_id",
        db.dialect().micros("hour")
    );
    let hours = db.query_text(&sql).await.unwrap();
    let hours: Vec<Vec<i64>> =
        hours.iter().map(|row| row.iter().map(|n| n.as_ref().unwrap().parse().unwrap()).collect()).collect();
    let expected = [
        vec![old_hour, 1, 3, 30, 300],
        vec![old_hour, 2, 1, 10, 100],
        vec![old_hour, 9, 1, 10, 100],
        vec![old_hour + hour, 1, 1, 10, 100],
        vec![past, 1, 1, 10, 100],
    ];
    assert_eq!(hours, expected, "whole past hours, and not the present one");
    assert_eq!(roll_up(&stores, 2).await, 1, "once is enough");
}

pub async fn statistics_are_the_same_however_much_is_summed_up(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mine = verified_for(&stores, "acme", TYPE, URL).await.0;
    let other = verified(&stores, TYPE, "https://other.example/").await.0;
    let now = db_now(db).await.as_micros();
    let this_minute = now - now % 60_000_000;
    for minutes_ago in [0, 2, 7, 8, 60, 61, 170, 185, 300, 301, 700, 1380, 1435, 1445, 1500] {
        let at = this_minute - minutes_ago * 60_000_000;
        for shard in 0..2 {
            counted(db, at, mine, shard).await;
        }
        counted(db, at, other, 0).await;
        // Of a subscription that is not there, and so of no tenant.
        counted(db, at, other + 7, 0).await;
    }
    let shown = async |scope| {
        let stats = stores.reader.stats(&scope).await.unwrap();
        (stats.minutes, stats.subscriptions)
    };
    let before = (shown(ALL).await, shown(scope("acme")).await, shown(scope("nobody")).await);
    let (_, subscriptions) = &before.0;
    let delivered: Vec<u64> = subscriptions.iter().map(|one| one.delivered).collect();
    assert_eq!((delivered, before.0.0.len()), (vec![26, 13, 13], 7), "24 hours, and three");
    assert_eq!((before.1.1.len(), before.1.1[0].delivered, before.1.0[0].delivered), (1, 26, 2));
    assert_eq!(before.2, (vec![], vec![]));

    // However far it came.
    loop {
        let more = stores.janitor.roll_up_counts(1).await.unwrap();
        let after = (shown(ALL).await, shown(scope("acme")).await, shown(scope("nobody")).await);
        assert_eq!(after, before);
        if !more {
            break;
        }
    }
    // Whole hours are read, not their minutes; the hour that ended three hours ago has been summed up.
    let whole = Timestamp::from_micros(now - now % 3_600_000_000 - 3 * 3_600_000_000);
    let whole = db.dialect().time(whole);
    let day = db.dialect().time(Timestamp::from_micros(now - 22 * 3_600_000_000));
    db.execute_as_owner(&format!("DELETE FROM delivery_counts WHERE minute < {whole} AND minute > {day}"))
        .await
        .unwrap();
    assert_eq!(shown(ALL).await, before.0);
    assert_eq!(shown(scope("acme")).await, before.1);
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
        let page = stores.janitor.archived_page(first, after, 1).await.unwrap();
        let Some(last) = page.last() else { break };
        assert_eq!(page.len(), 1);
        after = Some(last.place());
        paged.extend(page);
    }
    let second_page = stores.janitor.archived_page(second, None, 10).await.unwrap();
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
