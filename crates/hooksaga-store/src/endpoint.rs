//! What a batch of applied results says about its endpoints: the same for every back end.

use crate::FinishedJob;
use hooksaga_saga::{ErrorCode, Outcome, SagaId, SubscriptionId, Timestamp};
use std::collections::BTreeMap;

/// What results of one batch say about one subscription's endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointNews {
    /// Something was delivered: its run of failures is over. What failed in the same batch begins no new one, since
    /// nobody knows which came first.
    pub delivered: bool,
    /// Attempts that failed.
    pub failures: u32,
    /// The last of them.
    pub last_failure: Option<(SagaId, ErrorCode)>,
    /// The attempt to which the endpoint said that it is gone, by its job's key.
    pub gone: Option<(SagaId, Timestamp)>,
}

/// The news of a batch, by subscription. `changed`: results that were applied for the first time.
pub fn endpoint_news<'a>(
    changed: impl IntoIterator<Item = &'a FinishedJob>,
) -> BTreeMap<SubscriptionId, EndpointNews> {
    let mut all: BTreeMap<SubscriptionId, EndpointNews> = BTreeMap::new();
    for job in changed {
        match &job.result.outcome {
            Outcome::Delivered => all.entry(job.subscription_id).or_default().delivered = true,
            Outcome::Failed(code) if code.counts_against_endpoint() => {
                let news = all.entry(job.subscription_id).or_default();
                news.failures += 1;
                news.last_failure = Some((job.saga_id, code.clone()));
                if code.means_gone() {
                    news.gone = Some((job.saga_id, job.result.attempt_at));
                }
            }
            Outcome::Failed(_) => {}
        }
    }
    all
}
