//! The caretaker: disables subscriptions whose endpoint is gone or keeps failing, and tells operators what happened.
//!
//! Promises: an endpoint that returned 410 is disabled at once; one whose attempts have all failed for `disable_after`,
//! at least [`hooksaga_saga::LEAST_FAILURES`] of them, within seconds of the result that shows it. What it does, and what
//! the verifier did, becomes an event of the reserved tenant exactly once, even if processes crash. Any number of copies
//! may run.
//!
//! It reads the counters that the orchestrator keeps of failing endpoints, never deliveries. Two loops: one is woken for
//! what happened, the other looks through the runs of failures at intervals, since time alone makes them too long.
//!
//! Not done here: deciding about deliveries. Those of a disabled subscription wait as those of a paused one do.

use crate::{Driver, Metrics, Progress, Shutdown, Signals, driver::Rhythm};
use hooksaga_saga::{CareStep, EventType, Tenant, Timestamp, judge};
use hooksaga_store::{
    Announcement, AnnouncementKind, CaretakerStore, Cause, Disable, NewEvent, ScanStep, Stage, StoreResult,
    Troubled,
};
use jiff::{SignedDuration, civil::DateTime};
use serde_json::json;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub struct Caretaker {
    store: Arc<dyn CaretakerStore>,
    /// `None` means that nobody is disabled for failing.
    disable_after: Option<Duration>,
    signals: Signals,
    metrics: Arc<Metrics>,
}

impl Caretaker {
    /// Rows per statement.
    const BATCH: u32 = 100;
    const NAME: &str = "caretaker";
    /// Runs of failures are looked through that often, and more often where `disable_after` is short.
    const LOOK_EVERY: Duration = Duration::from_secs(5);
    const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(250);

    pub fn new(
        store: Arc<dyn CaretakerStore>,
        disable_after: Option<Duration>,
        signals: Signals,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { store, disable_after, signals, metrics }
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = |rhythm| Driver {
            name: Self::NAME,
            rhythm,
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        let news = driver(Rhythm::WokenSeldom(Stage::Caretaker));
        let look = async {
            if let Some(disable_after) = self.disable_after {
                let every = driver(Rhythm::Every(Self::look_every(disable_after)));
                every.run(|| self.look_on_time(disable_after)).await;
            }
        };
        tokio::join!(news.run(|| self.care()), look);
    }

    fn look_every(disable_after: Duration) -> Duration {
        (disable_after / 8).clamp(Self::LOOK_AT_MOST_EVERY, Self::LOOK_EVERY)
    }

    /// Disables what has failed for too long; the other loop announces it.
    async fn look_on_time(&self, disable_after: Duration) -> StoreResult<Progress> {
        let started = Instant::now();
        if self.look(disable_after).await? > 0 {
            self.metrics.pass(Self::NAME, started.elapsed());
            self.signals.wake(Stage::Caretaker);
        }
        Ok(Progress::IDLE)
    }

    /// One pass over everything: disables what is gone or has failed for too long, and announces.
    pub async fn run_once(&self) -> StoreResult<Progress> {
        let progress = self.care().await?;
        let Some(disable_after) = self.disable_after else { return Ok(progress) };
        let disabled = self.look(disable_after).await?;
        if disabled == 0 {
            return Ok(progress);
        }
        Ok(match self.care().await? {
            Progress::Worked => Progress::Worked,
            _ => Progress::of_batch(disabled, u32::MAX),
        })
    }

    /// Disables what is gone, and announces what happened.
    async fn care(&self) -> StoreResult<Progress> {
        let started = Instant::now();
        let gone = self.store.gone(Self::BATCH).await?;
        let mut more = gone.len() >= Self::BATCH as usize;
        let mut done = gone.len();
        if !gone.is_empty() {
            self.disable(&gone).await?;
        }
        let verified = self.store.note_verified(Self::BATCH).await?;
        more |= verified >= Self::BATCH;
        done += verified as usize;
        let announced = self.announce().await?;
        more |= announced >= Self::BATCH as usize;
        done += announced;
        if done > 0 {
            self.metrics.pass(Self::NAME, started.elapsed());
        }
        Ok(if more { Progress::Worked } else { Progress::of_batch(done, u32::MAX) })
    }

    /// Looks through the runs of failures that have lasted long enough to matter. Returns how many it acted on.
    async fn look(&self, disable_after: Duration) -> StoreResult<usize> {
        let (mut after, mut done) = (None, 0);
        loop {
            let page = self.store.troubled(disable_after / 2, ScanStep { after, limit: Self::BATCH }).await?;
            let (mut failing, mut hopeless) = (Vec::new(), Vec::new());
            for Troubled { subscription_id, run } in page.items {
                match judge(&run, disable_after) {
                    CareStep::Wait => {}
                    CareStep::Announce => failing.push((subscription_id, run.since)),
                    CareStep::Disable => {
                        hopeless
                            .push(Disable { subscription_id, cause: Cause::Failing { since: run.since } });
                    }
                }
            }
            done += failing.len() + hopeless.len();
            if !hopeless.is_empty() {
                self.disable(&hopeless).await?;
            }
            if !failing.is_empty() {
                for news in self.store.note_failing(&failing).await? {
                    tracing::warn!(
                        subscription_id = news.subscription_id.0,
                        tenant = news.tenant.as_str(),
                        "the endpoint keeps failing: every attempt has failed for half of callbacks.disable_after; its \
                         subscription is disabled if this continues"
                    );
                }
            }
            after = page.resume_after;
            if after.is_none() {
                return Ok(done);
            }
        }
    }

    async fn disable(&self, causes: &[Disable]) -> StoreResult<()> {
        for news in self.store.disable(causes).await? {
            let Some(reason) = news.reason else { continue };
            let wording = reason.wording();
            self.metrics.subscription_disabled(reason);
            tracing::warn!(
                subscription_id = news.subscription_id.0,
                tenant = news.tenant.as_str(),
                reason = reason.as_str(),
                "subscription disabled: {}; {}",
                wording.meaning,
                wording.advice
            );
        }
        Ok(())
    }

    /// Turns announcements into events. Returns how many were there.
    async fn announce(&self) -> StoreResult<usize> {
        let noted = self.store.announcements(Self::BATCH).await?;
        if noted.is_empty() {
            return Ok(0);
        }
        let events: Vec<_> =
            noted.into_iter().map(|one| (event(&one), one)).map(|(e, one)| (one, e)).collect();
        if !self.store.announce(&events).await?.is_empty() {
            self.signals.wake(Stage::Router);
        }
        Ok(events.len())
    }
}

/// The event that tells of it. The same announcement always makes the same event, with the same `external_id`.
fn event(news: &Announcement) -> NewEvent {
    let kind = news.kind.as_str();
    let event_type = format!("{}subscription.{kind}", EventType::RESERVED_PREFIX);
    let external_id = format!("subscription-{kind}-{}-{}", news.subscription_id, news.at.as_micros());
    let mut payload = json!({
        "type": event_type,
        "at": rfc_3339(news.at),
        "tenant": news.tenant,
        "subscription_id": news.subscription_id.0,
        "callback_url": news.callback_url,
    });
    if let (AnnouncementKind::Disabled, Some(reason)) = (news.kind, news.reason) {
        payload["reason"] = json!(reason.as_str());
    }
    NewEvent {
        tenant: Tenant::RESERVED.parse().expect("a constant that is a tenant"),
        event_type: event_type.parse().expect("a reserved prefix and a name make a type"),
        payload: Arc::from(payload.to_string()),
        correlation_id: external_id.parse().expect("words and digits make a correlation id"),
        external_id: Some(external_id.parse().expect("words and digits make an external id")),
    }
}

/// As the API writes times: UTC, to the microsecond.
pub(crate) fn rfc_3339(at: Timestamp) -> String {
    const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    format!("{:.6}Z", EPOCH.saturating_add(SignedDuration::from_micros(at.as_micros())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{DisabledReason, SubscriptionId};

    /// A run is acted on within 10 s of the result that shows it: a look begins 5 s later at the latest.
    #[test]
    fn it_looks_at_the_failing_often_enough() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        for disable_after in
            [1, 2, 8, 39, 40, 41, 60].map(Duration::from_secs).into_iter().chain([hours(1), hours(120)])
        {
            let every = Caretaker::look_every(disable_after);
            assert!(every <= Duration::from_secs(5), "{disable_after:?}: {every:?}");
            assert!(every >= Caretaker::LOOK_AT_MOST_EVERY, "{disable_after:?}: {every:?}");
            assert!(
                every <= disable_after / 4,
                "half of the time, too, is noticed: {disable_after:?}: {every:?}"
            );
        }
    }

    #[test]
    fn an_announcement_is_an_event_of_the_reserved_tenant_and_always_the_same() {
        let news = Announcement {
            kind: AnnouncementKind::Disabled,
            subscription_id: SubscriptionId(17),
            at: Timestamp::from_micros(1_769_860_800_123_456),
            tenant: "acme".to_owned(),
            callback_url: "https://example.com/a?q=\"x\"".to_owned(),
            reason: Some(DisabledReason::Gone),
        };
        let first = event(&news);
        assert_eq!(
            (first.tenant.as_str(), first.event_type.as_str()),
            ("hooksaga", "hooksaga.subscription.disabled")
        );
        assert_eq!(first.external_id, event(&news).external_id);
        let payload: serde_json::Value = serde_json::from_str(&first.payload).expect("JSON");
        let expected = json!({
            "type": "hooksaga.subscription.disabled", "at": "2026-01-31T12:00:00.123456Z", "tenant": "acme",
            "subscription_id": 17, "callback_url": "https://example.com/a?q=\"x\"", "reason": "GONE",
        });
        assert_eq!(payload, expected);

        let verified = event(&Announcement { kind: AnnouncementKind::Verified, reason: None, ..news });
        assert_eq!(verified.event_type.as_str(), "hooksaga.subscription.verified");
        assert_ne!(verified.external_id, first.external_id);
        assert!(!verified.payload.contains("reason"));
    }
}
