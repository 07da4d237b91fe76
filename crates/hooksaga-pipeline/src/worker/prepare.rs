//! Sorts claimed jobs: which are sent, which are given back, which have failed without being sent.

use super::{
    WorkerOptions,
    attempt::{Clock, JobInfo, PreparedAttempt, Settled},
    in_flight::HeldBytes,
};
use crate::{CallbackRequest, SecretKey, SigningSecret, delivery::request_headers};
use bytes::Bytes;
use hooksaga_saga::{ErrorCode, RateLimit, SubscriptionId};
use hooksaga_store::{ClaimedBatch, DeliveryJob, Target, Trace};
use http::{HeaderName, HeaderValue};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// A job that was reset more often than this has outlived every worker that took it.
const MOST_LEASE_RESETS: u32 = 5;

/// For how long a large payload that finds no memory is given back.
const NO_MEMORY_DELAY: Duration = Duration::from_secs(2);

static EVENT_TYPE: HeaderName = HeaderName::from_static("hooksaga-event-type");
static CORRELATION_ID: HeaderName = HeaderName::from_static("hooksaga-correlation-id");
static ATTEMPT: HeaderName = HeaderName::from_static("hooksaga-attempt");

/// What a claim leaves to do.
pub(super) struct Work {
    pub(super) attempts: Vec<PreparedAttempt>,
    pub(super) settled: Vec<Settled>,
    /// The rate limits of the subscriptions that have one.
    pub(super) limits: BTreeMap<SubscriptionId, RateLimit>,
    /// More can be claimed.
    pub(super) cut_short: bool,
}

impl Work {
    /// How many jobs were claimed.
    pub(super) fn claimed(&self) -> usize {
        self.attempts.len() + self.settled.len()
    }

    /// Gives back the attempts for which there is no memory.
    pub(super) fn give_back(&mut self, has_no_room: impl Fn(&PreparedAttempt) -> bool) {
        let back = self.attempts.extract_if(.., |attempt| has_no_room(attempt));
        self.settled.extend(back.map(|attempt| attempt.about.give_back(NO_MEMORY_DELAY)));
    }
}

/// What is to become of one job.
enum Disposition {
    Send(CallbackRequest),
    Fail(ErrorCode),
    Park,
}

/// `asked`: when the claim was sent, before any of its leases began. `hold` is called for each payload, and what it returns
/// lives as long as that is in memory.
pub(super) fn prepare(
    batch: ClaimedBatch,
    key: &SecretKey,
    config: &WorkerOptions,
    asked: Instant,
    hold: impl Fn(u64) -> Option<HeldBytes>,
) -> Work {
    let lease_end = asked + config.lease_duration;
    let start_by = asked + config.time_to_start();
    let clock = Clock { read: batch.now, asked };
    let mut judge =
        Judge { targets: &batch.targets, key, hold, opened: HashMap::new(), bodies: HashMap::new() };
    let mut work = Work {
        attempts: Vec::with_capacity(batch.jobs.len()),
        settled: Vec::new(),
        limits: batch.targets.iter().filter_map(|(id, target)| Some((*id, target.rate_limit?))).collect(),
        cut_short: batch.cut_short,
    };
    for lease in batch.jobs {
        let verdict = judge.judge(&lease.held);
        let subscription = lease.held.subscription_id;
        let about = JobInfo {
            lease: lease.as_ref(),
            attempt: lease.held.attempt,
            trace: Trace { tenant: lease.held.tenant, correlation_id: lease.held.correlation_id },
            accepted_at: lease.held.accepted_at,
            lease_end,
        };
        match verdict {
            Disposition::Send(request) => {
                work.attempts.push(PreparedAttempt {
                    about,
                    subscription,
                    request,
                    start_by,
                    window: None,
                    clock,
                });
            }
            Disposition::Fail(code) => work.settled.push(about.failed_unsent(code)),
            Disposition::Park => work.settled.push(about.park()),
        }
    }
    work
}

struct Judge<'a, H> {
    targets: &'a HashMap<SubscriptionId, Arc<Target>>,
    key: &'a SecretKey,
    hold: H,
    /// Each target's secrets and headers are opened once per batch.
    opened: HashMap<SubscriptionId, Option<Opened>>,
    /// One for all jobs of an event, by the address of its payload.
    bodies: HashMap<usize, Bytes>,
}

/// What a target's callbacks are signed with and carry.
struct Opened {
    /// Newest first.
    secrets: Arc<[SigningSecret]>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl<H: Fn(u64) -> Option<HeldBytes>> Judge<'_, H> {
    fn judge(&mut self, job: &DeliveryJob) -> Disposition {
        let id = job.subscription_id;
        let Some(target) = self.targets.get(&id).filter(|target| target.deliverable) else {
            return Disposition::Park;
        };
        if target.deleted {
            return Disposition::Fail(ErrorCode::SUBSCRIPTION_DELETED);
        }
        if job.lease_resets > MOST_LEASE_RESETS {
            return Disposition::Fail(ErrorCode::LEASE_EXHAUSTED);
        }
        let opened = self.opened.entry(id).or_insert_with(|| open(id, target, self.key));
        match opened {
            Some(opened) => {
                let body = self.bodies.entry(job.payload.as_ptr().addr()).or_insert_with(|| {
                    let held = (self.hold)(job.payload.len() as u64);
                    Bytes::from_owner(SharedPayload { text: job.payload.clone(), _held: held })
                });
                Disposition::Send(request(job, target, opened, body.clone()))
            }
            None => Disposition::Fail(ErrorCode::INTERNAL),
        }
    }
}

/// Nothing, and a line that says why, if no secret or not all headers can be opened: without its credentials a callback
/// would be refused, and look like a fault of the endpoint.
fn open(subscription: SubscriptionId, target: &Target, key: &SecretKey) -> Option<Opened> {
    let secrets: Arc<[_]> = target
        .secrets
        .iter()
        .filter_map(|stored| {
            key.open(subscription, &stored.secret)
                .inspect_err(|error| {
                    let (subscription_id, secret_id) = (subscription.0, stored.id.0);
                    tracing::error!(subscription_id, secret_id, %error, "cannot open a signing secret");
                })
                .ok()
        })
        .collect();
    if secrets.is_empty() {
        tracing::error!(
            subscription_id = subscription.0,
            "no signing secret can be used, so its deliveries fail: rotate its secret, or run with the \
             secrets.key that sealed it"
        );
        return None;
    }
    let headers = request_headers::open(subscription, target.headers.as_ref(), key)
        .inspect_err(|error| {
            let subscription_id = subscription.0;
            tracing::error!(subscription_id, %error, "cannot open its request headers, so its deliveries fail: set them again");
        })
        .ok()?;
    Some(Opened { secrets, headers })
}

fn request(job: &DeliveryJob, target: &Target, opened: &Opened, body: Bytes) -> CallbackRequest {
    // Both texts were checked to be visible ASCII before they were stored.
    let text = |name: &HeaderName, value: &str| Some((name.clone(), HeaderValue::from_str(value).ok()?));
    let extra_headers = [
        text(&EVENT_TYPE, &job.event_type),
        text(&CORRELATION_ID, &job.correlation_id),
        Some((ATTEMPT.clone(), HeaderValue::from(job.attempt))),
    ];
    CallbackRequest {
        url: target.callback_url.clone(),
        webhook_id: format!("evt_{}", job.event_id),
        body,
        secrets: opened.secrets.clone(),
        extra_headers: opened.headers.iter().cloned().chain(extra_headers.into_iter().flatten()).collect(),
    }
}

/// A payload that is shared with the claim, not copied, and counted until the last request with it is written or dropped.
struct SharedPayload {
    text: Arc<str>,
    _held: Option<HeldBytes>,
}

impl AsRef<[u8]> for SharedPayload {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}
