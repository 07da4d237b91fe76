//! Helpers of the cases: subscriptions, events, and deliveries that the product's own calls bring into a state.

use super::{TestDatabase, rows::saga_row};
use hooksaga_saga::{
    CallbackUrl, CorrelationId, DeadLetterId, ErrorCode, EventId, EventType, ExternalId, Invalid, JobId,
    Outcome, RetryPolicy, SagaId, SagaStatus, SubscriptionId, Tenant, Timestamp, Topic, Topics, apply_result,
};
use hooksaga_store::{
    Allotted, Appended, ApplyBatch, CheckOutcome, ClaimLimits, ClaimedBatch, CreateOutcome, DeadLetterFilter,
    Decide, EventHead, JobReport, LeaseRef, LeaseToken, Move, NewEvent, NewSubscription, PageRequest,
    RouteLimits, Scheduled, ScheduledSaga, SealedSecret, SecretRotation, SendTest, Stores, Subscription,
    SubscriptionPatch, TenantScope, UpdateOutcome,
};
use std::{str::FromStr, sync::Arc, time::Duration};

/// The event type that most cases use.
pub(super) const TYPE: &str = "order.created";
/// The callback URL that most cases use.
pub(super) const URL: &str = "https://receiver.example/hook";
/// A lease that no case outlives.
pub(super) const LEASE: Duration = Duration::from_secs(3600);
/// A saga's limit if its subscription sets none.
pub(super) const DEFAULT_LIMIT: u32 = 5;
/// More rows than any case has.
pub(super) const MANY: u32 = 10_000;
/// A token that no case gives to [`deliver_round`].
pub(super) const TOKEN: LeaseToken = LeaseToken(4_242_424_242_424_242);
/// Retries are due at once.
pub(super) const AT_ONCE: RetryPolicy = RetryPolicy { base_delay: Duration::ZERO, max_delay: Duration::ZERO };
/// Retries are not due while a case runs.
pub(super) const MUCH_LATER: RetryPolicy =
    RetryPolicy { base_delay: Duration::from_secs(36_000), max_delay: Duration::from_secs(36_000) };

/// Every tenant's rows.
pub(super) const ALL: TenantScope = TenantScope::All;
/// The tenant of callers that name none.
pub(super) const DEFAULT_TENANT: &str = "default";

/// This test event, to this subscription.
pub(super) fn test_of(event_id: EventId, subscription_id: SubscriptionId) -> SendTest {
    SendTest { event_id, subscription_id, default_limit: DEFAULT_LIMIT }
}

/// One function per validated name. The cases use valid ones only.
macro_rules! names {
    ($($name:ident -> $type:ident),+ $(,)?) => {$(
        #[track_caller]
        pub(super) fn $name(text: &str) -> $type {
            text.parse().unwrap()
        }
    )+};
}

names! {
    tenant -> Tenant,
    event_type -> EventType,
    topic -> Topic,
    topics -> Topics,
    external_id -> ExternalId,
    correlation -> CorrelationId,
}

#[track_caller]
pub(super) fn url(text: &str) -> CallbackUrl {
    CallbackUrl::parse(text, true).unwrap()
}

/// A new secret beside at most four older ones.
pub(super) fn rotation(id: SubscriptionId, secret: SealedSecret, overlap: Duration) -> SecretRotation {
    SecretRotation { subscription_id: id, secret, overlap, max_valid: 5 }
}

/// A value for a filter.
#[track_caller]
pub fn asked<T: FromStr<Err = Invalid>>(text: &str) -> Option<T> {
    Some(text.parse().unwrap())
}

/// One tenant's rows.
pub(super) fn scope(name: &str) -> TenantScope {
    TenantScope::One(tenant(name))
}

/// A pass over this many events without a limit of sagas.
pub(super) fn some_events(events: u32) -> RouteLimits {
    RouteLimits { events, sagas: MANY }
}

/// A claim of this many jobs without a limit of bytes.
pub(super) fn up_to(jobs: u32) -> ClaimLimits {
    ClaimLimits { jobs, payload_bytes: u64::MAX, skip: Vec::new() }
}

/// The list, if it has the expected length; otherwise a panic that shows it.
#[track_caller]
pub(super) fn only<T: std::fmt::Debug>(items: Vec<T>) -> T {
    let [item] = <[T; 1]>::try_from(items).unwrap_or_else(|items| panic!("not exactly one: {items:?}"));
    item
}

pub(super) fn new_event(type_name: &str) -> NewEvent {
    NewEvent {
        tenant: tenant(DEFAULT_TENANT),
        event_type: event_type(type_name),
        payload: Arc::from(r#"{"n": 1}"#),
        external_id: None,
        correlation_id: correlation("correlation-1"),
    }
}

pub(super) async fn append(stores: &Stores, event: NewEvent) -> EventHead {
    match only(stores.ingest.append(&[event]).await.unwrap()) {
        Appended::Created(head) => head,
        other => panic!("not created: {other:?}"),
    }
}

/// This many events of [`TYPE`], in the order of their ids.
pub(super) async fn append_many(stores: &Stores, count: usize) -> Vec<EventId> {
    let events = vec![new_event(TYPE); count];
    let answers = stores.ingest.append(&events).await.unwrap();
    let mut ids = Vec::with_capacity(count);
    for answer in answers {
        let Appended::Created(head) = answer else { panic!("not created: {answer:?}") };
        ids.push(head.id);
    }
    ids.sort_unstable();
    ids
}

/// A secret that differs from others by `n`.
pub(super) fn sealed(n: u8) -> SealedSecret {
    SealedSecret { key_id: "key-1".to_owned(), sealed: vec![n; 60] }
}

pub(super) fn new_subscription(topic_names: &str, callback_url: &str) -> NewSubscription {
    NewSubscription {
        tenant: tenant(DEFAULT_TENANT),
        topics: topics(topic_names),
        callback_url: url(callback_url),
        description: None,
        active: true,
        max_retry_limit: None,
        rate_limit: None,
        headers: None,
    }
}

pub(super) async fn create(stores: &Stores, new: &NewSubscription) -> Subscription {
    match stores.admin.create(new, &sealed(1)).await.unwrap() {
        CreateOutcome::Created(subscription) => subscription,
        other @ CreateOutcome::Exists(_) => panic!("not created: {other:?}"),
    }
}

/// Lets one subscription's open round succeed. Others that are due stay due.
pub(super) async fn verify(stores: &Stores, id: SubscriptionId) {
    let checks = stores.verifier.take_checks(MANY, Duration::ZERO).await.unwrap();
    let check = checks.iter().find(|check| check.subscription_id == id).expect("a check is due");
    assert!(stores.verifier.record(check, &CheckOutcome::Verified).await.unwrap());
}

pub(super) async fn verified_with(stores: &Stores, new: &NewSubscription) -> SubscriptionId {
    let id = create(stores, new).await.id;
    verify(stores, id).await;
    id
}

/// An active, verified subscription.
pub(super) async fn verified(stores: &Stores, event_type: &str, callback_url: &str) -> SubscriptionId {
    verified_with(stores, &new_subscription(event_type, callback_url)).await
}

/// An active, verified subscription to [`TYPE`] with a limit of its own.
pub(super) async fn verified_with_limit(stores: &Stores, url: &str, limit: u32) -> SubscriptionId {
    let new = NewSubscription { max_retry_limit: Some(limit), ..new_subscription(TYPE, url) };
    verified_with(stores, &new).await
}

/// An active, verified subscription of that tenant.
pub(super) async fn verified_for(
    stores: &Stores,
    name: &str,
    topic_names: &str,
    callback_url: &str,
) -> SubscriptionId {
    let new = NewSubscription { tenant: tenant(name), ..new_subscription(topic_names, callback_url) };
    verified_with(stores, &new).await
}

/// Pauses or resumes a subscription.
pub(super) async fn set_active(stores: &Stores, id: SubscriptionId, active: bool) {
    let patch = SubscriptionPatch { active: Some(active), ..SubscriptionPatch::default() };
    let outcome = stores.admin.update(&ALL, id, &patch).await.unwrap();
    assert!(matches!(outcome, UpdateOutcome::Updated(_)), "{outcome:?}");
}

/// Routes everything. Returns the new sagas in the order of their ids.
pub(super) async fn route(stores: &Stores) -> Vec<SagaId> {
    let batch = stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap();
    let mut ids: Vec<_> =
        batch.events.iter().flat_map(|event| event.sagas.iter().map(|saga| saga.saga_id)).collect();
    ids.sort_unstable();
    ids
}

/// Every subscription with due work, found in small pages, with this many jobs each.
pub(super) async fn allot(stores: &Stores, jobs: u32) -> Vec<Allotted> {
    let mut allotted = Vec::new();
    let mut after = None;
    loop {
        let page = stores.orchestrator.waiting(after, 100).await.unwrap();
        allotted.extend(page.subscriptions.iter().map(|id| Allotted { subscription_id: *id, jobs }));
        after = page.resume_after;
        if after.is_none() {
            return allotted;
        }
    }
}

/// A pass that moves the sagas.
pub(super) async fn create_jobs(stores: &Stores, allotted: &[Allotted]) -> Vec<ScheduledSaga> {
    stores.orchestrator.create_jobs(allotted, &|| Move::Now).await.unwrap().sagas
}

/// A pass that dies when the jobs exist and the sagas are not moved yet.
pub(super) async fn create_jobs_and_die(stores: &Stores, allotted: &[Allotted]) -> Scheduled {
    stores.orchestrator.create_jobs(allotted, &|| Move::Never).await.unwrap()
}

/// Every due saga gets its job, and none is moved.
pub(super) async fn schedule(stores: &Stores) -> Vec<ScheduledSaga> {
    create_jobs_and_die(stores, &allot(stores, MANY).await).await.sagas
}

/// Every due saga gets its job and is moved.
pub(super) async fn schedule_and_mark(stores: &Stores) -> Vec<ScheduledSaga> {
    create_jobs(stores, &allot(stores, MANY).await).await
}

pub(super) async fn claim(stores: &Stores, token: LeaseToken) -> ClaimedBatch {
    stores.worker.claim(&up_to(MANY), token.lasting(LEASE)).await.unwrap()
}

pub(super) fn delivered(lease: LeaseRef) -> JobReport {
    JobReport {
        lease,
        outcome: Outcome::Delivered,
        started_at: None,
        callback_url: None,
        response_status: Some(204),
        retry_at: None,
        duration: Duration::from_millis(12),
        response_excerpt: None,
    }
}

pub(super) fn failed(lease: LeaseRef, code: ErrorCode) -> JobReport {
    JobReport {
        lease,
        outcome: Outcome::Failed(code),
        started_at: None,
        callback_url: None,
        response_status: None,
        retry_at: None,
        duration: Duration::from_millis(34),
        response_excerpt: None,
    }
}

/// The product's own decision.
pub(super) fn decide(policy: RetryPolicy) -> Decide {
    Arc::new(move |job, now| apply_result(&job.saga, &job.result, &policy, now))
}

pub(super) async fn apply(stores: &Stores, policy: RetryPolicy) -> ApplyBatch {
    stores.orchestrator.apply(MANY, &decide(policy)).await.unwrap()
}

/// Every claimable job ends in the same way, and the results are applied.
pub(super) async fn finish_claimable(
    stores: &Stores,
    code: Option<ErrorCode>,
    policy: RetryPolicy,
) -> ApplyBatch {
    let claimed = claim(stores, LeaseToken(7)).await;
    let reports: Vec<_> = claimed
        .jobs
        .iter()
        .map(|job| code.clone().map_or_else(|| delivered(job.as_ref()), |code| failed(job.as_ref(), code)))
        .collect();
    assert_eq!(stores.worker.report(&reports).await.unwrap().len(), reports.len());
    apply(stores, policy).await
}

/// Every due saga gets one attempt. It fails with `code`; without a code it succeeds.
pub(super) async fn deliver_round(
    stores: &Stores,
    code: Option<ErrorCode>,
    policy: RetryPolicy,
) -> ApplyBatch {
    schedule_and_mark(stores).await;
    finish_claimable(stores, code, policy).await
}

/// One delivery, and the ids of its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    pub(super) saga_id: SagaId,
    pub(super) event_id: EventId,
    pub(super) subscription_id: SubscriptionId,
}

/// A Pending saga of a subscription with limit 3.
pub(super) async fn pending_saga(stores: &Stores) -> Fixed {
    let subscription_id = verified_with_limit(stores, URL, 3).await;
    let event_id = append(stores, new_event(TYPE)).await.id;
    let saga_id = only(route(stores).await);
    Fixed { saga_id, event_id, subscription_id }
}

/// The only saga of an empty database, in that state: InProgress with a Pending job, PendingRetry after one
/// failure and due much later, DeadLettered after three and not buried yet.
pub(super) async fn saga_in(db: &dyn TestDatabase, status: SagaStatus) -> Fixed {
    let stores = db.stores();
    let fixed = pending_saga(&stores).await;
    match status {
        SagaStatus::Pending => {}
        SagaStatus::InProgress => {
            schedule_and_mark(&stores).await;
        }
        SagaStatus::PendingRetry => {
            deliver_round(&stores, Some(ErrorCode::http(503)), MUCH_LATER).await;
        }
        SagaStatus::Completed => {
            deliver_round(&stores, None, AT_ONCE).await;
        }
        SagaStatus::DeadLettered => {
            for _ in 0..3 {
                deliver_round(&stores, Some(ErrorCode::http(500)), AT_ONCE).await;
            }
        }
    }
    assert_eq!(saga_row(db, fixed.saga_id).await.status, status);
    fixed
}

/// The only saga of an empty database with a job that is held under [`TOKEN`].
pub(super) async fn leased(db: &dyn TestDatabase) -> (Fixed, LeaseRef) {
    let fixed = saga_in(db, SagaStatus::InProgress).await;
    let job = only(claim(&db.stores(), TOKEN).await.jobs);
    (fixed, job.as_ref())
}

/// The only saga of an empty database, dead and buried.
pub(super) async fn buried(db: &dyn TestDatabase) -> (Fixed, DeadLetterId) {
    let fixed = saga_in(db, SagaStatus::DeadLettered).await;
    let letter = only(db.stores().dead_letters.bury(MANY).await.unwrap());
    (fixed, letter.dead_letter_id.expect("the letter is new"))
}

/// Every open delivery fails until it is dead and buried. Returns the letters, oldest first.
pub(super) async fn bury_all(stores: &Stores, code: ErrorCode) -> Vec<DeadLetterId> {
    while !deliver_round(stores, Some(code.clone()), AT_ONCE).await.results.is_empty() {}
    let buried = stores.dead_letters.bury(MANY).await.unwrap();
    let mut ids: Vec<_> = buried.iter().filter_map(|letter| letter.dead_letter_id).collect();
    ids.sort_unstable();
    ids
}

/// All dead letters, newest first.
pub(super) async fn letters(stores: &Stores) -> Vec<hooksaga_store::DeadLetterSummary> {
    let page = PageRequest { limit: 500, before: None };
    stores.reader.dead_letters(page.of(&ALL, &DeadLetterFilter::default())).await.unwrap().items
}

/// Moves the end of a job's lease, or its not-before time, into the past.
pub(super) async fn expire(db: &dyn TestDatabase, job: JobId) {
    let past = db.dialect().time(Timestamp::from_micros(1_000_000));
    let sql = format!("UPDATE webhook_delivery_jobs SET lease_until = {past} WHERE id = {job}");
    assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
}
