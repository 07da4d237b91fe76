//! Runs of failures, their consequences, and the announcements to operators.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, MANY, MUCH_LATER, TYPE, URL, append, append_many, apply, claim, correlation,
        deliver_round, event_type, external_id, failed, new_event, only, route, schedule_and_mark,
        set_active, tenant, url, verified, verified_for,
    },
    results::queue_again,
    rows::{all_rows, changes, count, db_now, ids},
};
use hooksaga_saga::{DisabledReason, ErrorCode, SubscriptionId, Timestamp};
use hooksaga_store::{
    Announcement, AnnouncementKind, Cause, Disable, JobReport, LeaseToken, NewEvent, ScanStep, Stores,
    SubscriptionPatch,
};
use std::{sync::Arc, time::Duration};

const HOUR: Duration = Duration::from_secs(3600);

/// One attempt of every due saga of one new event, which ends with this code.
async fn attempt(stores: &Stores, code: Option<ErrorCode>) {
    append(stores, new_event(TYPE)).await;
    route(stores).await;
    deliver_round(stores, code, MUCH_LATER).await;
}

/// One attempt, to which the endpoint at `said_by` responds with 410.
async fn goes(stores: &Stores, said_by: &str) {
    append(stores, new_event(TYPE)).await;
    route(stores).await;
    schedule_and_mark(stores).await;
    let job = only(claim(stores, LeaseToken(7)).await.jobs);
    let gone = failed(job.as_ref(), ErrorCode::http(410));
    stores.worker.report(&[JobReport { callback_url: Some(said_by.to_owned()), ..gone }]).await.unwrap();
    apply(stores, AT_ONCE).await;
}

/// The run of one subscription: whether there is one, and its failures.
async fn run_of(db: &dyn TestDatabase, id: SubscriptionId) -> Option<(bool, i64)> {
    let sql = format!(
        "SELECT CASE WHEN since IS NULL THEN 0 ELSE 1 END, failures FROM endpoint_failures WHERE subscription_id = {id}"
    );
    let rows = db.query_text(&sql).await.unwrap();
    let number = |text: &Option<String>| text.as_ref().unwrap().parse::<i64>().unwrap();
    rows.first().map(|row| (number(&row[0]) == 1, number(&row[1])))
}

/// Moves the beginning of a run to an hour before its last failure.
async fn prolong(db: &dyn TestDatabase, id: SubscriptionId) -> Timestamp {
    let since = Timestamp::from_micros(db_now(db).await.as_micros() - 3_600_000_000);
    let set = db.dialect().time(since);
    changes(db, &format!("UPDATE endpoint_failures SET since = {set} WHERE subscription_id = {id}"), 1).await;
    since
}

fn event_of(news: &Announcement) -> NewEvent {
    let kind = news.kind.as_str();
    NewEvent {
        tenant: tenant("hooksaga"),
        event_type: event_type(&format!("hooksaga.subscription.{kind}")),
        payload: Arc::from("{}"),
        external_id: Some(external_id(&format!("{kind}-{}-{}", news.subscription_id, news.at.as_micros()))),
        correlation_id: correlation("c-1"),
    }
}

/// Deletes the notes so far, such as that a subscription was verified.
async fn clear(stores: &Stores) {
    while stores.caretaker.note_verified(100).await.unwrap() > 0 {}
    let noted = stores.caretaker.announcements(MANY).await.unwrap();
    let events: Vec<_> = noted.into_iter().map(|one| (one.clone(), event_of(&one))).collect();
    stores.caretaker.announce(&events).await.unwrap();
    route(stores).await;
}

pub async fn failures_are_counted_until_a_success(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    attempt(&stores, None).await;
    assert_eq!(run_of(db, id).await, None, "who never failed has no row");
    for _ in 0..3 {
        attempt(&stores, Some(ErrorCode::http(500))).await;
    }
    assert_eq!(run_of(db, id).await, Some((true, 3)));
    let page =
        stores.caretaker.troubled(Duration::ZERO, ScanStep { after: None, limit: MANY }).await.unwrap();
    let found = only(page.items);
    assert_eq!((found.subscription_id, found.run.failures, found.run.announced), (id, 3, false));
    assert!(found.run.since <= found.run.last_at && page.resume_after.is_none());

    attempt(&stores, None).await;
    assert_eq!(run_of(db, id).await, Some((false, 0)));
    assert_eq!(
        stores.caretaker.troubled(Duration::ZERO, ScanStep { after: None, limit: MANY }).await.unwrap().items,
        []
    );
    attempt(&stores, Some(ErrorCode::TIMEOUT)).await;
    assert_eq!(run_of(db, id).await, Some((true, 1)));
    let last = "SELECT last_error_code FROM endpoint_failures";
    assert_eq!(only(db.query_text(last).await.unwrap()), [Some("TIMEOUT".to_owned())]);
}

/// A count at its maximum stays there, and later results are applied all the same.
pub async fn the_count_of_failures_has_an_end(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    attempt(&stores, Some(ErrorCode::http(500))).await;
    let most = i64::from(i32::MAX);
    let sql = format!("UPDATE endpoint_failures SET failures = {} WHERE subscription_id = {id}", most - 1);
    changes(db, &sql, 1).await;
    for _ in 0..3 {
        attempt(&stores, Some(ErrorCode::http(500))).await;
        assert_eq!(run_of(db, id).await, Some((true, most)));
    }
}

pub async fn what_was_not_sent_says_nothing_about_its_endpoint(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    for code in [ErrorCode::LEASE_EXHAUSTED, ErrorCode::INTERNAL] {
        attempt(&stores, Some(code)).await;
    }
    assert_eq!(run_of(db, id).await, None);
}

pub async fn a_result_applied_again_is_counted_once(db: &dyn TestDatabase) {
    let (stores, other) = (db.stores(), db.second_instance().await);
    let id = verified(&stores, TYPE, URL).await;
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let job = only(claim(&stores, LeaseToken(7)).await.jobs).as_ref();
    stores.worker.report(&[failed(job, ErrorCode::http(500))]).await.unwrap();
    let (a, b) = tokio::join!(apply(&stores, MUCH_LATER), apply(&other, MUCH_LATER));
    let applied = only([a.results, b.results].concat());
    assert!(applied.changed);
    assert_eq!(run_of(db, id).await, Some((true, 1)));
    // If it is queued again, it is applied again, which changes nothing.
    for stores in [&stores, &other] {
        queue_again(db, job.job_id).await;
        assert!(!only(apply(stores, MUCH_LATER).await.results).changed);
        assert_eq!(run_of(db, id).await, Some((true, 1)));
    }
}

pub async fn an_endpoint_that_is_gone_is_disabled_once_and_announced_once(db: &dyn TestDatabase) {
    let (stores, other) = (db.stores(), db.second_instance().await);
    let id = verified(&stores, TYPE, URL).await;
    clear(&stores).await;
    goes(&stores, URL).await;
    let gone = stores.caretaker.gone(MANY).await.unwrap();
    assert_eq!(gone, [Disable { subscription_id: id, cause: Cause::Gone { url: URL.to_owned() } }]);

    let (a, b) = tokio::join!(stores.caretaker.disable(&gone), other.caretaker.disable(&gone));
    let done = only([a.unwrap(), b.unwrap()].concat());
    assert_eq!((done.kind, done.reason), (AnnouncementKind::Disabled, Some(DisabledReason::Gone)));
    assert_eq!((done.tenant.as_str(), done.callback_url.as_str()), ("default", URL));
    let shown = stores.reader.subscription(&ALL, id).await.unwrap().unwrap();
    assert!(!shown.active);
    let disabled = shown.disabled.expect("it shows why");
    assert_eq!((disabled.reason, disabled.at), (DisabledReason::Gone, done.at));
    assert_eq!(stores.caretaker.gone(MANY).await.unwrap(), []);

    // Whoever announces it, and however often, there is one event.
    let noted = stores.caretaker.announcements(MANY).await.unwrap();
    assert_eq!(noted, std::slice::from_ref(&done));
    let events = [(done.clone(), event_of(&done))];
    let (a, b) = tokio::join!(stores.caretaker.announce(&events), other.caretaker.announce(&events));
    let event = only([a.unwrap(), b.unwrap()].concat());
    assert_eq!(stores.caretaker.announce(&events).await.unwrap(), []);
    assert_eq!(stores.caretaker.announcements(MANY).await.unwrap(), []);
    assert_eq!(count(db, "events WHERE tenant = 'hooksaga' AND event_type LIKE '%disabled'").await, 1);
    assert_eq!(ids(db, "SELECT event_id FROM unrouted_events").await, [event.0]);
    assert_eq!(stores.caretaker.disable(&gone).await.unwrap(), [], "again: nothing");
}

/// Two attempts are under way when somebody pauses the subscription, and both get a 410.
pub async fn an_endpoint_that_is_gone_is_disabled_while_it_is_paused(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    clear(&stores).await;
    append_many(&stores, 2).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let jobs = claim(&stores, LeaseToken(7)).await.jobs;
    assert_eq!(jobs.len(), 2);
    set_active(&stores, id, false).await;
    let mut said = Vec::new();
    for job in &jobs {
        let gone = failed(job.as_ref(), ErrorCode::http(410));
        stores.worker.report(&[JobReport { callback_url: Some(URL.to_owned()), ..gone }]).await.unwrap();
        apply(&stores, AT_ONCE).await;
        let gone = stores.caretaker.gone(MANY).await.unwrap();
        assert_eq!(gone.len(), 1);
        said.extend(stores.caretaker.disable(&gone).await.unwrap());
        assert_eq!(stores.caretaker.gone(MANY).await.unwrap(), []);
    }
    let done = only(said);
    assert_eq!((done.kind, done.reason), (AnnouncementKind::Disabled, Some(DisabledReason::Gone)));
    let shown = stores.reader.subscription(&ALL, id).await.unwrap().unwrap();
    let disabled = shown.disabled.expect("it shows why, also to who had paused it");
    assert_eq!((disabled.reason, disabled.at), (DisabledReason::Gone, done.at), "the first of them");
    assert_eq!(stores.caretaker.announcements(MANY).await.unwrap(), [done]);
    set_active(&stores, id, true).await;
    let shown = stores.reader.subscription(&ALL, id).await.unwrap().unwrap();
    assert!(shown.active && shown.disabled.is_none());
}

pub async fn what_another_url_said_disables_nobody(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    clear(&stores).await;
    // An attempt that began before the change ends after it.
    append(&stores, new_event(TYPE)).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let job = only(claim(&stores, LeaseToken(7)).await.jobs);
    let patch = SubscriptionPatch { callback_url: Some(url("https://moved.example/")), ..Default::default() };
    stores.admin.update(&ALL, id, &patch).await.unwrap();
    let gone = failed(job.as_ref(), ErrorCode::http(410));
    stores.worker.report(&[JobReport { callback_url: Some(URL.to_owned()), ..gone }]).await.unwrap();
    apply(&stores, AT_ONCE).await;
    let gone = stores.caretaker.gone(MANY).await.unwrap();
    assert_eq!(gone.len(), 1);
    assert_eq!(stores.caretaker.disable(&gone).await.unwrap(), []);
    assert_eq!(stores.caretaker.gone(MANY).await.unwrap(), [], "it is not looked at again");
    assert!(stores.reader.subscription(&ALL, id).await.unwrap().unwrap().active);
    assert_eq!(stores.caretaker.announcements(MANY).await.unwrap(), []);
}

pub async fn a_run_that_is_over_disables_nobody(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    clear(&stores).await;
    attempt(&stores, Some(ErrorCode::http(500))).await;
    let since = prolong(db, id).await;
    let cause = [Disable { subscription_id: id, cause: Cause::Failing { since } }];
    attempt(&stores, None).await;
    assert_eq!(stores.caretaker.disable(&cause).await.unwrap(), []);
    assert_eq!(stores.caretaker.note_failing(&[(id, since)]).await.unwrap(), []);
    assert!(stores.reader.subscription(&ALL, id).await.unwrap().unwrap().active);

    // Nor does a pause and a new start.
    attempt(&stores, Some(ErrorCode::http(500))).await;
    let since = prolong(db, id).await;
    set_active(&stores, id, false).await;
    assert_eq!(run_of(db, id).await, Some((true, 1)), "a pause ends no run");
    set_active(&stores, id, true).await;
    assert_eq!(run_of(db, id).await, Some((false, 0)), "an activation does");
    let cause = [Disable { subscription_id: id, cause: Cause::Failing { since } }];
    assert_eq!(stores.caretaker.disable(&cause).await.unwrap(), []);
    assert_eq!(stores.caretaker.announcements(MANY).await.unwrap(), []);
}

pub async fn a_run_is_noted_once_and_disabled_once(db: &dyn TestDatabase) {
    let (stores, other) = (db.stores(), db.second_instance().await);
    let id = verified(&stores, TYPE, URL).await;
    clear(&stores).await;
    attempt(&stores, Some(ErrorCode::http(500))).await;
    assert_eq!(
        stores.caretaker.troubled(HOUR, ScanStep { after: None, limit: MANY }).await.unwrap().items,
        [],
        "not for that long"
    );
    let since = prolong(db, id).await;
    let found =
        only(stores.caretaker.troubled(HOUR, ScanStep { after: None, limit: MANY }).await.unwrap().items);
    assert_eq!(found.run.since, since);

    let runs = [(id, since)];
    let (a, b) = tokio::join!(stores.caretaker.note_failing(&runs), other.caretaker.note_failing(&runs));
    let noted = only([a.unwrap(), b.unwrap()].concat());
    assert_eq!((noted.kind, noted.reason), (AnnouncementKind::Failing, None));
    assert!(
        only(stores.caretaker.troubled(HOUR, ScanStep { after: None, limit: MANY }).await.unwrap().items)
            .run
            .announced
    );

    let cause = [Disable { subscription_id: id, cause: Cause::Failing { since } }];
    let (a, b) = tokio::join!(stores.caretaker.disable(&cause), other.caretaker.disable(&cause));
    let done = only([a.unwrap(), b.unwrap()].concat());
    assert_eq!(done.reason, Some(DisabledReason::Failing));
    let mut kinds: Vec<_> =
        stores.caretaker.announcements(MANY).await.unwrap().iter().map(|news| news.kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [AnnouncementKind::Failing, AnnouncementKind::Disabled]);
    assert_eq!(run_of(db, id).await, Some((false, 0)));
    set_active(&stores, id, true).await;
    let shown = stores.reader.subscription(&ALL, id).await.unwrap().unwrap();
    assert!(shown.active && shown.disabled.is_none());
}

pub async fn a_run_that_nobody_was_told_of_is_announced_with_its_end(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    clear(&stores).await;
    attempt(&stores, Some(ErrorCode::http(500))).await;
    let since = prolong(db, id).await;
    let cause = [Disable { subscription_id: id, cause: Cause::Failing { since } }];
    assert_eq!(stores.caretaker.disable(&cause).await.unwrap().len(), 1);
    let noted = stores.caretaker.announcements(MANY).await.unwrap();
    let mut kinds: Vec<_> = noted.iter().map(|news| news.kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [AnnouncementKind::Failing, AnnouncementKind::Disabled]);
}

pub async fn a_look_at_the_failing_is_bounded_and_resumes(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(verified(&stores, TYPE, &format!("https://failing.example/{n}")).await);
    }
    attempt(&stores, Some(ErrorCode::http(500))).await;
    let (mut after, mut seen, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = stores.caretaker.troubled(Duration::ZERO, ScanStep { after, limit: 2 }).await.unwrap();
        assert!(page.items.len() <= 2);
        seen.extend(page.items.iter().map(|one| one.subscription_id));
        pages += 1;
        after = page.resume_after;
        if after.is_none() {
            break;
        }
    }
    seen.sort_unstable();
    assert_eq!((seen, pages), (all, 3));
}

pub async fn a_verified_subscription_is_announced_once(db: &dyn TestDatabase) {
    let (stores, other) = (db.stores(), db.second_instance().await);
    assert_eq!(stores.caretaker.note_verified(MANY).await.unwrap(), 0);
    let id = verified(&stores, TYPE, URL).await;
    let (a, b) = tokio::join!(stores.caretaker.note_verified(MANY), other.caretaker.note_verified(MANY));
    assert_eq!(a.unwrap() + b.unwrap(), 1);
    let noted = only(stores.caretaker.announcements(MANY).await.unwrap());
    assert_eq!((noted.kind, noted.subscription_id, noted.reason), (AnnouncementKind::Verified, id, None));
    let before = all_rows(db, "pending_announcements").await;

    // Proving the same URL again is not announced; a new URL is.
    stores.admin.request_verification(&ALL, id, None).await.unwrap();
    super::fixture::verify(&stores, id).await;
    assert_eq!(stores.caretaker.note_verified(MANY).await.unwrap(), 0);
    assert_eq!(all_rows(db, "pending_announcements").await, before);
    let patch = SubscriptionPatch { callback_url: Some(url("https://moved.example/")), ..Default::default() };
    stores.admin.update(&ALL, id, &patch).await.unwrap();
    assert_eq!(stores.caretaker.note_verified(MANY).await.unwrap(), 0);
    super::fixture::verify(&stores, id).await;
    assert_eq!(stores.caretaker.note_verified(MANY).await.unwrap(), 1);
    assert_eq!(stores.caretaker.announcements(MANY).await.unwrap().len(), 2);
}

/// The URL changed between the verification and the caretaker's scan.
pub async fn the_url_that_is_announced_is_the_verified_one(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    let patch = SubscriptionPatch { callback_url: Some(url("https://moved.example/")), ..Default::default() };
    stores.admin.update(&ALL, id, &patch).await.unwrap();
    assert_eq!(stores.caretaker.note_verified(MANY).await.unwrap(), 1);
    let noted = only(stores.caretaker.announcements(MANY).await.unwrap());
    assert_eq!((noted.kind, noted.callback_url.as_str()), (AnnouncementKind::Verified, URL));
}

pub async fn nothing_is_announced_about_the_reserved_tenant(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified_for(&stores, "hooksaga", "*", URL).await;
    assert_eq!(stores.caretaker.note_verified(MANY).await.unwrap(), 1);
    append(&stores, NewEvent { tenant: tenant("hooksaga"), ..new_event(TYPE) }).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::http(500)), MUCH_LATER).await;
    let since = prolong(db, id).await;
    assert_eq!(stores.caretaker.note_failing(&[(id, since)]).await.unwrap().len(), 1);
    let cause = [Disable { subscription_id: id, cause: Cause::Failing { since } }];
    assert_eq!(stores.caretaker.disable(&cause).await.unwrap().len(), 1, "it is disabled all the same");
    assert_eq!(stores.caretaker.announcements(MANY).await.unwrap(), []);
}
