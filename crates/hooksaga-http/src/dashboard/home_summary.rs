//! What the first page says: which endpoints fail, and one sentence about everything.

use super::{
    parts::{clock, plural, span},
    session::now,
};
use hooksaga_saga::{Tenant, Timestamp};
use hooksaga_store::{
    DeadLetterFilter, EventFilter, EventHead, FailingEndpoints, LivingWorker, Page, PageRequest, ReaderStore,
    Stats, StoreResult, SubscriptionFilter, TenantScope,
};
use std::time::Duration;

/// The most rows that are counted. Beyond that the page says "or more".
pub(super) const LOOKED_AT: u32 = 100;

/// So many failing endpoints are shown of those that have failed for longest, and of those that began last.
const SHOWN: u32 = 25;

/// One that was switched off by then is part of the sentence. Later it is only counted: whoever wanted to do something about
/// it has done so.
const LATELY: Duration = Duration::from_secs(24 * 3600);

/// What the first page shows beside the statistics.
pub(crate) struct Situation {
    pub(super) failing: FailingEndpoints,
    /// Subscriptions that the server switched off because their endpoint failed or was gone, at most [`LOOKED_AT`].
    pub(super) switched_off: u64,
    /// Of those, the ones of the last [`LATELY`].
    pub(super) switched_off_lately: u64,
    /// Dead letters that were not sent again, at most [`LOOKED_AT`].
    pub(super) open_letters: u64,
    pub(super) workers: Vec<LivingWorker>,
    pub(super) has_subscriptions: bool,
    pub(super) has_events: bool,
}

impl Situation {
    pub(super) async fn read(reader: &dyn ReaderStore, scope: &TenantScope) -> StoreResult<Self> {
        let page = PageRequest { limit: LOOKED_AT, before: None };
        let one = PageRequest { limit: 1, before: None };
        let open = DeadLetterFilter { requeued: Some(false), ..DeadLetterFilter::default() };
        let disabled = SubscriptionFilter { disabled: Some(true), ..SubscriptionFilter::default() };
        let lately = SubscriptionFilter { disabled_after: Some(now().before(LATELY)), ..disabled.clone() };
        let failing = reader.failing(scope, SHOWN).await?;
        let switched_off = reader.subscriptions(page.of(scope, &disabled)).await?.items;
        let switched_off_lately = match switched_off.len() {
            0 => 0,
            _ => reader.subscriptions(page.of(scope, &lately)).await?.items.len(),
        };
        let letters = reader.dead_letters(page.of(scope, &open)).await?.items;
        let workers = if *scope == TenantScope::All { reader.workers().await? } else { Vec::new() };
        let subscriptions = reader.subscriptions(one.of(scope, &SubscriptionFilter::default())).await?;
        let events = reader.events(page.of(scope, &EventFilter::default())).await?;
        Ok(Self {
            failing,
            switched_off: switched_off.len() as u64,
            switched_off_lately: switched_off_lately as u64,
            open_letters: letters.len() as u64,
            workers,
            has_subscriptions: !subscriptions.items.is_empty(),
            has_events: has_events(&events),
        })
    }
}

/// Reads once what the first page shows, as it will be read for the first who asks: by then connections are open, statements
/// prepared, and what they look at is in memory. The counts are thrown away: whoever asks first gets those of that moment. A
/// database that is away is no matter here.
pub async fn warm_up(reader: &dyn ReaderStore) {
    let (stats, situation, counts) = tokio::join!(
        reader.stats_in_all(&TenantScope::All),
        Situation::read(reader, &TenantScope::All),
        reader.gauges()
    );
    if let Some(error) = stats.err().or(situation.err()).or(counts.err()) {
        tracing::debug!(%error, "could not preload the overview page");
    }
}

/// Whether somebody has sent an event, by the newest. What the server itself announces is none; but where that fills a
/// page, a server has been in use for long, and what was sent lies further back.
fn has_events(newest: &Page<EventHead>) -> bool {
    newest.next.is_some() || newest.items.iter().any(|event| event.tenant != Tenant::RESERVED)
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
    Duration::from_micros(stats.oldest_due_age_micros)
}

/// Everything in one sentence. `workers` is nothing where they are not the visitor's business.
pub(super) fn sentence(
    now: Timestamp,
    situation: &Situation,
    oldest_due: Duration,
    workers: Option<usize>,
    delivered: u64,
) -> (Mood, String) {
    let due = if oldest_due.is_zero() {
        "nothing is overdue".to_owned()
    } else {
        format!("oldest due work {}", span(oldest_due))
    };
    let counted = |count: u64, most: u32, text: String| {
        format!("{text}{}", if count >= most.into() { " or more" } else { "" })
    };
    let endpoints = |count: u64, most| counted(count, most, plural(count, "endpoint", "endpoints"));
    let off = situation.switched_off_lately;
    if workers == Some(0) {
        return (Mood::Bad, format!("No worker is running, so nothing is delivered; {due}."));
    }
    if let Some(longest) = situation.failing.shown.first() {
        let failing = endpoints(situation.failing.total, FailingEndpoints::MOST_COUNTED);
        let off = match off {
            0 => String::new(),
            off => format!(", {} switched off in the last 24 h", counted(off, LOOKED_AT, off.to_string())),
        };
        return (Mood::Warn, format!("{failing} failing since {}{off}; {due}.", clock(longest.since, now)));
    }
    if off > 0 {
        let off = endpoints(off, LOOKED_AT);
        return (Mood::Warn, format!("No endpoint fails, but {off} switched off in the last 24 h; {due}."));
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
    use hooksaga_saga::{ErrorCode, EventId, SubscriptionId};
    use hooksaga_store::FailingEndpoint;

    const MINUTE: i64 = 60_000_000;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + minute * MINUTE)
    }

    fn situation(failing_since: &[i64], switched_off_lately: u64) -> Situation {
        let failing = failing_since.iter().zip(1..).map(|(minute, id)| FailingEndpoint {
            subscription_id: SubscriptionId(id),
            callback_url: "https://example.com/".to_owned(),
            since: at(*minute),
            failures: 1,
            last_error: ErrorCode::TIMEOUT,
            next_attempt_at: None,
            waiting: 0,
        });
        Situation {
            failing: FailingEndpoints::of(failing.collect(), Vec::new()),
            switched_off: switched_off_lately + 7,
            switched_off_lately,
            open_letters: 0,
            workers: Vec::new(),
            has_subscriptions: true,
            has_events: true,
        }
    }

    #[test]
    fn the_sentence_names_the_worst_first() {
        let now = at(16);
        let say = |situation: &Situation, due: u64, workers, delivered| {
            sentence(now, situation, Duration::from_millis(due), workers, delivered)
        };
        assert_eq!(say(&situation(&[0], 0), 200, Some(0), 5).0, Mood::Bad);
        for (found, due, told) in [
            (situation(&[0], 0), 200, "1 endpoint failing since 22:13 UTC; oldest due work 0.2 s."),
            (
                situation(&[0, 3], 2),
                0,
                "2 endpoints failing since 22:13 UTC, 2 switched off in the last 24 h; nothing is overdue.",
            ),
            (situation(&[1; 999], 0), 0, "999 endpoints failing since 22:14 UTC; nothing is overdue."),
            (
                situation(&[1; 1000], 0),
                0,
                "1,000 endpoints or more failing since 22:14 UTC; nothing is overdue.",
            ),
            (
                situation(&[], 1),
                0,
                "No endpoint fails, but 1 endpoint switched off in the last 24 h; nothing is overdue.",
            ),
            (situation(&[], 0), 90_000, "No endpoint fails, but work waits: oldest due work 90 s."),
        ] {
            assert_eq!(say(&found, due, None, 5), (Mood::Warn, told.to_owned()));
        }
        let (mood, text) = say(&situation(&[], 0), 0, Some(1), 1234);
        assert_eq!(mood, Mood::Good);
        assert_eq!(
            text,
            "All is well: no endpoint fails, 1,234 deliveries in the last hour, nothing is overdue."
        );
    }

    #[test]
    fn what_the_server_announces_does_not_hide_that_it_is_in_use() {
        let event = |tenant: &str| EventHead {
            id: EventId(1),
            tenant: tenant.to_owned(),
            event_type: "t".to_owned(),
            external_id: None,
            correlation_id: "c".to_owned(),
            created_at: at(0),
        };
        let page =
            |tenants: &[&str], next| Page { items: tenants.iter().map(|it| event(it)).collect(), next };
        assert!(!has_events(&page(&[], None)));
        assert!(!has_events(&page(&[Tenant::RESERVED; 3], None)));
        assert!(has_events(&page(&[Tenant::RESERVED, "acme"], None)));
        assert!(has_events(&page(&[Tenant::RESERVED; 100], Some(7))), "more lies further back");
    }
}
