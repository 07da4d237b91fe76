//! The health of a subscription's endpoint: the last day, what waits, the last failure.

use super::{
    TestDatabase,
    bulk_fixtures::with_backlog,
    fixture::{
        ALL, AT_ONCE, MUCH_LATER, TOKEN, TYPE, URL, append, append_many, apply, claim, create_jobs,
        deliver_round, delivered, failed, finish_claimable, new_event, only, route, schedule_and_mark, scope,
        set_active, tenant, verified, verified_for, verified_with_limit,
    },
    rows::{changes, db_now},
};
use hooksaga_saga::{ErrorCode, SubscriptionId, Timestamp};
use hooksaga_store::{
    Allotted, DeliveryJob, FailingEndpoints, Health, JobReport, Lease, NewEvent, Stores, TenantScope,
};
use std::time::Duration;

async fn health(stores: &Stores, id: SubscriptionId) -> Health {
    stores.reader.subscription_detail(&ALL, id).await.unwrap().expect("it is there").health
}

/// One attempt of one new event. It takes this long, and fails with this code; without a code it succeeds.
async fn attempt(stores: &Stores, code: Option<ErrorCode>, took_ms: u64, response_status: Option<u16>) {
    append(stores, new_event(TYPE)).await;
    route(stores).await;
    schedule_and_mark(stores).await;
    let job = only(claim(stores, TOKEN).await.jobs);
    let report = code.map_or_else(|| delivered(job.as_ref()), |code| failed(job.as_ref(), code));
    let report = JobReport { duration: Duration::from_millis(took_ms), response_status, ..report };
    assert_eq!(stores.worker.report(&[report]).await.unwrap().len(), 1);
    apply(stores, MUCH_LATER).await;
}

pub async fn a_subscription_shows_its_last_day(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified_with_limit(&stores, URL, 1).await;
    assert_eq!(health(&stores, id).await, Health::default());
    for took_ms in [3, 3, 40] {
        attempt(&stores, None, took_ms, Some(204)).await;
    }
    attempt(&stores, Some(ErrorCode::http(503)), 700, Some(503)).await;
    // No request was sent: it failed, but says nothing about how long requests take.
    attempt(&stores, Some(ErrorCode::LEASE_EXHAUSTED), 19_000, None).await;
    let other = verified(&stores, "other", "https://other.example/").await;

    let day = health(&stores, id).await;
    assert_eq!((day.delivered, day.failed, day.dead_lettered), (3, 2, 2));
    assert_eq!((day.latencies.ranges.iter().sum::<u64>(), day.latencies.slowest_ms), (4, 700));
    assert_eq!(day.latencies.p95_ms(), Some(700));
    assert_eq!(health(&stores, other).await, Health::default(), "nothing of another's");

    // Counts of the last minutes of the day, and of one that is too early.
    let now = db_now(db).await.as_micros();
    let this_minute = now - now % 60_000_000;
    for (shard, minutes_ago) in [(1, 1), (2, 1), (1, 1430), (1, 1445)] {
        let at = db.dialect().time(Timestamp::from_micros(this_minute - minutes_ago * 60_000_000));
        let sql = format!(
            "INSERT INTO delivery_counts (minute, subscription_id, shard, delivered, failed, dead_lettered, ms_200, \
             slowest_ms) VALUES ({at}, {id}, {shard}, 100, 10, 1, 110, {minutes_ago})"
        );
        changes(db, &sql, 1).await;
    }
    let day = health(&stores, id).await;
    assert_eq!((day.delivered, day.failed, day.dead_lettered), (303, 32, 5));
    assert_eq!((day.latencies.ranges[4], day.latencies.slowest_ms), (330, 1430));
    let p95 = day.latencies.p95_ms().unwrap();
    assert!((101..=200).contains(&p95), "{p95}");
}

pub async fn every_length_of_an_attempt_is_counted_in_its_range(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    let lengths = [10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 20_001];
    append_many(&stores, lengths.len()).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let jobs = claim(&stores, TOKEN).await.jobs;
    let report = |(job, ms): (&Lease<DeliveryJob>, u64)| JobReport {
        duration: Duration::from_millis(ms),
        ..delivered(job.as_ref())
    };
    let reports: Vec<_> = jobs.iter().zip(lengths).map(report).collect();
    stores.worker.report(&reports).await.unwrap();
    apply(&stores, AT_ONCE).await;
    assert_eq!(health(&stores, id).await.latencies.ranges, [1; 12]);
    attempt(&stores, None, 60_000, None).await;
    let latencies = health(&stores, id).await.latencies;
    assert_eq!((latencies.ranges[11], latencies.slowest_ms), (2, 60_000));
}

pub async fn what_waits_is_counted_until_it_is_being_sent(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified_with_limit(&stores, URL, 2).await;
    append_many(&stores, 4).await;
    route(&stores).await;
    assert_eq!(health(&stores, id).await.waiting, 4);
    let step = async || {
        assert_eq!(create_jobs(&stores, &[Allotted { subscription_id: id, jobs: 1 }]).await.len(), 1);
    };
    // One retries later, one is being sent, one has a job that no worker has taken, one has none.
    step().await;
    finish_claimable(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    step().await;
    assert_eq!(claim(&stores, TOKEN).await.jobs.len(), 1);
    step().await;
    assert_eq!(health(&stores, id).await.waiting, 3);
    set_active(&stores, id, false).await;
    assert_eq!(health(&stores, id).await.waiting, 3, "what is held waits, too");
}

pub async fn a_count_of_what_waits_ends_at_its_limit(db: &dyn TestDatabase) {
    let stores = db.stores();
    let event = append(&stores, new_event("backlog")).await.id;
    let id = with_backlog(db, &stores, URL, event, Health::MOST_WAITING + 5).await;
    assert_eq!(health(&stores, id).await.waiting, u64::from(Health::MOST_WAITING));
}

pub async fn the_last_failure_is_shown_with_what_the_endpoint_returned(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, TYPE, URL).await;
    attempt(&stores, None, 1, Some(200)).await;
    assert_eq!(health(&stores, id).await.last_failure, None);
    attempt(&stores, Some(ErrorCode::REDIRECT), 1, Some(308)).await;
    let failure = health(&stores, id).await.last_failure.expect("it failed");
    assert_eq!((failure.error_code, failure.response_status), (ErrorCode::REDIRECT, Some(308)));
    assert!(db_now(db).await.since(failure.at) < Duration::from_secs(60));
    let detail = stores.reader.delivery(&ALL, failure.saga_id).await.unwrap().expect("it is there");
    assert_eq!(detail.attempts.last().unwrap().response_status, Some(308));

    attempt(&stores, Some(ErrorCode::TIMEOUT), 1, None).await;
    attempt(&stores, None, 1, Some(200)).await;
    let failure = health(&stores, id).await.last_failure.expect("a success does not hide it");
    assert_eq!((failure.error_code, failure.response_status), (ErrorCode::TIMEOUT, None));
}

pub async fn the_health_of_anothers_subscription_is_not_shown(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified_for(&stores, "acme", TYPE, URL).await;
    let seen = async |scope| stores.reader.subscription_detail(&scope, id).await.unwrap();
    assert!(seen(scope("acme")).await.is_some());
    assert_eq!(seen(scope("other")).await, None);
    assert_eq!(stores.reader.subscription_detail(&ALL, SubscriptionId(id.0 + 1)).await.unwrap(), None);
    let shown = seen(ALL).await.unwrap().subscription;
    assert_eq!(Some(shown), stores.reader.subscription(&ALL, id).await.unwrap());
}

pub async fn endpoints_that_fail_are_known_to_a_process_that_starts(db: &dyn TestDatabase) {
    let stores = db.stores();
    assert_eq!(stores.orchestrator.failing(10).await.unwrap(), []);
    let first = verified(&stores, TYPE, URL).await;
    attempt(&stores, Some(ErrorCode::http(500)), 1, Some(500)).await;
    attempt(&stores, Some(ErrorCode::TIMEOUT), 1, None).await;
    let second = verified(&stores, "second", "https://second.example/").await;
    append(&stores, new_event("second")).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::CONNECT_FAILED), MUCH_LATER).await;

    let started = db.second_instance().await;
    let failing = started.orchestrator.failing(10).await.unwrap();
    assert_eq!(failing, [(first, ErrorCode::TIMEOUT), (second, ErrorCode::CONNECT_FAILED)]);
    assert_eq!(started.orchestrator.failing(1).await.unwrap(), [(first, ErrorCode::TIMEOUT)]);
    attempt(&stores, None, 1, Some(200)).await;
    let failing = stores.orchestrator.failing(10).await.unwrap();
    assert_eq!(failing, [(second, ErrorCode::CONNECT_FAILED)], "a success ends it");
}

pub async fn endpoints_that_fail_are_listed_whatever_else_waits(db: &dyn TestDatabase) {
    let stores = db.stores();
    let fails = async |scope: TenantScope| stores.reader.failing(&scope, 10).await.unwrap().shown;
    assert_eq!(stores.reader.failing(&ALL, 10).await.unwrap(), FailingEndpoints::default());
    let quiet = verified_for(&stores, "acme", "quiet", "https://quiet.example/").await;
    append(&stores, NewEvent { tenant: tenant("acme"), ..new_event("quiet") }).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    // Another fails later and has many more retries; a third, which is held, has some, too.
    let loud = verified(&stores, TYPE, URL).await;
    let held = verified(&stores, TYPE, "https://held.example/").await;
    append_many(&stores, 150).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::http(503)), MUCH_LATER).await;
    set_active(&stores, held, false).await;

    let failing = fails(ALL).await;
    assert_eq!(failing.iter().map(|it| it.subscription_id).collect::<Vec<_>>(), [quiet, loud]);
    let [first, second] = &failing[..] else { panic!("{failing:?}") };
    assert_eq!((first.failures, first.waiting, &first.last_error), (1, 1, &ErrorCode::TIMEOUT));
    assert_eq!(first.callback_url, "https://quiet.example/");
    assert_eq!((second.failures, second.waiting, &second.last_error), (150, 100, &ErrorCode::http(503)));
    let now = db_now(db).await;
    assert!(first.since <= second.since && now.since(first.since) < Duration::from_secs(60));
    let wait = first.next_attempt_at.expect("a retry waits").since(now);
    assert!((Duration::from_secs(17_000)..Duration::from_secs(37_000)).contains(&wait), "{wait:?}");
    assert_eq!(fails(scope("acme")).await, failing[..1]);
    assert_eq!(fails(scope("other")).await, []);

    // It failed long ago, and nothing waits any more: nobody knows how the endpoint is now.
    let long_ago = db.dialect().time(Timestamp::from_micros(now.as_micros() - 3_700_000_000));
    let age = |id| format!("UPDATE endpoint_failures SET last_at = {long_ago} WHERE subscription_id = {id}");
    changes(db, &age(quiet), 1).await;
    assert_eq!(fails(ALL).await.len(), 2, "a retry waits");
    let ended = verified_with_limit(&stores, "https://ended.example/", 1).await;
    set_active(&stores, loud, false).await;
    attempt(&stores, Some(ErrorCode::TIMEOUT), 1, None).await;
    let ids = async || {
        let failing = fails(ALL).await;
        failing.into_iter().map(|it| (it.subscription_id, it.next_attempt_at.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(ids().await, [(quiet, true), (ended, false)]);
    changes(db, &age(ended), 1).await;
    assert_eq!(ids().await, [(quiet, true)]);
    set_active(&stores, loud, true).await;
    assert_eq!(ids().await, [(quiet, true)], "activating it ends its run");
}

/// However many endpoints fail, those that have failed for longest and those that have just begun are both shown.
pub async fn of_many_that_fail_both_ends_are_listed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut all = Vec::new();
    for number in 0..5 {
        let topic = format!("type{number}");
        all.push(verified(&stores, &topic, &format!("https://{number}.example/")).await);
        append(&stores, new_event(&topic)).await;
        route(&stores).await;
        deliver_round(&stores, Some(ErrorCode::TIMEOUT), MUCH_LATER).await;
    }
    for (each, shown) in [
        (1, vec![all[0], all[4]]),
        (2, vec![all[0], all[1], all[3], all[4]]),
        (3, all.clone()),
        (9, all.clone()),
    ] {
        let failing = stores.reader.failing(&ALL, each).await.unwrap();
        assert_eq!(failing.shown.iter().map(|it| it.subscription_id).collect::<Vec<_>>(), shown, "{each}");
        assert_eq!(failing.total, 5, "{each}");
        assert!(failing.shown.iter().all(|it| it.waiting == 1), "{each}");
    }
    assert_eq!(stores.reader.failing(&scope("other"), 1).await.unwrap(), FailingEndpoints::default());
}
