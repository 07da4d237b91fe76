//! Moves deliveries along, as the components would.

use super::TestApi;
use hooksaga_saga::{ErrorCode, Outcome, RetryPolicy, apply_result};
use hooksaga_store::{
    Allotted, CheckOutcome, ClaimLimits, ClaimedBatch, JobReport, LeaseToken, Move, RouteLimits,
};
use serde_json::{Value, json};
use std::time::Duration;

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
        self.stores.router.route(RouteLimits { events: 1000, sagas: 1000 }, 5).await.unwrap();
    }

    /// One attempt of everything that is due, with this outcome.
    pub(crate) async fn attempt_all(&self, outcome: &Outcome) {
        self.attempt_all_with(outcome, "try later").await;
    }

    /// Takes everything that is due for this long.
    async fn claim(&self, lease: Duration) -> ClaimedBatch {
        let waiting = self.stores.orchestrator.waiting(None, 1000).await.unwrap().subscriptions;
        let allotted: Vec<_> =
            waiting.into_iter().map(|subscription_id| Allotted { subscription_id, jobs: 1000 }).collect();
        self.stores.orchestrator.create_jobs(&allotted, &|| Move::Now).await.unwrap();

        let limits = ClaimLimits { jobs: 1000, payload_bytes: 1 << 20, skip: Vec::new() };
        self.stores.worker.claim(&limits, LeaseToken(7).lasting(lease)).await.unwrap()
    }

    /// Everything is routed, and the worker that takes what is due ends before it sends any of it.
    pub(crate) async fn lose_a_worker(&self) {
        self.route().await;
        self.claim(Duration::from_millis(1)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!self.stores.cleaner.reset_expired(1000).await.unwrap().is_empty());
    }

    /// The same; a failed attempt keeps this excerpt.
    async fn attempt_all_with(&self, outcome: &Outcome, excerpt: &str) {
        let claimed = self.claim(Duration::from_secs(60)).await;
        let failed = *outcome != Outcome::Delivered;
        let reports: Vec<_> = claimed
            .jobs
            .iter()
            .map(|job| JobReport {
                lease: job.as_ref(),
                outcome: outcome.clone(),
                started_at: Some(claimed.now),
                callback_url: Some(claimed.targets[&job.held.subscription_id].callback_url.clone()),
                response_status: Some(if failed { 503 } else { 200 }),
                retry_at: None,
                duration: Duration::from_millis(12),
                response_excerpt: failed.then(|| excerpt.to_owned()),
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

    /// The same, with what the endpoints returned.
    pub(crate) async fn fail_all_with_excerpt(&self, excerpt: &str) {
        self.route().await;
        self.attempt_all_with(&Outcome::Failed(ErrorCode::http(503)), excerpt).await;
    }

    /// A dead letter of a new event for subscriptions of this type; its id.
    pub(crate) async fn dead_letter(&self, event_type: &str, payload: &Value) -> i64 {
        self.event(event_type, payload).await;
        self.fail_all().await;
        self.get("/v1/dead-letters").await.expect(200)["items"][0]["id"].as_i64().unwrap()
    }
}
