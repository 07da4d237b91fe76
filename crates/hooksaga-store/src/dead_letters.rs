//! `dead_letter_operator`: stores dead letters, and sends again what has ended, as new sagas.

use crate::{StepLimits, StoreResult, TenantScope, Trace};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, EventType, SagaId, SubscriptionId, Timestamp};

/// A dead letter that this pass took off the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buried {
    /// `None` if the letter was there already.
    pub dead_letter_id: Option<DeadLetterId>,
    pub saga_id: SagaId,
    pub event_id: EventId,
    pub subscription_id: SubscriptionId,
    pub tenant: String,
    pub correlation_id: String,
    pub final_error_code: ErrorCode,
}

/// The saga that a requeue or a resend leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requeued {
    pub saga_id: SagaId,
    pub generation: u32,
}

/// A delivery that has ended, Completed or DeadLettered, and is to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAgain {
    pub ended: EndedDelivery,
    /// For a subscription that has no limit of its own.
    pub default_limit: u32,
}

/// How a delivery that has ended is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedDelivery {
    /// It is the one that this letter is of.
    Letter(DeadLetterId),
    Saga(SagaId),
}

/// A test event, which no routing finds, for this subscription alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendTest {
    pub event_id: EventId,
    pub subscription_id: SubscriptionId,
    /// For a subscription that has no limit of its own.
    pub default_limit: u32,
}

/// What became of one requeue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequeueOutcome {
    Created(Requeued, Trace),
    /// It had been requeued before: that saga.
    Already(Requeued),
    /// The subscription is not active and verified.
    NotDeliverable(SubscriptionId),
    NotFound,
}

/// What became of one resend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResendOutcome {
    Created(Requeued, Trace),
    /// It had been sent again before: that saga.
    Already(Requeued),
    /// The delivery has not ended.
    Open,
    /// The subscription is not active and verified.
    NotDeliverable(SubscriptionId),
    NotFound,
}

impl From<ResendOutcome> for RequeueOutcome {
    /// Of a letter's saga, which has ended: there is none that is open.
    fn from(outcome: ResendOutcome) -> Self {
        match outcome {
            ResendOutcome::Created(requeued, trace) => Self::Created(requeued, trace),
            ResendOutcome::Already(requeued) => Self::Already(requeued),
            ResendOutcome::NotDeliverable(subscription) => Self::NotDeliverable(subscription),
            ResendOutcome::Open | ResendOutcome::NotFound => Self::NotFound,
        }
    }
}

/// What became of a test event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    /// The delivery that takes it to its subscription.
    Delivery(SagaId),
    /// The subscription is not active and verified.
    NotDeliverable,
    NotFound,
}

/// Which dead letters; all of what is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub subscription_id: Option<SubscriptionId>,
    pub event_type: Option<EventType>,
    /// In a requeue of many and in a redrive, as [`TenantScope::matches_code`] says.
    pub final_error_code: Option<ErrorCode>,
    pub requeued: Option<bool>,
    /// Created at or after.
    pub created_after: Option<Timestamp>,
    /// Created before.
    pub created_before: Option<Timestamp>,
}

/// One bounded step of a requeue of many, oldest letter first.
#[derive(Clone, Debug)]
pub struct RequeueStep {
    /// `requeued` is ignored: what was requeued already never matches.
    pub filter: DeadLetterFilter,
    /// Only letters behind this one.
    pub after: Option<DeadLetterId>,
    /// Letters that this step may examine.
    pub examine: u32,
    /// Letters that this step may requeue; skipped ones do not count.
    pub requeue: u32,
    /// Counts, and changes nothing.
    pub dry_run: bool,
    /// For sagas whose subscription has no limit of its own.
    pub default_limit: u32,
}

/// Which letters a step examines: of a requeue of many, or of a redrive.
#[derive(Clone, Copy, Debug)]
pub struct LetterWindow<'a> {
    pub filter: &'a DeadLetterFilter,
    /// Only letters behind this one.
    pub after: Option<DeadLetterId>,
    pub most: u32,
    /// For sagas whose subscription has no limit of its own.
    pub default_limit: u32,
}

impl<'a> LetterWindow<'a> {
    pub fn of_requeue(step: &'a RequeueStep) -> Self {
        let RequeueStep { filter, after, examine: most, default_limit, .. } = step;
        Self { filter, after: *after, most: *most, default_limit: *default_limit }
    }

    /// `after`: the id of the letter behind which the redrive resumes.
    pub fn of_redrive(filter: &'a DeadLetterFilter, after: i64, limits: StepLimits) -> Self {
        let (after, most) = (Some(DeadLetterId(after)), limits.examined());
        Self { filter, after, most, default_limit: limits.default_limit }
    }
}

/// What a step did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequeuedBatch {
    /// Letters that match: in a dry run, those that would have been requeued.
    pub requeued: u64,
    /// Letters that match and whose subscription is not active and verified.
    pub skipped: u64,
    /// The new sagas; empty in a dry run.
    pub sagas: Vec<RequeuedSaga>,
    /// The last letter that was examined: the next step resumes behind it. `None` when there are no more.
    pub resume_after: Option<DeadLetterId>,
}

/// A saga that a requeue of many or a redrive created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequeuedSaga {
    pub requeued: Requeued,
    pub subscription_id: SubscriptionId,
    pub trace: Trace,
}

#[async_trait]
pub trait DeadLetterStore: Send + Sync {
    /// Locks up to `limit` queued dead sagas, stores a letter with the event's payload for each that has
    /// none, and takes them off the queue.
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>>;

    /// A new saga for the delivery's event and subscription, of the next generation; once, however often. The requeue of a
    /// dead delivery's letter and its resend are one and the same.
    async fn send_again(&self, scope: &TenantScope, wanted: SendAgain) -> StoreResult<ResendOutcome>;

    /// Sends the delivery of this letter again.
    async fn requeue(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
        default_limit: u32,
    ) -> StoreResult<RequeueOutcome> {
        let wanted = SendAgain { ended: EndedDelivery::Letter(id), default_limit };
        Ok(self.send_again(scope, wanted).await?.into())
    }

    /// Sends this delivery again.
    async fn resend(
        &self,
        scope: &TenantScope,
        id: SagaId,
        default_limit: u32,
    ) -> StoreResult<ResendOutcome> {
        self.send_again(scope, SendAgain { ended: EndedDelivery::Saga(id), default_limit }).await
    }

    /// The delivery of a test event; once, however often. The event is of the subscription's tenant.
    async fn send_test(&self, scope: &TenantScope, wanted: SendTest) -> StoreResult<TestOutcome>;

    /// Requeues the next letters that match, within the step's bounds, in one short transaction.
    async fn requeue_step(&self, scope: &TenantScope, step: &RequeueStep) -> StoreResult<RequeuedBatch>;
}
