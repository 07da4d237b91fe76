//! `endpoint_caretaker`: disables subscriptions whose endpoint is gone or keeps failing, and tells operators.
//!
//! It reads counters ([`FailureRun`]), never deliveries. Whatever it does to a subscription it notes in the same transaction
//! in `pending_announcements`; an announcement becomes an event of the reserved tenant in a transaction of its own, under
//! an `external_id` that is derived from it. So it is announced exactly once, even if a process crashes in between.

use crate::{NewEvent, ScanStep, StoreResult};
use async_trait::async_trait;
use hooksaga_saga::{DisabledReason, EventId, FailureRun, SubscriptionId, Tenant, Timestamp};
use std::time::Duration;

/// A subscription whose attempts all fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Troubled {
    pub subscription_id: SubscriptionId,
    pub run: FailureRun,
}

/// A place among them: behind the run that began then, of this subscription.
pub type TroubledPlace = (Timestamp, SubscriptionId);

/// Some of the subscriptions whose attempts all fail, those that have for longest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TroubledPage {
    pub items: Vec<Troubled>,
    /// Where the next page resumes: behind this one. `None` if this page reached the end.
    pub resume_after: Option<TroubledPlace>,
}

impl TroubledPage {
    /// What a query for at most `limit` of them found.
    pub fn of(items: Vec<Troubled>, limit: u32) -> Self {
        let full = items.len() >= limit as usize;
        let resume_after = items.last().filter(|_| full).map(|one| (one.run.since, one.subscription_id));
        Self { items, resume_after }
    }
}

/// Why a subscription is to be disabled, as it was read. It is not, if that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its endpoint, which is this URL, said that it is gone.
    Gone { url: String },
    /// The run of failures that began then.
    Failing { since: Timestamp },
}

impl Cause {
    pub fn reason(&self) -> DisabledReason {
        match self {
            Self::Gone { .. } => DisabledReason::Gone,
            Self::Failing { .. } => DisabledReason::Failing,
        }
    }
}

/// A subscription to disable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disable {
    pub subscription_id: SubscriptionId,
    pub cause: Cause,
}

/// What is announced to operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnnouncementKind {
    Verified,
    Failing,
    Disabled,
}

impl AnnouncementKind {
    pub const ALL: [Self; 3] = [Self::Verified, Self::Failing, Self::Disabled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Failing => "failing",
            Self::Disabled => "disabled",
        }
    }

    /// `None` for a name that no kind has.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What happened to a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    pub kind: AnnouncementKind,
    pub subscription_id: SubscriptionId,
    pub reason: Option<DisabledReason>,
}

impl Happening {
    /// It has been verified, or fails.
    pub fn new(kind: AnnouncementKind, subscription_id: SubscriptionId) -> Self {
        Self { kind, subscription_id, reason: None }
    }

    pub fn disabled(subscription_id: SubscriptionId, reason: DisabledReason) -> Self {
        Self { reason: Some(reason), ..Self::new(AnnouncementKind::Disabled, subscription_id) }
    }

    /// As it was stored. `None` for a kind that this program does not know.
    pub fn stored(id: SubscriptionId, kind: &str, reason: Option<&str>) -> Option<Self> {
        let kind = AnnouncementKind::from_name(kind)?;
        Some(Self { reason: reason.and_then(DisabledReason::from_name), ..Self::new(kind, id) })
    }

    /// With when it happened, and whose subscription it is.
    pub fn at(self, at: Timestamp, tenant: String, callback_url: String) -> Announcement {
        let Self { kind, subscription_id, reason } = self;
        Announcement { kind, subscription_id, at, tenant, callback_url, reason }
    }
}

/// Something that happened to a subscription and is announced to operators. Subscription, kind and time are its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub kind: AnnouncementKind,
    pub subscription_id: SubscriptionId,
    pub at: Timestamp,
    /// Whose subscription it is.
    pub tenant: String,
    /// As it was then; of a verification, the URL that was verified.
    pub callback_url: String,
    pub reason: Option<DisabledReason>,
}

impl Announcement {
    /// Nothing is announced about the reserved tenant: what is announced would announce itself.
    pub fn is_wanted(&self) -> bool {
        self.tenant != Tenant::RESERVED
    }

    /// What is noted when a subscription is disabled: that it fails, if nobody was told (`was_announced`) and that is the
    /// reason, and that it is disabled.
    pub fn with_its_failure(&self, was_announced: bool) -> impl Iterator<Item = Self> {
        let is_news = self.reason == Some(DisabledReason::Failing) && !was_announced;
        let failing = Self { kind: AnnouncementKind::Failing, reason: None, ..self.clone() };
        is_news.then_some(failing).into_iter().chain([self.clone()])
    }
}

#[async_trait]
pub trait CaretakerStore: Send + Sync {
    /// Up to `limit` subscriptions whose endpoint said that it is gone, each with the URL that said so.
    async fn gone(&self, limit: u32) -> StoreResult<Vec<Disable>>;

    /// The next runs of failures that have lasted at least `failing_for`, by index.
    async fn troubled(
        &self,
        failing_for: Duration,
        step: ScanStep<TroubledPlace>,
    ) -> StoreResult<TroubledPage>;

    /// One transaction. Where the cause is still what it was, it is taken off the counters, the subscription is disabled if
    /// it is active (and, where its endpoint is gone, if that is still its URL), and an announcement is noted; for a
    /// run that nobody was told of also that it fails. Nothing is noted about the reserved tenant. Returns what it disabled.
    async fn disable(&self, causes: &[Disable]) -> StoreResult<Vec<Announcement>>;

    /// Queues, in one transaction, announcements of these runs, which are still the same and of which nobody
    /// was told. Returns those that it noted.
    async fn note_failing(&self, runs: &[(SubscriptionId, Timestamp)]) -> StoreResult<Vec<Announcement>>;

    /// Queues, in one transaction, announcements of up to `limit` subscriptions that have been verified.
    /// Returns how many it looked at.
    async fn note_verified(&self, limit: u32) -> StoreResult<u32>;

    /// Up to `limit` announcements that are noted.
    async fn announcements(&self, limit: u32) -> StoreResult<Vec<Announcement>>;

    /// Appends the events, queues them for routing and forgets the announcements, in one transaction. An event whose
    /// `external_id` is there already is not appended again. Returns the new events.
    async fn announce(&self, events: &[(Announcement, NewEvent)]) -> StoreResult<Vec<EventId>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_not_told_that_it_fails_is_told_before_that_it_is_disabled() {
        let noted = |reason, was_announced| {
            let disabled = Happening::disabled(SubscriptionId(1), reason);
            let disabled = disabled.at(Timestamp::from_micros(5), "a".to_owned(), "https://a/".to_owned());
            disabled.with_its_failure(was_announced).map(|it| (it.kind, it.reason)).collect::<Vec<_>>()
        };
        let disabled = |reason| (AnnouncementKind::Disabled, Some(reason));
        let (failing, gone) = (DisabledReason::Failing, DisabledReason::Gone);
        assert_eq!(noted(failing, false), [(AnnouncementKind::Failing, None), disabled(failing)]);
        assert_eq!(noted(failing, true), [disabled(failing)]);
        assert_eq!(noted(gone, false), [disabled(gone)]);
    }
}
