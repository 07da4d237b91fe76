//! Requeues of many in bounded steps: each resumes where the previous one stopped.

use super::{
    TestDatabase,
    fixture::{
        ALL, DEFAULT_LIMIT, MANY, TYPE, URL, append, append_many, asked, bury_all, new_event,
        new_subscription, route, scope, set_active, tenant, verified_with, verified_with_limit,
    },
    rows::{all_rows, count},
};
use hooksaga_saga::{DeadLetterId, ErrorCode};
use hooksaga_store::{DeadLetterFilter, NewEvent, NewSubscription, RequeueStep, RequeuedBatch, Stores};

fn bounded(examine: u32, requeue: u32) -> RequeueStep {
    RequeueStep {
        filter: DeadLetterFilter::default(),
        after: None,
        examine,
        requeue,
        dry_run: false,
        default_limit: DEFAULT_LIMIT,
    }
}

/// Takes steps until nothing is left. Returns what they did together, and how many steps there were.
async fn to_the_end(stores: &Stores, first: RequeueStep) -> (RequeuedBatch, u32) {
    let mut step = first;
    let mut sum = RequeuedBatch::default();
    for steps in 1..100 {
        let batch = stores.dead_letters.requeue_step(&ALL, &step).await.unwrap();
        assert!(batch.requeued <= u64::from(step.requeue));
        assert!(batch.requeued + batch.skipped <= u64::from(step.examine));
        assert_eq!(batch.sagas.len() as u64, if step.dry_run { 0 } else { batch.requeued });
        assert!(batch.resume_after.is_none_or(|at| step.after.is_none_or(|after| at > after)), "it gets on");
        sum.requeued += batch.requeued;
        sum.skipped += batch.skipped;
        sum.sagas.extend(batch.sagas);
        step.after = batch.resume_after;
        if step.after.is_none() {
            return (sum, steps);
        }
    }
    panic!("it does not end");
}

async fn ten_letters(stores: &Stores) -> Vec<DeadLetterId> {
    verified_with_limit(stores, URL, 1).await;
    append_many(stores, 10).await;
    route(stores).await;
    bury_all(stores, ErrorCode::TIMEOUT).await
}

pub async fn a_step_looks_at_no_more_letters_than_it_may(db: &dyn TestDatabase) {
    let stores = db.stores();
    let letters = ten_letters(&stores).await;
    let first = stores.dead_letters.requeue_step(&ALL, &bounded(4, MANY)).await.unwrap();
    assert_eq!((first.requeued, first.resume_after), (4, Some(letters[3])), "oldest first");
    let (rest, steps) =
        to_the_end(&stores, RequeueStep { after: first.resume_after, ..bounded(4, MANY) }).await;
    assert_eq!(rest.requeued, 6);
    assert!(steps <= 3, "{steps}");
    assert_eq!(count(db, "webhook_delivery_sagas WHERE generation = 1").await, 10);
}

pub async fn a_step_requeues_no_more_letters_than_it_may(db: &dyn TestDatabase) {
    let stores = db.stores();
    let letters = ten_letters(&stores).await;
    let first = stores.dead_letters.requeue_step(&ALL, &bounded(MANY, 3)).await.unwrap();
    assert_eq!((first.requeued, first.resume_after), (3, Some(letters[2])));
    let (rest, _) = to_the_end(&stores, RequeueStep { after: first.resume_after, ..bounded(MANY, 3) }).await;
    assert_eq!((rest.requeued, rest.skipped), (7, 0));
    let (again, _) = to_the_end(&stores, bounded(3, 3)).await;
    assert_eq!((again.requeued, again.skipped), (0, 0), "what was requeued never matches");
}

pub async fn a_step_that_finds_nothing_resumes_behind_what_it_saw(db: &dyn TestDatabase) {
    let stores = db.stores();
    let letters = ten_letters(&stores).await;
    let rare = NewSubscription { max_retry_limit: Some(1), ..new_subscription("rare.type", URL) };
    verified_with(&stores, &rare).await;
    append(&stores, new_event("rare.type")).await;
    route(&stores).await;
    bury_all(&stores, ErrorCode::TIMEOUT).await;
    let filter = DeadLetterFilter { event_type: asked("rare.type"), ..DeadLetterFilter::default() };
    let step = RequeueStep { filter, ..bounded(3, 3) };
    let first = stores.dead_letters.requeue_step(&ALL, &step).await.unwrap();
    assert_eq!((first.requeued, first.skipped, first.resume_after), (0, 0, Some(letters[2])));
    let (all, _) = to_the_end(&stores, step).await;
    assert_eq!(all.requeued, 1);
}

pub async fn a_dry_run_counts_what_a_run_would_do(db: &dyn TestDatabase) {
    let stores = db.stores();
    ten_letters(&stores).await;
    let paused =
        NewSubscription { max_retry_limit: Some(1), ..new_subscription(TYPE, "https://paused.example/") };
    let paused = verified_with(&stores, &paused).await;
    append_many(&stores, 3).await;
    route(&stores).await;
    bury_all(&stores, ErrorCode::TIMEOUT).await;
    set_active(&stores, paused, false).await;
    let before = all_rows(db, "webhook_delivery_sagas").await;
    for bounds in [(MANY, MANY), (4, 2), (1, 1)] {
        let dry = RequeueStep { dry_run: true, ..bounded(bounds.0, bounds.1) };
        let (sum, _) = to_the_end(&stores, dry).await;
        assert_eq!((sum.requeued, sum.skipped), (13, 3), "{bounds:?}");
        assert_eq!(all_rows(db, "webhook_delivery_sagas").await, before, "nothing is changed");
    }
    let (sum, _) = to_the_end(&stores, bounded(4, 2)).await;
    assert_eq!((sum.requeued, sum.skipped), (13, 3));
}

pub async fn skipped_letters_do_not_count_as_requeued(db: &dyn TestDatabase) {
    let stores = db.stores();
    let paused = verified_with_limit(&stores, "https://paused.example/", 1).await;
    append_many(&stores, 5).await;
    route(&stores).await;
    bury_all(&stores, ErrorCode::TIMEOUT).await;
    set_active(&stores, paused, false).await;
    ten_letters(&stores).await;
    let batch = stores.dead_letters.requeue_step(&ALL, &bounded(MANY, 2)).await.unwrap();
    assert_eq!((batch.requeued, batch.skipped), (2, 5));
    assert_eq!(count(db, "webhook_delivery_sagas WHERE generation = 1").await, 2);
}

pub async fn a_tenants_step_passes_no_letter_of_another_tenant(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut own = Vec::new();
    // Its letters lie among ten times as many of another tenant, and belong to subscriptions of their own.
    for number in 0..5 {
        for (name, events) in [("big", 10), ("small", 1)] {
            let url = format!("https://{name}{number}.example/");
            let topic = format!("round.{number}");
            let new = NewSubscription {
                tenant: tenant(name),
                max_retry_limit: Some(1),
                ..new_subscription(&topic, &url)
            };
            verified_with(&stores, &new).await;
            for _ in 0..events {
                append(&stores, NewEvent { tenant: tenant(name), ..new_event(&topic) }).await;
            }
            route(&stores).await;
            let letters = bury_all(&stores, ErrorCode::TIMEOUT).await;
            if name == "small" {
                own.extend(letters);
            }
        }
    }
    assert_eq!(own.len(), 5);
    let small = scope("small");
    let dry = RequeueStep { dry_run: true, ..bounded(3, MANY) };
    let first = stores.dead_letters.requeue_step(&small, &dry).await.unwrap();
    assert_eq!((first.requeued, first.resume_after), (3, Some(own[2])));
    let rest = RequeueStep { after: first.resume_after, ..dry };
    let rest = stores.dead_letters.requeue_step(&small, &rest).await.unwrap();
    assert_eq!((rest.requeued, rest.resume_after), (2, None));
    let all = stores.dead_letters.requeue_step(&small, &bounded(MANY, MANY)).await.unwrap();
    assert_eq!((all.requeued, all.resume_after), (5, None));
    assert_eq!(count(db, "webhook_delivery_sagas WHERE generation = 1").await, 5);
}
