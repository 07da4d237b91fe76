//! Moves deliveries along, as the components would.

use super::TestApi;
use hooksaga_saga::{ErrorCode, Outcome, RetryPolicy, apply_result};
use hooksaga_store::{Admission, CheckOutcome, JobReport, LeaseToken};
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};

impl TestApi {
    /// A subscription that is not verified yet.
    pub(crate) async fn subscription(&self, event_type: &str, path: &str) -> i64 {
        let body = json!({
            "event_type": event_type, "callback_url": format!("https://example.com/{path}"), "max_retry_limit": 1,
        });
        self.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap()
    }

    /// Lets every challenge that waits succeed.
    pub(crate) async fn verify_all(&self) {
        for check in self.stores.verifier.take_checks(100, Duration::from_secs(10)).await.unwrap() {
            assert!(self.stores.verifier.record(&check, &CheckOutcome::Verified).await.unwrap());
        }
    }

    pub(crate) async fn verified_subscription(&self, event_type: &str, path: &str) -> i64 {
        let id = self.subscription(event_type, path).await;
        self.verify_all().await;
        id
    }

    pub(crate) async fn event(&self, event_type: &str, payload: &Value) -> i64 {
        let body = json!({"event_type": event_type, "payload": payload});
        self.post("/v1/events", &body).await.expect(201)["id"].as_i64().unwrap()
    }

    pub(crate) async fn route(&self) {
        self.stores.router.route(1000, 5).await.unwrap();
    }

    /// One attempt of everything that is due, with this outcome.
    pub(crate) async fn attempt_all(&self, outcome: &Outcome) {
        let admission = Admission { room: HashMap::new(), default_room: 1000, limit: 1000, only: None };
        let scheduled = self.stores.orchestrator.schedule(&admission).await.unwrap();
        let moved: Vec<_> = scheduled.sagas.iter().map(|saga| (saga.saga_id, saga.attempt_at)).collect();
        self.stores.orchestrator.mark_in_progress(&moved).await.unwrap();

        let lease = Duration::from_secs(60);
        let claimed = self.stores.worker.claim(1000, lease, LeaseToken(7)).await.unwrap();
        let failed = *outcome != Outcome::Delivered;
        let reports: Vec<_> = claimed
            .jobs
            .iter()
            .map(|job| JobReport {
                lease: job.as_ref(),
                outcome: outcome.clone(),
                response_status: Some(if failed { 503 } else { 200 }),
                duration: Duration::from_millis(12),
                response_excerpt: failed.then(|| "try later".to_owned()),
            })
            .collect();
        self.stores.worker.report(&reports).await.unwrap();
        let decide: hooksaga_store::Decide = std::sync::Arc::new(|job, now| {
            apply_result(&job.saga, &job.result, &RetryPolicy::default(), now)
        });
        self.stores.orchestrator.apply(1000, &decide).await.unwrap();
        self.stores.dead_letters.bury(1000).await.unwrap();
    }

    /// Routes everything and lets every delivery fail for good.
    pub(crate) async fn fail_all(&self) {
        self.route().await;
        self.attempt_all(&Outcome::Failed(ErrorCode::http(503))).await;
    }

    /// A dead letter of a new event for subscriptions of this type; its id.
    pub(crate) async fn dead_letter(&self, event_type: &str, payload: &Value) -> i64 {
        self.event(event_type, payload).await;
        self.fail_all().await;
        self.get("/v1/dead-letters").await.expect(200)["items"][0]["id"].as_i64().unwrap()
    }
}
