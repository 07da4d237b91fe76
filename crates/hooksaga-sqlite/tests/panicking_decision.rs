//! The apply step decides inside the transaction: what if the decision panics?

use crate::{adapter::fresh, event};
use hooksaga_conformance::TestDatabase;
use hooksaga_saga::{CallbackUrl, Outcome, RetryPolicy, SagaStatus, Tenant, Topics, apply_result};
use hooksaga_store::{
    Allotted, CheckOutcome, ClaimLimits, CreateOutcome, Decide, JobReport, LeaseToken, Move, NewSubscription,
    RouteLimits, SealedSecret, StoreError, Stores,
};
use std::{sync::Arc, time::Duration};

/// One delivered job in the orchestrator's queue.
async fn one_result(stores: &Stores) {
    let new = NewSubscription {
        tenant: "default".parse::<Tenant>().unwrap(),
        topics: "t".parse::<Topics>().unwrap(),
        callback_url: CallbackUrl::parse("https://receiver.example/", true).unwrap(),
        description: None,
        active: true,
        max_retry_limit: None,
        rate_limit: None,
        headers: None,
    };
    let secret = SealedSecret { key_id: "k".to_owned(), sealed: vec![1] };
    let CreateOutcome::Created(subscription) = stores.admin.create(&new, &secret).await.unwrap() else {
        panic!("there is no other")
    };
    for check in stores.verifier.take_checks(1, Duration::ZERO).await.unwrap() {
        stores.verifier.record(&check, &CheckOutcome::Verified).await.unwrap();
    }
    stores.ingest.append(&[event("t")]).await.unwrap();
    stores.router.route(RouteLimits { events: 1, sagas: 1 }, 5).await.unwrap();
    let allotted = [Allotted { subscription_id: subscription.id, jobs: 1 }];
    stores.orchestrator.create_jobs(&allotted, &|| Move::Never).await.unwrap();
    let limits = ClaimLimits { jobs: 1, payload_bytes: u64::MAX, skip: Vec::new() };
    let claimed = stores.worker.claim(&limits, LeaseToken(1).lasting(Duration::from_secs(60))).await.unwrap();
    let report = JobReport {
        lease: claimed.jobs[0].as_ref(),
        outcome: Outcome::Delivered,
        started_at: None,
        callback_url: None,
        response_status: Some(200),
        retry_at: None,
        duration: Duration::from_millis(1),
        response_excerpt: None,
    };
    assert_eq!(stores.worker.report(&[report]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_decision_that_panics_leaves_everything_as_it_was() {
    let db = fresh().await;
    let stores = db.stores();
    one_result(&stores).await;
    let orchestrator = stores.orchestrator.clone();
    let panicking: Decide = Arc::new(|_, _| panic!("as a test"));
    assert!(matches!(orchestrator.apply(10, &panicking).await, Err(StoreError::Other(_))));

    let gauges = stores.reader.gauges().await.unwrap();
    assert_eq!((gauges.finished_jobs, gauges.pending_sagas), (1, 1), "rolled back");
    let policy = RetryPolicy::default();
    let decide: Decide = Arc::new(move |job: &_, now| {
        let hooksaga_store::FinishedJob { saga, result, .. } = job;
        apply_result(saga, result, &policy, now)
    });
    let batch = stores.orchestrator.apply(10, &decide).await.unwrap();
    assert_eq!(batch.results.len(), 1);
    assert_eq!(batch.results[0].status, SagaStatus::Completed);
}
