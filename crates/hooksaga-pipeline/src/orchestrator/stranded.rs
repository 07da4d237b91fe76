//! Sagas whose `next_attempt_at` is impossibly far in the future, because the database's clock was ahead when it was
//! written. They are treated as due and get the job for the key that they have. One that fails again is retried by the
//! next scan: its new time must be later than the old one.

use super::Orchestrator;
use crate::Progress;
use hooksaga_saga::{FurthestAttempt, SubscriptionId};
use hooksaga_store::{Stage, StoreResult};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

pub(super) const NAME: &str = "stranded";
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// Between the steps of a scan.
const SOON: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Stranded {
    beyond: FurthestAttempt,
    /// Where the scan under way resumes.
    after: Mutex<Option<SubscriptionId>>,
}

impl Stranded {
    pub(super) fn new(beyond: FurthestAttempt) -> Self {
        Self { beyond, after: Mutex::default() }
    }
}

impl Orchestrator {
    /// One step of a scan.
    pub async fn stranded_once(&self) -> StoreResult<Progress> {
        let after = *self.stranded.after.lock().unwrap_or_else(PoisonError::into_inner);
        // Jobs may exist even if it fails: sagas are moved after that.
        let scheduled = self.store.schedule_stranded(after, self.stranded.beyond).await;
        let step = scheduled.inspect_err(|_| self.signals.wake(Stage::Worker))?;
        // Whoever had some may have more: its page is read again.
        let next = if step.sagas > 0 { after } else { step.resume_after };
        *self.stranded.after.lock().unwrap_or_else(PoisonError::into_inner) = next;
        if step.sagas > 0 {
            tracing::warn!(
                component = NAME,
                deliveries = step.sagas,
                "deliveries were scheduled impossibly far ahead (was the database's clock wrong?); treating them as due"
            );
            self.signals.wake(Stage::Worker);
        }
        let more = step.sagas > 0 || next.is_some();
        Ok(Progress::Idle { until: more.then_some(SOON) })
    }
}
