//! What the first page says: which endpoints fail, and one sentence about everything.

use super::parts::{clock, plural, span};
use crate::state::ApiState;
use hooksaga_saga::{ErrorCode, SagaStatus, SubscriptionId, Tenant, Timestamp};
use hooksaga_store::{
    DeadLetterFilter, DeadLetterSummary, Delivery, DeliveryFilter, EventHead, Gauges, LivingWorker,
    PageRequest, Stats, StoreResult, SubscriptionFilter, TenantScope,
};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// So many rows are looked at: what is shown is about now, and a count beyond them says "or more".
pub(super) const LOOKED_AT: u32 = 100;

/// So many failing endpoints are shown.
const SHOWN: usize = 10;

/// A dead letter this old says nothing about now.
const RECENT: Duration = Duration::from_secs(3600);

/// What the first page shows beside the statistics.
pub(crate) struct Situation {
    pub(super) failing: Vec<FailingEndpoint>,
    /// Dead letters that were not sent again, at most [`LOOKED_AT`].
    pub(super) open_letters: u64,
    pub(super) workers: Vec<LivingWorker>,
    pub(super) urls: HashMap<SubscriptionId, String>,
    pub(super) has_subscriptions: bool,
    pub(super) has_events: bool,
}

impl Situation {
    pub(super) async fn read(state: &ApiState, scope: &TenantScope, now: Timestamp) -> StoreResult<Self> {
        let page = PageRequest { limit: LOOKED_AT, before: None };
        let one = PageRequest { limit: 1, before: None };
        let retrying =
            DeliveryFilter { statuses: vec![SagaStatus::PendingRetry], ..DeliveryFilter::default() };
        let open = DeadLetterFilter { requeued: Some(false), ..DeadLetterFilter::default() };
        let reader = &state.reader;
        let retrying = reader.deliveries(scope, &retrying, page).await?.items;
        let letters = reader.dead_letters(scope, &open, page).await?.items;
        let workers = if *scope == TenantScope::All { reader.workers().await? } else { Vec::new() };
        let subscriptions = reader.subscriptions(scope, &SubscriptionFilter::default(), one).await?;
        let events = reader.events(scope, &hooksaga_store::EventFilter::default(), page).await?;
        // What the server itself announces is not what somebody sends here.
        let is_sent = |event: &EventHead| event.tenant != Tenant::RESERVED;
        let failing = failing(&retrying, &letters, now);
        let ids = failing.iter().map(|endpoint| endpoint.subscription_id);
        Ok(Self {
            urls: super::list::callback_urls(state, scope, ids).await?,
            failing,
            open_letters: letters.len() as u64,
            workers,
            has_subscriptions: !subscriptions.items.is_empty(),
            has_events: events.items.iter().any(is_sent),
        })
    }
}

/// A subscription whose deliveries fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailingEndpoint {
    pub(super) subscription_id: SubscriptionId,
    /// When the oldest of the failing deliveries was created.
    pub(super) since: Timestamp,
    pub(super) last_error: Option<ErrorCode>,
    /// When the last failure was recorded.
    last_at: Timestamp,
    pub(super) next_retry: Option<Timestamp>,
    pub(super) retrying: u64,
    pub(super) given_up: u64,
}

/// The endpoints with deliveries that wait for another attempt, or that were given up lately; the latest failure first.
fn failing(retrying: &[Delivery], letters: &[DeadLetterSummary], now: Timestamp) -> Vec<FailingEndpoint> {
    let mut by_id: BTreeMap<i64, FailingEndpoint> = BTreeMap::new();
    let mut add = |id: SubscriptionId,
                   since: Timestamp,
                   at: Timestamp,
                   error: Option<&ErrorCode>,
                   retry: Option<Timestamp>| {
        let endpoint = by_id.entry(id.0).or_insert_with(|| FailingEndpoint {
            subscription_id: id,
            since,
            last_error: error.cloned(),
            last_at: at,
            next_retry: None,
            retrying: 0,
            given_up: 0,
        });
        endpoint.since = endpoint.since.min(since);
        if at > endpoint.last_at {
            endpoint.last_at = at;
            endpoint.last_error = error.cloned();
        }
        match retry {
            Some(retry) => {
                endpoint.retrying += 1;
                endpoint.next_retry = Some(endpoint.next_retry.map_or(retry, |known| known.min(retry)));
            }
            None => endpoint.given_up += 1,
        }
    };
    for delivery in retrying.iter().filter(|delivery| !delivery.held) {
        add(
            delivery.subscription_id,
            delivery.created_at,
            delivery.updated_at,
            delivery.final_error_code.as_ref(),
            Some(delivery.next_attempt_at),
        );
    }
    for letter in letters.iter().filter(|letter| now.since(letter.created_at) < RECENT) {
        let at = letter.created_at;
        add(letter.subscription_id, at, at, Some(&letter.final_error_code), None);
    }
    let mut failing: Vec<_> = by_id.into_values().collect();
    failing.sort_by_key(|endpoint| std::cmp::Reverse((endpoint.last_at, endpoint.subscription_id.0)));
    failing.truncate(SHOWN);
    failing
}

/// How things stand, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Good,
    Warn,
    Bad,
}

impl Mood {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// How long the oldest due work has waited.
pub(super) fn oldest_due(stats: &Stats) -> Duration {
    Duration::from_micros(match stats.gauges {
        Gauges::Server(gauges) => gauges.oldest_due_age_micros,
        Gauges::Tenant(gauges) => gauges.oldest_due_age_micros,
    })
}

/// Everything in one sentence. `workers` is nothing where they are not the visitor's business.
pub(super) fn sentence(
    now: Timestamp,
    failing: &[FailingEndpoint],
    oldest_due: Duration,
    workers: Option<usize>,
    delivered: u64,
) -> (Mood, String) {
    let due = if oldest_due.is_zero() {
        "nothing is overdue".to_owned()
    } else {
        format!("oldest due work {}", span(oldest_due))
    };
    if workers == Some(0) {
        return (Mood::Bad, format!("No worker is running, so nothing is delivered; {due}."));
    }
    if let Some(since) = failing.iter().map(|endpoint| endpoint.since).min() {
        let endpoints = plural(failing.len() as u64, "endpoint", "endpoints");
        let more = if failing.len() == SHOWN { " or more" } else { "" };
        return (Mood::Warn, format!("{endpoints}{more} failing since {}; {due}.", clock(since, now)));
    }
    if oldest_due > Duration::from_secs(30) {
        return (Mood::Warn, format!("No endpoint fails, but work waits: {due}."));
    }
    let lately = match delivered {
        0 => "nothing was delivered in the last hour".to_owned(),
        count => format!("{} in the last hour", plural(count, "delivery", "deliveries")),
    };
    (Mood::Good, format!("All is well: no endpoint fails, {lately}, {due}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{DeadLetterId, EventId, SagaId};

    const MINUTE: i64 = 60_000_000;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + minute * MINUTE)
    }

    fn retrying(subscription: i64, created: i64, updated: i64, next: i64, code: u16) -> Delivery {
        Delivery {
            saga_id: SagaId(1),
            tenant: "default".to_owned(),
            event_id: EventId(1),
            event_type: "t".to_owned(),
            external_id: None,
            correlation_id: "c".to_owned(),
            callback_url: "https://example.com/".to_owned(),
            last_response_status: Some(code),
            subscription_id: SubscriptionId(subscription),
            generation: 0,
            status: SagaStatus::PendingRetry,
            attempt_count: 1,
            max_retry_limit: 5,
            next_attempt_at: at(next),
            final_error_code: Some(ErrorCode::http(code)),
            created_at: at(created),
            updated_at: at(updated),
            held: false,
        }
    }

    fn letter(subscription: i64, created: i64) -> DeadLetterSummary {
        DeadLetterSummary {
            id: DeadLetterId(1),
            tenant: "default".to_owned(),
            saga_id: SagaId(1),
            event_id: EventId(1),
            event_type: "t".to_owned(),
            subscription_id: SubscriptionId(subscription),
            final_error_code: ErrorCode::TIMEOUT,
            created_at: at(created),
            requeued_saga_id: None,
        }
    }

    #[test]
    fn failing_endpoints_are_told_with_their_last_error_and_next_retry() {
        let held = Delivery { held: true, ..retrying(9, 1, 1, 1, 500) };
        let deliveries = [retrying(1, 10, 12, 20, 500), retrying(1, 8, 15, 18, 503), held];
        let letters = [letter(2, 14), letter(3, -100)];
        let found = failing(&deliveries, &letters, at(16));
        assert_eq!(found.iter().map(|endpoint| endpoint.subscription_id.0).collect::<Vec<_>>(), [1, 2]);
        let first = &found[0];
        assert_eq!((first.since, first.next_retry, first.retrying), (at(8), Some(at(18)), 2));
        assert_eq!(first.last_error, Some(ErrorCode::http(503)));
        assert_eq!((found[1].given_up, found[1].next_retry), (1, None));
    }

    #[test]
    fn the_sentence_names_the_worst_first() {
        let now = at(16);
        let found = failing(&[retrying(1, 0, 12, 20, 500)], &[], now);
        let say = |failing: &[_], due: u64, workers, delivered| {
            sentence(now, failing, Duration::from_millis(due), workers, delivered)
        };
        assert_eq!(say(&found, 200, Some(0), 5).0, Mood::Bad);
        let (mood, text) = say(&found, 200, Some(1), 5);
        assert_eq!(
            (mood, text.as_str()),
            (Mood::Warn, "1 endpoint failing since 22:13 UTC; oldest due work 0.2 s.")
        );
        let (mood, text) = say(&[], 90_000, None, 5);
        assert_eq!(
            (mood, text.as_str()),
            (Mood::Warn, "No endpoint fails, but work waits: oldest due work 90 s.")
        );
        let (mood, text) = say(&[], 0, Some(1), 1234);
        assert_eq!(mood, Mood::Good);
        assert_eq!(
            text,
            "All is well: no endpoint fails, 1,234 deliveries in the last hour, nothing is overdue."
        );
    }
}
