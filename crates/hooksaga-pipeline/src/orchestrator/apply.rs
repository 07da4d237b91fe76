//! Turns finished jobs into the next state of their sagas.

use super::Orchestrator;
use crate::{DELIVERY_LOG_TARGET, Progress};
use hooksaga_saga::{Outcome, SagaStatus};
use hooksaga_store::{AppliedResult, ApplyBatch, Stage, StoreResult};
use std::time::Instant;

pub(super) const NAME: &str = "apply";
/// Results per pass.
pub(super) const BATCH: u32 = 1000;

impl Orchestrator {
    /// One pass: every result that waits is applied to its saga, once.
    pub async fn apply_once(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        let limit = self.results.get();
        let batch = self.results.noting(self.store.apply(limit, &self.decide).await)?;
        if !batch.results.is_empty() {
            self.metrics.pass(NAME, started.elapsed());
            self.follow_up(&batch);
            self.account_applied(&batch);
        }
        Ok(Progress::of_batch(batch.results.len(), limit))
    }

    /// Learns from the results and wakes whoever has work through them.
    fn follow_up(&self, batch: &ApplyBatch) {
        let now = Instant::now();
        let room_is_wanted = self.lanes.applied(&batch.results, now);
        self.signals.set_busy(self.lanes.busy(now));
        self.signals.set_results_awaited(room_is_wanted || self.signals.crowd_waits());
        let is_retry = |result: &&AppliedResult| result.changed && result.status == SagaStatus::PendingRetry;
        let retries = || batch.results.iter().filter(is_retry);
        self.due.add(
            retries().map(|result| (result.subscription_id, result.next_attempt_at.since(batch.now))),
            now,
        );
        // A retry may be the next to fall due.
        if room_is_wanted || retries().next().is_some() {
            self.signals.nudge_schedule();
        }
        // A result that had been applied before may hide a retry that was never announced.
        let unannounced = batch.results.iter().filter(|result| !result.changed);
        self.signals.wake_schedule(unannounced.map(|result| result.subscription_id));
        if batch.results.iter().any(|result| result.status == SagaStatus::DeadLettered) {
            self.signals.wake(Stage::DeadLetters);
        }
        let says_gone = |result: &AppliedResult| {
            result.changed && matches!(&result.result.outcome, Outcome::Failed(code) if code.means_gone())
        };
        if batch.results.iter().any(says_gone) {
            self.signals.wake(Stage::Caretaker);
        }
    }

    fn account_applied(&self, batch: &ApplyBatch) {
        let (good, bad) = (self.log.wants(false), self.log.wants(true));
        for result in batch.results.iter().filter(|result| result.changed) {
            self.metrics.applied(result.status);
            let delivered = result.result.outcome == Outcome::Delivered;
            if delivered && good {
                log_delivered(result);
            } else if !delivered && bad {
                log_failed(result);
            }
        }
    }
}

fn log_delivered(result: &AppliedResult) {
    tracing::info!(
        target: DELIVERY_LOG_TARGET,
        stage = NAME,
        delivery_status = result.status.as_str(),
        tenant = result.trace.tenant.as_str(),
        correlation_id = result.trace.correlation_id.as_str(),
        saga_id = result.saga_id.0,
        job_id = result.job_id.0,
        attempt_count = result.attempt_count,
        "delivered"
    );
}

fn log_failed(result: &AppliedResult) {
    let error_code = match &result.result.outcome {
        Outcome::Failed(code) => code.as_str(),
        Outcome::Delivered => "",
    };
    // That the attempt failed is the worker's line.
    let what = match result.status {
        SagaStatus::DeadLettered => "given up",
        _ => "waits for a retry",
    };
    tracing::warn!(
        target: DELIVERY_LOG_TARGET,
        stage = NAME,
        delivery_status = result.status.as_str(),
        tenant = result.trace.tenant.as_str(),
        correlation_id = result.trace.correlation_id.as_str(),
        saga_id = result.saga_id.0,
        job_id = result.job_id.0,
        attempt_count = result.attempt_count,
        error_code,
        "{what}"
    );
}
