//! `dead_letter_operator`, for large work: redrives, and catching up after a verification.
//!
//! A redrive is a row with its progress. Each step is one short transaction: it makes some sagas and stores how far it
//! came, together. So it can be interrupted anywhere and resumes where it stopped, by any process.

use crate::{DeadLetterFilter, EventPlace, EventSpan, RequeuedSaga, StoreResult, TenantScope};
use async_trait::async_trait;
use hooksaga_saga::{Chosen, EventId, Invalid, KeyId, RedriveId, SubscriptionId, Timestamp};
use std::{fmt, str::FromStr, time::Duration};

/// What a redrive sends again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveWork {
    /// Dead letters that match, and were created before the redrive; `requeued` is ignored.
    DeadLetters(DeadLetterFilter),
    /// Events of the subscription's tenant and topics for which it has no saga yet.
    Events {
        subscription_id: SubscriptionId,
        /// Created at or after.
        since: Timestamp,
        /// Created before; `None` means before the redrive.
        until: Option<Timestamp>,
    },
}

impl RedriveWork {
    /// Its name outside and in the database.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::DeadLetters(_) => "dead_letters",
            Self::Events { .. } => "events",
        }
    }
}

/// Who started a redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starter {
    /// `None` for the root key, which is not stored.
    pub key_id: Option<KeyId>,
    /// At most 100 characters.
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveStatus {
    Running,
    Done,
    Cancelled,
    /// It cannot go on; [`Redrive::error`] says why.
    Failed,
}

impl RedriveStatus {
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Cancelled, Self::Failed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for RedriveStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no status of a redrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no redrive status {0:?}")]
pub struct UnknownRedriveStatus(String);

impl FromStr for RedriveStatus {
    type Err = UnknownRedriveStatus;

    fn from_str(text: &str) -> Result<Self, UnknownRedriveStatus> {
        let known = Self::ALL.into_iter().find(|status| status.as_str() == text);
        known.ok_or_else(|| UnknownRedriveStatus(text.to_owned()))
    }
}

/// A redrive as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    pub id: RedriveId,
    /// `None` means every tenant's.
    pub tenant: Option<String>,
    pub work: RedriveWork,
    pub status: RedriveStatus,
    /// Why it failed.
    pub error: Option<String>,
    /// Letters or events that were asked for and examined.
    pub examined: u64,
    /// Sagas made of them.
    pub created: u64,
    /// The rest: sent already, or not deliverable now.
    pub skipped: u64,
    /// When the last event was created that it examined, whosever that was.
    pub reached: Option<Timestamp>,
    pub started_by: Starter,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Redrive {
    /// How far the scan of a redrive of events came from the beginning to the end of its time, in percent. Where nothing of
    /// what it examined was asked for, this alone moves. `None` for dead letters, whose scan has no end that is known.
    pub fn percent(&self) -> Option<u8> {
        let RedriveWork::Events { since, until: Some(until), .. } = self.work else { return None };
        if self.status == RedriveStatus::Done {
            return Some(100);
        }
        let micros = |at: Timestamp| i128::from(at.as_micros());
        let whole = (micros(until) - micros(since)).max(1);
        let done = self.reached.map_or(0, |reached| micros(reached) - micros(since));
        // One that is not done yet does not say so.
        u8::try_from((done * 100 / whole).clamp(0, 99)).ok()
    }
}

/// What a redrive is stored as: flat, with what both kinds have in the same columns.
#[derive(Clone, Debug)]
pub struct RedriveColumns {
    pub kind: String,
    pub subscription_id: Option<i64>,
    pub event_type: Option<String>,
    pub final_error_code: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl From<&RedriveWork> for RedriveColumns {
    fn from(work: &RedriveWork) -> Self {
        let kind = work.kind().to_owned();
        match work {
            RedriveWork::DeadLetters(filter) => Self {
                kind,
                subscription_id: filter.subscription_id.map(|id| id.0),
                event_type: filter.event_type.as_ref().map(ToString::to_string),
                final_error_code: filter.final_error_code.as_ref().map(ToString::to_string),
                since: filter.created_after,
                until: filter.created_before,
            },
            RedriveWork::Events { subscription_id, since, until } => Self {
                kind,
                subscription_id: Some(subscription_id.0),
                event_type: None,
                final_error_code: None,
                since: Some(*since),
                until: *until,
            },
        }
    }
}

/// Reads back what was stored. What can no longer be parsed is an error: a filter without it would send more.
impl TryFrom<RedriveColumns> for RedriveWork {
    type Error = Invalid;

    fn try_from(columns: RedriveColumns) -> Result<Self, Invalid> {
        Ok(match (columns.kind.as_str(), columns.subscription_id) {
            ("events", Some(id)) => Self::Events {
                subscription_id: SubscriptionId(id),
                since: columns.since.unwrap_or(Timestamp::from_micros(0)),
                until: columns.until,
            },
            _ => Self::DeadLetters(DeadLetterFilter {
                subscription_id: columns.subscription_id.map(SubscriptionId),
                event_type: columns.event_type.as_deref().map(str::parse).transpose()?,
                final_error_code: columns.final_error_code.as_deref().map(str::parse).transpose()?,
                requeued: None,
                created_after: columns.since,
                created_before: columns.until,
            }),
        })
    }
}

/// How many redrives may run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningLimits {
    pub in_all: u32,
    /// Of all that run when one tenant asks: the rest is kept for whoever speaks for every tenant, so that customers cannot
    /// lock the operator out.
    pub for_tenants: u32,
    /// At most this many of one tenant; redrives of all tenants are not counted.
    pub of_a_tenant: u32,
}

impl RunningLimits {
    /// What a process allows.
    pub const DEFAULT: Self = Self { in_all: 20, for_tenants: 15, of_a_tenant: 5 };

    /// What stands in the way of one more. `of_tenant`: how many run of the tenant that it is for, if it is for one.
    pub fn refusal(&self, scope: &TenantScope, in_all: u64, of_tenant: Option<u64>) -> Option<TooMany> {
        let most = if scope.tenant().is_some() { self.for_tenants } else { self.in_all };
        match of_tenant {
            Some(running) if running >= u64::from(self.of_a_tenant) => Some(TooMany::OfTenant(running)),
            _ if in_all >= u64::from(most) => Some(TooMany::InAll),
            _ => None,
        }
    }
}

/// Why no other redrive may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// This many of the tenant's own run.
    OfTenant(u64),
    /// Redrives of other tenants run; their number is not shown.
    InAll,
}

/// A redrive to be started.
#[derive(Clone, Copy, Debug)]
pub struct NewRedrive<'a> {
    /// Whose letters or events are sent again.
    pub scope: &'a TenantScope,
    pub work: &'a RedriveWork,
    pub starter: &'a Starter,
}

/// What became of a request for a redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    Started(Box<Redrive>),
    /// The subscription does not exist.
    NoSuchSubscription(SubscriptionId),
    /// The subscription is not active and verified.
    NotDeliverable(SubscriptionId),
    TooMany(TooMany),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    Cancelled(Box<Redrive>),
    /// It has ended.
    NotRunning(RedriveStatus),
    NotFound,
}

/// What one step may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows examined, whosever they are.
    pub examine: u32,
    /// Sagas made.
    pub create: u32,
    /// For sagas whose subscription has no limit of its own.
    pub default_limit: u32,
}

impl StepLimits {
    /// How many rows a step examines: one that looked at none would never get on.
    pub fn examined(&self) -> u32 {
        self.examine.max(1)
    }
}

/// Whose a step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOf {
    Redrive(RedriveId),
    /// A subscription that was verified, and catches up.
    CatchUp(SubscriptionId),
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveStep {
    pub of: StepOf,
    pub sagas: Vec<RequeuedSaga>,
    pub examined: u64,
    pub skipped: u64,
    /// It has ended with this step, so.
    pub ended: Option<RedriveStatus>,
}

impl RedriveStep {
    /// A step that did nothing, so far.
    pub fn nothing(of: StepOf) -> Self {
        Self { of, sagas: Vec::new(), examined: 0, skipped: 0, ended: None }
    }

    pub fn created(&self) -> u64 {
        u64::try_from(self.sagas.len()).unwrap_or(u64::MAX)
    }

    /// Counts what was chosen, and the sagas that were made of it: one that could not be made counts as skipped.
    pub fn take_over<K>(&mut self, sagas: Vec<RequeuedSaga>, chosen: &Chosen<K>) {
        self.sagas = sagas;
        self.examined = chosen.examined;
        self.skipped = chosen.examined.saturating_sub(self.created());
        if chosen.is_end {
            self.ended = Some(RedriveStatus::Done);
        }
    }
}

/// Why a redrive of events ends as failed.
pub const NOT_DELIVERABLE: &str = "the subscription is no longer active and verified, or was deleted; if it is there, resume or verify it and start \
     another redrive";

/// Where a subscription that catches up stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    pub since: Timestamp,
    /// The end of what it missed, once that is known.
    pub until: Option<Timestamp>,
    /// The event behind which it goes on; without a time, from the first.
    pub after_at: Option<Timestamp>,
    pub after_id: i64,
}

impl CatchUp {
    /// What its next step examines.
    pub fn span(&self, oldest: Timestamp, now: Timestamp) -> EventSpan {
        let at = self.after_at.unwrap_or_else(|| self.since.max(oldest));
        EventSpan { after: (at, EventId(self.after_id)), until: self.until.unwrap_or(now) }
    }

    /// Where it stands after that step; `None`: it has caught up.
    pub fn onward(&self, span: EventSpan, chosen: &Chosen<EventPlace>) -> Option<Self> {
        let (at, id) = chosen.reached.filter(|_| !chosen.is_end)?;
        Some(Self { until: Some(span.until), after_at: Some(at), after_id: id.0, ..*self })
    }
}

/// What to do with a subscription that catches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUpTurn {
    /// It goes on, with events of this time at the earliest.
    Scan {
        oldest: Timestamp,
    },
    /// It waits for `wait`. `until`: the end of what it missed, as far as that is known.
    Later {
        until: Option<Timestamp>,
        wait: Duration,
    },
    Forget,
}

impl CatchUpTurn {
    /// Between two checks of one that has lost its verification again.
    const UNVERIFIED: Duration = Duration::from_secs(5);
    /// Between two checks of one that is paused or disabled, which may last.
    const INACTIVE: Duration = Duration::from_secs(60);

    /// `subscription`: whether it is active and whether it is verified; `None` once it is deleted. What it missed until it
    /// was verified waits while it is paused or disabled, as its deliveries do, for `window` after that.
    pub fn decide(
        subscription: Option<(bool, bool)>,
        (since, until): (Timestamp, Option<Timestamp>),
        window: Option<Duration>,
        now: Timestamp,
    ) -> Self {
        let (Some((active, verified)), Some(window)) = (subscription, window) else { return Self::Forget };
        let oldest = now.before(window);
        if active && verified {
            return Self::Scan { oldest };
        }
        // What comes while it is paused it misses for another reason.
        let until = until.or_else(|| verified.then_some(now));
        if until.unwrap_or(since) <= oldest {
            return Self::Forget;
        }
        Self::Later { until, wait: if verified { Self::INACTIVE } else { Self::UNVERIFIED } }
    }
}

#[async_trait]
pub trait RedriveStore: Send + Sync {
    /// Stores a redrive, unless too many run. Letters and events that come later are not part of it.
    async fn start(&self, new: NewRedrive<'_>, limits: RunningLimits) -> StoreResult<StartOutcome>;

    /// Ends one that runs. What it made stays.
    async fn cancel(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<CancelOutcome>;

    /// Takes the running redrive that has waited longest, which nobody else works on, one step on: its sagas, its counts
    /// and its progress in one transaction. `None` if none runs.
    async fn advance(&self, limits: StepLimits) -> StoreResult<Option<RedriveStep>>;

    /// The same for the subscriptions that were verified: the events since it was created or its URL changed, as far back
    /// as `window`, for which it has no saga yet. A `window` of `None` means that they are forgotten.
    ///
    /// The scan ends at the time of its first step, which is after the verification committed. An event that a router
    /// handled without seeing the verification was stored before that time, so the scan finds it. An event stored later
    /// is routed with the subscription verified. An event that is older than the gap but was routed during it is queued
    /// by the router with its own end ([`MissedEarly`](crate::MissedEarly)). If several processes create the same saga,
    /// its unique key admits one.
    async fn catch_up(
        &self,
        limits: StepLimits,
        window: Option<Duration>,
    ) -> StoreResult<Option<RedriveStep>>;

    /// Lets others go before the subscription whose turn it is to catch up, which cannot continue: it is examined again
    /// after `wait`.
    async fn put_off_catch_up(&self, wait: Duration) -> StoreResult<()>;

    /// Lets others go before the redrive whose turn it is, which cannot go on.
    async fn put_off_redrive(&self) -> StoreResult<()>;

    /// How many redrives run.
    async fn running(&self) -> StoreResult<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_filter_is_read_back_or_refused() {
        let work = RedriveWork::DeadLetters(DeadLetterFilter {
            subscription_id: Some(SubscriptionId(3)),
            event_type: Some("order.created".parse().unwrap()),
            final_error_code: Some("HTTP_503".parse().unwrap()),
            ..DeadLetterFilter::default()
        });
        let columns = RedriveColumns::from(&work);
        assert_eq!(columns.clone().try_into(), Ok(work));
        let no_type = RedriveColumns { event_type: Some("two words".to_owned()), ..columns.clone() };
        assert!(RedriveWork::try_from(no_type).is_err(), "it must not become a filter of all types");
        let no_code = RedriveColumns { final_error_code: Some(String::new()), ..columns };
        assert!(RedriveWork::try_from(no_code).is_err());
    }

    #[test]
    fn a_percentage_is_of_the_time_that_was_asked_for_and_ends_at_100() {
        let at = Timestamp::from_micros;
        let percent = |status, reached: Option<i64>, (since, until)| {
            let work = RedriveWork::Events {
                subscription_id: SubscriptionId(1),
                since: at(since),
                until: Some(at(until)),
            };
            let redrive = Redrive {
                id: RedriveId(1),
                tenant: None,
                work,
                status,
                error: None,
                examined: 0,
                created: 0,
                skipped: 0,
                reached: reached.map(at),
                started_by: Starter { key_id: None, name: "root".to_owned() },
                created_at: at(until),
                updated_at: at(until),
            };
            let letters = RedriveWork::DeadLetters(DeadLetterFilter::default());
            assert_eq!(Redrive { work: letters, ..redrive.clone() }.percent(), None);
            redrive.percent()
        };
        let span = (1_000, 3_000);
        assert_eq!(percent(RedriveStatus::Running, None, span), Some(0));
        assert_eq!(percent(RedriveStatus::Running, Some(2_000), span), Some(50));
        assert_eq!(percent(RedriveStatus::Cancelled, Some(2_999), span), Some(99));
        assert_eq!(percent(RedriveStatus::Running, Some(3_000), span), Some(99), "it is not done");
        assert_eq!(percent(RedriveStatus::Done, Some(1_500), span), Some(100), "nothing came after that");
        assert_eq!(percent(RedriveStatus::Running, None, (5, 5)), Some(0));
    }
}
