//! Rate limits: how many jobs are admitted, and how many attempts are started.

use super::{
    TestDatabase,
    fixture::{ALL, MANY, TYPE, append_many, create_jobs, new_subscription, route, verified, verified_with},
    rows::{count, db_now},
};
use hooksaga_saga::{Lead, RateLimit, Reservation, SubscriptionId, Timestamp};
use hooksaga_store::{
    Allotted, HeldBuckets, Move, NewSubscription, Scheduled, Starting, Starts, Stores, SubscriptionPatch,
};
use std::time::{Duration, Instant};

async fn limited(stores: &Stores, url: &str, rate_limit: u32) -> SubscriptionId {
    let new = NewSubscription { rate_limit: Some(rate_limit), ..new_subscription(TYPE, url) };
    verified_with(stores, &new).await
}

async fn pass(stores: &Stores, id: SubscriptionId, jobs: u32) -> Scheduled {
    let allotted = [Allotted { subscription_id: id, jobs }];
    stores.orchestrator.create_jobs(&allotted, &|| Move::Now).await.unwrap()
}

async fn start_all(stores: &Stores, starting: &[Starting], lead: Lead) -> Starts {
    stores.worker.start_limited(starting, lead, HeldBuckets::WaitFor).await.unwrap()
}

async fn reserve(
    stores: &Stores,
    id: SubscriptionId,
    limit: RateLimit,
    jobs: u32,
    lead: Lead,
) -> Reservation {
    let starting = [Starting { subscription_id: id, limit, jobs }];
    let [Some(reserved)] = start_all(stores, &starting, lead).await.reserved[..] else {
        panic!("not one result for one question")
    };
    reserved
}

pub async fn no_more_jobs_are_created_than_the_limit_lets_through(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = limited(&stores, "https://slow.example/", 2).await;
    append_many(&stores, 20).await;
    route(&stores).await;
    let first = pass(&stores, id, 10).await;
    assert_eq!(first.sagas.len(), 1, "one at a time at 2 per second");
    let [held] = first.limited[..] else { panic!("it is held back: {:?}", first.limited) };
    assert_eq!(held.subscription_id, id);
    assert!(held.wait > Duration::ZERO && held.wait <= Duration::from_millis(500), "{:?}", held.wait);
    let at_once = pass(&stores, id, 10).await;
    assert_eq!((at_once.sagas.len(), at_once.limited.len()), (0, 1));
    assert_eq!(count(db, "webhook_delivery_jobs").await, 1);
    tokio::time::sleep(held.wait + Duration::from_millis(20)).await;
    assert_eq!(pass(&stores, id, 10).await.sagas.len(), 1);
    assert_eq!(count(db, "webhook_delivery_sagas WHERE status = 'Pending'").await, 18, "the rest waits");
}

pub async fn who_has_no_limit_is_not_held_back(db: &dyn TestDatabase) {
    let stores = db.stores();
    let slow = limited(&stores, "https://slow.example/", 1).await;
    let quick = verified(&stores, TYPE, "https://quick.example/").await;
    append_many(&stores, 10).await;
    route(&stores).await;
    let allotted = [slow, quick].map(|subscription_id| Allotted { subscription_id, jobs: 8 });
    let sagas = create_jobs(&stores, &allotted).await;
    let of = |id| sagas.iter().filter(|saga| saga.subscription_id == id).count();
    assert_eq!((of(slow), of(quick)), (1, 8));
    assert_eq!(count(db, "rate_limits").await, 1, "nothing is stored for those without a limit");

    // A limit that was removed delays nobody any more.
    let patch = SubscriptionPatch { rate_limit: Some(None), ..Default::default() };
    stores.admin.update(&ALL, slow, &patch).await.unwrap();
    let all = pass(&stores, slow, 20).await;
    assert_eq!((all.sagas.len(), all.limited.len()), (9, 0));
}

pub async fn little_that_waits_is_not_called_limited(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = limited(&stores, "https://slow.example/", 100).await;
    append_many(&stores, 2).await;
    route(&stores).await;
    let all = pass(&stores, id, 50).await;
    assert_eq!((all.sagas.len(), all.limited.len()), (2, 0), "six may pass at once");
    assert_eq!(count(db, "webhook_delivery_jobs").await, 2);
}

/// A time from a clock that was ahead costs one empty bucket, not the time by which it was ahead.
pub async fn a_bucket_that_lies_far_ahead_is_an_empty_one(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = limited(&stores, "https://slow.example/", 2).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    assert_eq!(pass(&stores, id, 10).await.sagas.len(), 1);
    let start = || reserve(&stores, id, RateLimit::per_second(2), 1, Lead::NONE);
    assert_eq!(start().await.jobs, 1);
    let ahead = db.dialect().time(db_now(db).await.after(Duration::from_secs(3600)));
    let sql = format!("UPDATE rate_limits SET full_at = {ahead}");
    assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 2, "both gates");

    let held = pass(&stores, id, 10).await;
    assert_eq!((held.sagas.len(), held.limited.len()), (0, 1));
    assert_eq!(start().await.jobs, 0);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(pass(&stores, id, 10).await.sagas.len(), 1);
    assert_eq!(start().await.jobs, 1);
}

/// Two processes that admit as fast as they can.
pub async fn two_processes_together_keep_the_limit(db: &dyn TestDatabase) {
    const RATE: u32 = 100;
    let (first, second) = (db.stores(), db.second_instance().await);
    let id = limited(&first, "https://slow.example/", RATE).await;
    append_many(&first, 300).await;
    route(&first).await;
    let began = Instant::now();
    let admit = |stores: Stores| async move {
        while began.elapsed() < Duration::from_millis(700) {
            pass(&stores, id, MANY).await;
        }
    };
    tokio::join!(admit(first.clone()), admit(second));
    let took = began.elapsed();
    let jobs = f64::from(u32::try_from(count(db, "webhook_delivery_jobs").await).unwrap());
    let most = f64::from(RATE) * took.as_secs_f64() + 7.0;
    assert!(jobs <= most, "{jobs} jobs in {took:?}");
    assert!(jobs >= f64::from(RATE) * 0.5, "{jobs} jobs in {took:?}");
    let jobs_of_one_saga =
        "(SELECT saga_id FROM webhook_delivery_jobs GROUP BY saga_id HAVING count(*) > 1) twice";
    assert_eq!(count(db, jobs_of_one_saga).await, 0);
}

pub async fn starts_are_counted_across_processes(db: &dyn TestDatabase) {
    const RATE: u32 = 100;
    let (first, second) = (db.stores(), db.second_instance().await);
    let (id, limit) = (SubscriptionId(17), RateLimit::per_second(RATE));
    let start = |stores| reserve(stores, id, limit, 50, Lead::NONE);
    let began = Instant::now();
    let (a, b) = tokio::join!(start(&first), start(&second));
    let took = began.elapsed();
    let most = 6.0 + f64::from(RATE) * took.as_secs_f64();
    let started = f64::from(a.jobs + b.jobs);
    assert!(started >= 6.0 && started <= most, "{started} started in {took:?}");
    let left = start(&first).await;
    assert!(left.wait > Duration::ZERO && left.wait <= Duration::from_millis(10), "{left:?}");
    assert!(start_all(&first, &[], Lead::NONE).await.reserved.is_empty());
}

/// Subscriptions of one claim are decided together, whether they were asked about before or not, each by its own limit.
pub async fn starts_of_many_subscriptions_are_counted_at_once(db: &dyn TestDatabase) {
    const MOST: u32 = 1000;
    let stores = db.stores();
    // In no order, and every third one only later: its bucket is made beside those that are there.
    let starting = |which: fn(&u32) -> bool| -> Vec<Starting> {
        let asked = (1..=MOST).rev().filter(which).map(|number| Starting {
            subscription_id: SubscriptionId(number.into()),
            limit: RateLimit::per_second(1 + number % 2),
            jobs: 2,
        });
        asked.collect()
    };
    let (some, all) = (starting(|number| number % 3 > 0), starting(|_| true));
    let decided = |starts: Starts| -> (Timestamp, Vec<Reservation>) {
        (starts.clock.time, starts.reserved.into_iter().map(Option::unwrap).collect())
    };
    let passing_over = stores.worker.start_limited(&some, Lead::NONE, HeldBuckets::PassOver);
    let (_, first) = decided(passing_over.await.unwrap());
    assert!(first.len() == some.len() && first.iter().all(|one| one.jobs == 1), "{first:?}");
    let before = |id| some.iter().position(|one| one.subscription_id == id).map(|at| first[at].full_at);
    let (now, second) = decided(start_all(&stores, &all, Lead::NONE).await);
    for (asked, got) in all.iter().zip(&second) {
        match before(asked.subscription_id) {
            None => assert_eq!(got.jobs, 1, "{asked:?}"),
            // Where the first call was slow, there may be room again.
            Some(full_at) => assert!(got.jobs <= 1 && got.full_at >= full_at, "{asked:?} {got:?}"),
        }
        let cost = asked.limit.time_for(1);
        assert!(got.full_at <= now.after(2 * cost), "by its own limit: {asked:?} {got:?}");
    }
    let rows = count(db, "rate_limits WHERE gate = 'start'").await;
    assert_eq!(rows, i64::from(MOST));
}

/// What one process reserves ahead, another one neither takes nor forgets, however far ahead it asks itself.
pub async fn starts_are_counted_for_their_moments(db: &dyn TestDatabase) {
    let (first, second) = (db.stores(), db.second_instance().await);
    let (id, limit) = (SubscriptionId(18), RateLimit::per_second(2));
    let seconds = Duration::from_secs;
    let ahead = reserve(&first, id, limit, 50, Lead::new(seconds(2))).await;
    // From 2 s to 4 s from now, and the burst.
    assert_eq!((ahead.jobs, ahead.last), (5, Duration::from_millis(1_750)));
    let now = reserve(&second, id, limit, 50, Lead::NONE).await;
    assert_eq!((now.jobs, now.full_at), (0, ahead.full_at));
    assert!(now.wait > seconds(2) && now.wait <= Duration::from_millis(4_250), "{now:?}");
    let beside = reserve(&second, id, limit, 50, Lead::MOST).await;
    assert!(beside.jobs >= 8 && beside.full_at > ahead.full_at, "the seconds after those: {beside:?}");
}

/// A process can tell at which moment of its own clock it was at which moment of the database's.
pub async fn the_clock_of_a_start_lies_between_question_and_answer(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (earliest, asked) = (db_now(db).await, Instant::now());
    let clock = start_all(&stores, &[], Lead::NONE).await.clock;
    // SQLite's statements know the time to the millisecond.
    let (answered, latest) = (Instant::now(), db_now(db).await.after(Duration::from_millis(1)));
    assert!(asked <= clock.asked && clock.asked <= clock.answered && clock.answered <= answered);
    assert!(earliest <= clock.time && clock.time <= latest, "{earliest:?} {clock:?} {latest:?}");
}
