//! The apply step decides inside the transaction: what if the decision panics?

use crate::adapter::fresh;
use hooksaga_conformance::TestDatabase;
use hooksaga_saga::{Outcome, RetryPolicy, SagaStatus, apply_result};
use hooksaga_store::{
    Admission, CheckOutcome, Decide, JobReport, LeaseToken, NewEvent, NewSubscription, SealedSecret,
    StoreError, Stores,
};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// One delivered job in the orchestrator's queue.
async fn one_result(stores: &Stores) {
    let new = NewSubscription {
        event_type: "t".to_owned(),
        callback_url: "https://receiver.example/".to_owned(),
        active: true,
        max_retry_limit: None,
    };
    let secret = SealedSecret { key_id: "k".to_owned(), sealed: vec![1] };
    stores.admin.create(&new, &secret).await.unwrap();
    for check in stores.verifier.take_checks(1, Duration::ZERO).await.unwrap() {
        stores.verifier.record(&check, &CheckOutcome::Verified).await.unwrap();
    }
    let event = NewEvent {
        event_type: "t".to_owned(),
        payload: "{}".into(),
        external_id: None,
        correlation_id: "c".to_owned(),
    };
    stores.ingest.append(&[event]).await.unwrap();
    stores.router.route(1, 5).await.unwrap();
    let admission = Admission { room: HashMap::new(), default_room: 1, limit: 1, only: None };
    stores.orchestrator.schedule(&admission).await.unwrap();
    let claimed = stores.worker.claim(1, Duration::from_secs(60), LeaseToken(1)).await.unwrap();
    let report = JobReport {
        lease: claimed.jobs[0].as_ref(),
        outcome: Outcome::Delivered,
        response_status: Some(200),
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
