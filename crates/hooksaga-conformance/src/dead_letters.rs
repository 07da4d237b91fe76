//! Dead letters: stored once, requeued once.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, DEFAULT_LIMIT, MANY, TYPE, URL, append, append_many, asked, buried, bury_all,
        correlation, deliver_round, letters, new_event, new_subscription, only, route, saga_in,
        schedule_and_mark, url, verified, verified_with, verified_with_limit,
    },
    rows::{all_rows, changes, count, db_now, ids, saga_row},
};
use hooksaga_saga::{DeadLetterId, ErrorCode, SagaStatus, SubscriptionId};
use hooksaga_store::{
    DeadLetterFilter, DeadLetterSummary, NewEvent, NewSubscription, RequeueOutcome, RequeueStep, Requeued,
    RequeuedBatch, RequeuedSaga, Stores, SubscriptionPatch, Trace,
};
use std::{collections::HashSet, sync::Arc, time::Duration};

/// One step without a limit.
fn request(filter: DeadLetterFilter) -> RequeueStep {
    RequeueStep {
        filter,
        after: None,
        examine: MANY,
        requeue: MANY,
        dry_run: false,
        default_limit: DEFAULT_LIMIT,
    }
}

async fn step(stores: &Stores, step: &RequeueStep) -> RequeuedBatch {
    stores.dead_letters.requeue_step(&ALL, step).await.unwrap()
}

async fn pause(stores: &Stores, id: SubscriptionId, paused: bool) {
    let patch = SubscriptionPatch { active: Some(!paused), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, id, &patch).await.unwrap();
}

async fn requeue(stores: &Stores, id: DeadLetterId) -> RequeueOutcome {
    stores.dead_letters.requeue(&ALL, id, DEFAULT_LIMIT).await.unwrap()
}

async fn created(stores: &Stores, id: DeadLetterId) -> Requeued {
    match requeue(stores, id).await {
        RequeueOutcome::Created(requeued, _) => requeued,
        other => panic!("not created: {other:?}"),
    }
}

/// Two subscriptions with two and three letters, of different types and codes.
async fn five_letters(stores: &Stores) -> (SubscriptionId, SubscriptionId) {
    let limit_of_one =
        |event_type, url| NewSubscription { max_retry_limit: Some(1), ..new_subscription(event_type, url) };
    let one = verified_with(stores, &limit_of_one("type.one", "https://one.example/")).await;
    let two = verified_with(stores, &limit_of_one("type.two", "https://two.example/")).await;
    for (event_type, code) in [
        ("type.one", ErrorCode::TIMEOUT),
        ("type.two", ErrorCode::TIMEOUT),
        ("type.one", ErrorCode::http(500)),
        ("type.two", ErrorCode::http(500)),
        ("type.two", ErrorCode::http(500)),
    ] {
        append(stores, new_event(event_type)).await;
        route(stores).await;
        assert_eq!(bury_all(stores, code).await.len(), 1);
    }
    (one, two)
}

pub async fn a_dead_saga_gets_a_letter_with_its_payload(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified_with_limit(&stores, URL, 1).await;
    let event = NewEvent {
        payload: Arc::from("{ \"b\":1, \"b\":2 }"),
        correlation_id: correlation("c-8"),
        ..new_event(TYPE)
    };
    let event = append(&stores, event).await;
    let saga = only(route(&stores).await);
    deliver_round(&stores, Some(ErrorCode::http(418)), AT_ONCE).await;
    let before = saga_row(db, saga).await;

    let letter = only(stores.dead_letters.bury(MANY).await.unwrap());
    let id = letter.dead_letter_id.expect("it is new");
    assert_eq!((letter.saga_id, letter.event_id, letter.subscription_id), (saga, event.id, subscription));
    assert_eq!((letter.correlation_id.as_str(), letter.final_error_code.as_str()), ("c-8", "HTTP_418"));
    assert_eq!(count(db, "pending_dead_letters").await, 0);
    assert_eq!(saga_row(db, saga).await, before);
    let sql = "SELECT id, saga_id, event_id, subscription_id, final_error_code, payload FROM dead_letters";
    let stored: Vec<_> = only(db.query_text(sql).await.unwrap()).into_iter().flatten().collect();
    let expected = [
        id.to_string(),
        saga.to_string(),
        event.id.to_string(),
        subscription.to_string(),
        "HTTP_418".to_owned(),
        "{ \"b\":1, \"b\":2 }".to_owned(),
    ];
    assert_eq!(stored, expected);
}

pub async fn a_saga_is_buried_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, _) = buried(db).await;
    let before = all_rows(db, "dead_letters").await;
    assert_eq!(stores.dead_letters.bury(MANY).await.unwrap(), []);
    // As after a crash whose commit was not acknowledged.
    changes(db, &format!("INSERT INTO pending_dead_letters (saga_id) VALUES ({})", fixed.saga_id), 1).await;
    let again = only(stores.dead_letters.bury(MANY).await.unwrap());
    assert_eq!((again.dead_letter_id, again.saga_id), (None, fixed.saga_id));
    assert_eq!(all_rows(db, "dead_letters").await, before);
    assert_eq!(count(db, "pending_dead_letters").await, 0);
}

pub async fn a_pass_buries_no_more_than_its_limit(db: &dyn TestDatabase) {
    let stores = db.stores();
    verified_with_limit(&stores, URL, 1).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    deliver_round(&stores, Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    for expected in [2, 2, 1, 0] {
        assert_eq!(stores.dead_letters.bury(2).await.unwrap().len(), expected);
    }
    assert_eq!(count(db, "dead_letters").await, 5);
}

pub async fn two_buriers_at_once_store_each_letter_once(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    verified_with_limit(&instances[0], URL, 1).await;
    append_many(&instances[0], 100).await;
    route(&instances[0]).await;
    deliver_round(&instances[0], Some(ErrorCode::TIMEOUT), AT_ONCE).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move {
            let mut new = 0;
            for _ in 0..12 {
                let buried = stores.dead_letters.bury(10).await.unwrap();
                new += buried.iter().filter(|letter| letter.dead_letter_id.is_some()).count();
            }
            new
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 100);
    assert_eq!(count(db, "dead_letters").await, 100);
    assert_eq!(count(db, "pending_dead_letters").await, 0);
}

pub async fn a_requeue_makes_a_new_saga_of_the_next_generation(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, letter) = buried(db).await;
    let dead = saga_row(db, fixed.saga_id).await;
    let jobs = all_rows(db, "webhook_delivery_jobs").await;
    let before = db_now(db).await;

    let new = created(&stores, letter).await;
    assert_ne!(new.saga_id, fixed.saga_id);
    assert_eq!(new.generation, 1);
    let row = saga_row(db, new.saga_id).await;
    assert_eq!((row.event_id, row.subscription_id), (fixed.event_id, fixed.subscription_id));
    assert_eq!((row.generation, row.status, row.attempt_count), (1, SagaStatus::Pending, 0));
    assert_eq!((row.max_retry_limit, row.final_error_code), (3, None), "the subscription's limit");
    assert!(row.next_attempt_at.since(before) < Duration::from_secs(60));
    assert_eq!(saga_row(db, fixed.saga_id).await, dead, "the dead saga stays as it was");
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, jobs, "and so do its jobs");

    assert_eq!(only(schedule_and_mark(&stores).await).saga_id, new.saga_id, "due at once");
}

pub async fn a_requeue_without_a_limit_of_the_subscriptions_takes_the_default(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified_with_limit(&stores, URL, 1).await;
    append_many(&stores, 2).await;
    route(&stores).await;
    let letters = bury_all(&stores, ErrorCode::TIMEOUT).await;
    let clear = SubscriptionPatch { max_retry_limit: Some(None), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, subscription, &clear).await.unwrap();
    let RequeueOutcome::Created(new, _) = stores.dead_letters.requeue(&ALL, letters[0], 11).await.unwrap()
    else {
        panic!("not created")
    };
    assert_eq!(saga_row(db, new.saga_id).await.max_retry_limit, 11);
    let all = RequeueStep { default_limit: 12, ..request(DeadLetterFilter::default()) };
    let tally = step(&stores, &all).await;
    assert_eq!(saga_row(db, only(tally.sagas).requeued.saga_id).await.max_retry_limit, 12);
}

pub async fn a_requeue_twice_is_one(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (_, letter) = buried(db).await;
    let first = created(&stores, letter).await;
    assert_eq!(requeue(&stores, letter).await, RequeueOutcome::Already(first));
    deliver_round(&stores, None, AT_ONCE).await;
    assert_eq!(requeue(&stores, letter).await, RequeueOutcome::Already(first), "even when it is done");
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);
}

pub async fn generations_follow_one_another(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, first_letter) = buried(db).await;
    let first = created(&stores, first_letter).await;
    let second_letter = only(bury_all(&stores, ErrorCode::http(501)).await);
    let second = created(&stores, second_letter).await;
    assert_eq!((first.generation, second.generation), (1, 2));
    assert_eq!(requeue(&stores, first_letter).await, RequeueOutcome::Already(first), "not the latest");
    assert_eq!(requeue(&stores, second_letter).await, RequeueOutcome::Already(second));
    let sql = "SELECT generation FROM webhook_delivery_sagas ORDER BY generation";
    assert_eq!(ids(db, sql).await, [0, 1, 2]);
    let row = saga_row(db, second.saga_id).await;
    assert_eq!((row.event_id, row.subscription_id), (fixed.event_id, fixed.subscription_id));
}

pub async fn a_requeue_needs_an_active_and_verified_subscription(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, letter) = buried(db).await;
    let refused = RequeueOutcome::NotDeliverable(fixed.subscription_id);
    pause(&stores, fixed.subscription_id, true).await;
    assert_eq!(requeue(&stores, letter).await, refused);
    pause(&stores, fixed.subscription_id, false).await;
    let url =
        |text: &str| SubscriptionPatch { callback_url: Some(url(text)), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, fixed.subscription_id, &url("https://new.example/")).await.unwrap();
    assert_eq!(requeue(&stores, letter).await, refused);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 1);
    stores.admin.update(&ALL, fixed.subscription_id, &url(URL)).await.unwrap();
    created(&stores, letter).await;
}

pub async fn a_requeue_of_an_unknown_letter_is_not_found(db: &dyn TestDatabase) {
    assert_eq!(requeue(&db.stores(), DeadLetterId(4711)).await, RequeueOutcome::NotFound);
}

pub async fn two_operators_at_once_make_one_saga(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    let (_, letter) = buried(db).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move { requeue(&stores, letter).await });
    }
    let mut made = Vec::new();
    let mut sagas = HashSet::new();
    for outcome in tasks.join_all().await {
        match outcome {
            RequeueOutcome::Created(requeued, _) => made.push(requeued),
            RequeueOutcome::Already(requeued) => {
                sagas.insert(requeued.saga_id);
            }
            other => panic!("{other:?}"),
        }
    }
    let made = only(made);
    assert_eq!(sagas, HashSet::from([made.saga_id]));
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2);
}

pub async fn many_are_requeued_by_filter(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (one, _) = five_letters(&stores).await;
    let all = letters(&stores).await;
    let middle = all[2].created_at;
    type Fits = Box<dyn Fn(&DeadLetterSummary) -> bool + Send>;
    let filters: [(DeadLetterFilter, Fits); 6] = [
        (DeadLetterFilter::default(), Box::new(|_| true)),
        (
            DeadLetterFilter { subscription_id: Some(one), ..DeadLetterFilter::default() },
            Box::new(move |letter| letter.subscription_id == one),
        ),
        (
            DeadLetterFilter { event_type: asked("type.two"), ..DeadLetterFilter::default() },
            Box::new(|letter| letter.event_type == "type.two"),
        ),
        (
            DeadLetterFilter { final_error_code: asked("TIMEOUT"), ..DeadLetterFilter::default() },
            Box::new(|letter| letter.final_error_code == ErrorCode::TIMEOUT),
        ),
        (
            DeadLetterFilter { created_after: Some(middle), ..DeadLetterFilter::default() },
            Box::new(move |letter| letter.created_at >= middle),
        ),
        (
            DeadLetterFilter { created_before: Some(middle), ..DeadLetterFilter::default() },
            Box::new(move |letter| letter.created_at < middle),
        ),
    ];
    for (filter, fits) in &filters {
        let dry = RequeueStep { dry_run: true, ..request(filter.clone()) };
        let tally = step(&stores, &dry).await;
        let expected = all.iter().filter(|letter| fits(letter)).count() as u64;
        assert_eq!((tally.requeued, tally.skipped), (expected, 0), "{filter:?}");
        assert_eq!(tally.sagas, [], "a dry run changes nothing");
    }
    assert_eq!(count(db, "webhook_delivery_sagas").await, 5);

    // Not a dry run: two filters together, then the rest.
    let both = DeadLetterFilter {
        subscription_id: Some(one),
        final_error_code: asked("HTTP_500"),
        ..DeadLetterFilter::default()
    };
    let tally = step(&stores, &request(both.clone())).await;
    assert_eq!((tally.requeued, tally.skipped), (1, 0));
    let RequeuedSaga { requeued, subscription_id, trace } = only(tally.sagas);
    assert_eq!(subscription_id, one);
    assert_eq!((requeued.generation, trace), (1, Trace::new("default", "correlation-1")));
    let row = saga_row(db, requeued.saga_id).await;
    assert_eq!((row.subscription_id, row.status, row.generation), (one, SagaStatus::Pending, 1));
    let again = step(&stores, &request(both)).await;
    assert_eq!((again.requeued, again.skipped), (0, 0), "what was requeued no longer matches");
    let rest = step(&stores, &request(DeadLetterFilter::default())).await;
    assert_eq!((rest.requeued, rest.skipped, rest.sagas.len()), (4, 0, 4));
    assert_eq!(count(db, "webhook_delivery_sagas").await, 10);
}

pub async fn a_requeue_of_many_ignores_the_requeued_filter(db: &dyn TestDatabase) {
    let stores = db.stores();
    five_letters(&stores).await;
    created(&stores, letters(&stores).await[0].id).await;
    let filter = DeadLetterFilter { requeued: Some(true), ..DeadLetterFilter::default() };
    let tally = step(&stores, &request(filter)).await;
    assert_eq!((tally.requeued, tally.skipped), (4, 0));
}

pub async fn the_limit_counts_what_is_requeued_and_not_what_is_skipped(db: &dyn TestDatabase) {
    let stores = db.stores();
    let paused = verified_with_limit(&stores, "https://paused.example/", 1).await;
    append_many(&stores, 3).await;
    route(&stores).await;
    assert_eq!(bury_all(&stores, ErrorCode::TIMEOUT).await.len(), 3);
    pause(&stores, paused, true).await;
    let good = verified(&stores, TYPE, "https://good.example/").await;
    append_many(&stores, 3).await;
    route(&stores).await;
    let good_letters = bury_all(&stores, ErrorCode::TIMEOUT).await;
    assert_eq!(good_letters.len(), 3);

    for dry_run in [true, false] {
        let two = RequeueStep { requeue: 2, dry_run, ..request(DeadLetterFilter::default()) };
        let tally = step(&stores, &two).await;
        assert_eq!((tally.requeued, tally.skipped), (2, 3), "dry run: {dry_run}");
        assert_eq!(tally.sagas.len(), if dry_run { 0 } else { 2 });
    }
    let requeued: HashSet<_> = letters(&stores)
        .await
        .into_iter()
        .filter(|letter| letter.requeued_saga_id.is_some())
        .map(|letter| (letter.id, letter.subscription_id))
        .collect();
    assert_eq!(requeued, HashSet::from([(good_letters[0], good), (good_letters[1], good)]), "oldest first");
}

pub async fn two_operators_of_many_at_once_requeue_each_letter_once(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    verified_with_limit(&instances[0], URL, 1).await;
    append_many(&instances[0], 100).await;
    route(&instances[0]).await;
    assert_eq!(bury_all(&instances[0], ErrorCode::TIMEOUT).await.len(), 100);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let stores = instances[n % 2].clone();
        tasks.spawn(async move {
            let some = RequeueStep { requeue: 30, ..request(DeadLetterFilter::default()) };
            let mut sagas = Vec::new();
            for _ in 0..6 {
                let tally = step(&stores, &some).await;
                assert_eq!(tally.requeued, tally.sagas.len() as u64);
                sagas.extend(tally.sagas.iter().map(|saga| saga.requeued.saga_id));
            }
            sagas
        });
    }
    let made = tasks.join_all().await.concat();
    assert_eq!((made.len(), made.iter().collect::<HashSet<_>>().len()), (100, 100));
    assert_eq!(count(db, "webhook_delivery_sagas WHERE generation = 1").await, 100);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 200);
}

pub async fn an_open_saga_has_no_letter(db: &dyn TestDatabase) {
    saga_in(db, SagaStatus::PendingRetry).await;
    assert_eq!(db.stores().dead_letters.bury(MANY).await.unwrap(), []);
    assert_eq!(letters(&db.stores()).await, []);
}
