//! Sending again: dead letters, one or all that match a filter, and any delivery that has ended.
//!
//! Promises: a letter or a delivery leads to one new saga, however often it is asked for. A requeue of many works in short
//! transactions, so that live traffic does not wait for it; one that breaks off has done a part, and asking again does the
//! rest.
//!
//! Not done here: deciding who may ask (the API does).

use crate::{DELIVERY_LOG_TARGET, DeliveryLog, Metrics, Signals, step_size::StepSize};
use hooksaga_saga::{DeadLetterId, EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    DeadLetterFilter, DeadLetterStore, RequeueOutcome, RequeueStep, Requeued, RequeuedBatch, ResendOutcome,
    SendTest, Stage, StoreError, StoreResult, TenantScope, TestOutcome, Trace,
};
use std::{sync::Arc, time::Instant};

/// What a requeue of many did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequeueTally {
    /// In a dry run: what would have been requeued.
    pub requeued: u64,
    /// Letters of subscriptions that are not active and verified.
    pub skipped: u64,
    /// Whether every letter that matches was considered. If not, asking again does more.
    pub complete: bool,
}

impl RequeueTally {
    /// Letters that fit the filter and were considered.
    pub fn matched(self) -> u64 {
        self.requeued + self.skipped
    }
}

#[derive(Clone)]
pub struct Requeue {
    store: Arc<dyn DeadLetterStore>,
    /// Attempts of sagas whose subscription has no limit of its own.
    default_limit: u32,
    step_size: Arc<StepSize>,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
}

impl Requeue {
    /// Letters examined in one go.
    const EXAMINE: u32 = 1000;
    const NAME: &str = "requeue";

    pub fn new(
        store: Arc<dyn DeadLetterStore>,
        default_limit: u32,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        Self { store, default_limit, step_size: Arc::new(StepSize::new()), signals, metrics, log }
    }

    /// Requeues one letter.
    pub async fn one(&self, scope: &TenantScope, id: DeadLetterId) -> StoreResult<RequeueOutcome> {
        let outcome = self.store.requeue(scope, id, self.default_limit).await?;
        if let RequeueOutcome::Created(requeued, trace) = &outcome {
            self.created(*requeued, trace);
        }
        Ok(outcome)
    }

    /// Sends a delivery that has ended again.
    pub async fn resend(&self, scope: &TenantScope, id: SagaId) -> StoreResult<ResendOutcome> {
        let outcome = self.store.resend(scope, id, self.default_limit).await?;
        if let ResendOutcome::Created(requeued, trace) = &outcome {
            self.created(*requeued, trace);
        }
        Ok(outcome)
    }

    /// Sends a test event, which is stored already, to its subscription.
    pub async fn test(
        &self,
        scope: &TenantScope,
        event_id: EventId,
        subscription_id: SubscriptionId,
    ) -> StoreResult<TestOutcome> {
        let wanted = SendTest { event_id, subscription_id, default_limit: self.default_limit };
        let outcome = self.store.send_test(scope, wanted).await?;
        if let TestOutcome::Delivery(_) = outcome {
            self.signals.wake_schedule([subscription_id]);
        }
        Ok(outcome)
    }

    fn created(&self, requeued: Requeued, trace: &Trace) {
        self.signals.wake(Stage::Schedule);
        self.metrics.requeued(1);
        self.log_created(requeued.saga_id, trace);
    }

    /// Requeues the letters that match, oldest first, `limit` at most; skipped ones do not count. A dry run counts, and
    /// changes nothing.
    ///
    /// It begins no other step after `deadline`, nor after a step that fails. What it has requeued by then is its result, and
    /// asking again does more. If that is nothing, or was only counted, it returns the error; after the deadline that it was
    /// too slow.
    pub async fn many(
        &self,
        scope: &TenantScope,
        filter: &DeadLetterFilter,
        limit: u32,
        dry_run: bool,
        deadline: Instant,
    ) -> StoreResult<RequeueTally> {
        let mut tally = RequeueTally::default();
        let mut after = None;
        loop {
            let left = limit.saturating_sub(u32::try_from(tally.requeued).unwrap_or(u32::MAX));
            if left == 0 {
                return Ok(tally);
            }
            let step = RequeueStep {
                filter: filter.clone(),
                after,
                examine: Self::EXAMINE,
                requeue: left.min(self.step_size.rows()),
                dry_run,
                default_limit: self.default_limit,
            };
            let started = Instant::now();
            let batch = match self.store.requeue_step(scope, &step).await {
                Ok(batch) => batch,
                Err(error) => {
                    self.step_size.failed(&error);
                    return part(tally, dry_run, error);
                }
            };
            self.account(&batch);
            tally.requeued += batch.requeued;
            tally.skipped += batch.skipped;
            after = batch.resume_after;
            if after.is_none() {
                return Ok(RequeueTally { complete: true, ..tally });
            }
            if Instant::now() >= deadline {
                let slow = StoreError::TooSlow("a requeue of many dead letters".to_owned());
                return part(tally, dry_run, slow);
            }
            if !batch.sagas.is_empty() {
                tokio::time::sleep(self.step_size.rest_after(started.elapsed())).await;
            }
        }
    }

    fn account(&self, batch: &RequeuedBatch) {
        self.signals.wake_schedule(batch.sagas.iter().map(|saga| saga.subscription_id));
        self.metrics.requeued(batch.sagas.len() as u64);
        for saga in &batch.sagas {
            self.log_created(saga.requeued.saga_id, &saga.trace);
        }
    }

    fn log_created(&self, saga_id: SagaId, trace: &Trace) {
        if self.log.wants(false) {
            tracing::info!(
                target: DELIVERY_LOG_TARGET,
                stage = Self::NAME,
                delivery_status = "Pending",
                tenant = trace.tenant.as_str(),
                correlation_id = trace.correlation_id.as_str(),
                saga_id = saga_id.0,
                "sent again"
            );
        }
    }
}

/// What a requeue returns that this error ended: what it has done is reported, because its client has to know of it.
fn part(tally: RequeueTally, dry_run: bool, error: StoreError) -> StoreResult<RequeueTally> {
    if tally.requeued == 0 || dry_run {
        return Err(error);
    }
    // The deadline is ordinary: the client goes on.
    if !matches!(error, StoreError::TooSlow(_)) {
        tracing::warn!(%error, requeued = tally.requeued, "a requeue of many dead letters ended early");
    }
    Ok(tally)
}
