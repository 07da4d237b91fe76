//! Which subscriptions an event may go to, by the index of topics.
//!
//! Every index entry read counts against the pass's limit, those of paused subscriptions too, so a pass is bounded.
//! Normally one statement looks up the whole batch, once per (tenant, type). If that finds more than the limit, or if
//! an earlier pass has begun the event, each topic is read separately: the next N entries after the last subscription
//! considered, where N is what the pass can still take. Merging these lists gives the next N subscriptions over all
//! topics.

use crate::{
    error::DbResult,
    roles::{
        batch::{Batch, Field, identifier},
        rows::{natural, rows, take},
        topics::matching,
    },
    time::SqlTime,
};
use hooksaga_saga::Timestamp;
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::collections::{BTreeMap, HashMap};

/// The entries of many topics at once. The length is compared too, because the collation ignores blanks at the end.
/// A caller that asks for one row more than it can use learns whether these are all.
pub(crate) const OF_MANY: &str = concat!(
    "/* router.subscriptions */
SELECT u.kind, i.subscription_id, COALESCE(s.active AND s.verified, FALSE), s.max_retry_limit,
       COALESCE(s.active, FALSE), s.disabled_reason IS NOT NULL, s.unverified_since
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    kind BIGINT PATH '$[0]', tenant VARCHAR(200) PATH '$[1]', topic VARCHAR(200) PATH '$[2]')) AS t) u
STRAIGHT_JOIN subscription_topics i FORCE INDEX (PRIMARY)
    ON i.tenant = ",
    identifier!("u.tenant"),
    " AND i.topic = ",
    identifier!("u.topic"),
    " AND LENGTH(i.topic) * 2 = LENGTH(u.topic)
LEFT JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = i.subscription_id
LIMIT ?"
);

/// The entries of one topic after a subscription.
pub(crate) const OF_ONE: &str = "/* router.more_subscriptions */
SELECT i.subscription_id, COALESCE(s.active AND s.verified, FALSE), s.max_retry_limit,
       COALESCE(s.active, FALSE), s.disabled_reason IS NOT NULL, s.unverified_since
FROM (SELECT subscription_id FROM subscription_topics FORCE INDEX (PRIMARY)
      WHERE tenant = ? AND topic = ? AND LENGTH(topic) = ? AND subscription_id > ? ORDER BY subscription_id LIMIT ?) i
LEFT JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = i.subscription_id";

/// A queued event.
pub(super) struct QueuedEvent {
    pub(super) id: i64,
    pub(super) tenant: String,
    pub(super) event_type: String,
    pub(super) correlation_id: String,
    pub(super) created_at: Timestamp,
    /// The last subscription that an earlier pass has considered.
    pub(super) after: i64,
}

/// A subscription with a topic that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) subscription: i64,
    pub(super) deliverable: bool,
    pub(super) max_retry_limit: Option<u32>,
    pub(super) active: bool,
    pub(super) disabled: bool,
    pub(super) unverified_since: Option<Timestamp>,
}

impl Candidate {
    /// It is active but not verified, and its gap begins after this event.
    pub(super) fn misses_early(&self, event: &QueuedEvent) -> bool {
        let later = self.unverified_since.is_some_and(|since| event.created_at < since);
        later && self.active && !self.disabled && !self.deliverable
    }
}

/// The candidate subscriptions of some events: by tenant and type, in the order of their ids.
#[derive(Default)]
pub(super) struct Candidates(HashMap<(String, String), Vec<Candidate>>);

impl Candidates {
    /// Looks up the candidates of the events that no pass has begun, once per tenant and type. `None` if there are more than
    /// `limit`.
    pub(super) async fn read(
        transaction: &mut Conn,
        events: impl Iterator<Item = &QueuedEvent>,
        limit: usize,
    ) -> DbResult<Option<Self>> {
        let mut kinds: HashMap<(&str, &str), i64> = HashMap::new();
        for event in events.filter(|event| event.after == 0) {
            let number = i64::try_from(kinds.len()).unwrap_or(i64::MAX);
            kinds.entry((&event.tenant, &event.event_type)).or_insert(number);
        }
        let lookups: Vec<(i64, &str, String)> = kinds
            .iter()
            .flat_map(|(&(tenant, event_type), &kind)| {
                matching(event_type).into_iter().map(move |topic| (kind, tenant, topic))
            })
            .collect();
        let mut found: HashMap<i64, BTreeMap<i64, Candidate>> = HashMap::new();
        let mut left = limit.saturating_add(1);
        for document in Batch::of(&lookups, |(kind, tenant, topic)| {
            [Field::Int(*kind), Field::Text(tenant), Field::Text(topic)]
        }) {
            let read: Vec<Row> = transaction.exec(OF_MANY, (document, rows(left))).await?;
            left = left.saturating_sub(read.len());
            if left == 0 {
                return Ok(None);
            }
            for mut row in read {
                let candidate = candidate(&mut row, 1)?;
                // One that matches by several of its topics is one.
                found.entry(take(&mut row, 0)?).or_default().insert(candidate.subscription, candidate);
            }
        }
        let known = kinds.into_iter().map(|((tenant, event_type), kind)| {
            let candidates = found.remove(&kind).unwrap_or_default();
            ((tenant.to_owned(), event_type.to_owned()), candidates.into_values().collect())
        });
        Ok(Some(Self(known.collect())))
    }

    /// The next candidates of an event, at most `limit`, and whether these are all.
    pub(super) async fn of(
        &self,
        transaction: &mut Conn,
        event: &QueuedEvent,
        limit: usize,
    ) -> DbResult<(Vec<Candidate>, bool)> {
        let known = self.0.get(&(event.tenant.clone(), event.event_type.clone()));
        if let Some(all) = known.filter(|_| event.after == 0) {
            return Ok((all[..all.len().min(limit)].to_vec(), all.len() <= limit));
        }
        let mut found: BTreeMap<i64, Candidate> = BTreeMap::new();
        for topic in matching(&event.event_type) {
            let wanted = rows(limit.saturating_add(1));
            let read: Vec<Row> =
                transaction.exec(OF_ONE, (&event.tenant, &topic, topic.len(), event.after, wanted)).await?;
            for mut row in read {
                let candidate = candidate(&mut row, 0)?;
                found.insert(candidate.subscription, candidate);
            }
        }
        let complete = found.len() <= limit;
        Ok((found.into_values().take(limit).collect(), complete))
    }
}

/// From six columns, of which `first` is the first.
fn candidate(row: &mut Row, first: usize) -> DbResult<Candidate> {
    Ok(Candidate {
        subscription: take(row, first)?,
        deliverable: take(row, first + 1)?,
        max_retry_limit: take::<Option<i64>>(row, first + 2)?.map(natural),
        active: take(row, first + 3)?,
        disabled: take(row, first + 4)?,
        unverified_since: take::<Option<SqlTime>>(row, first + 5)?.map(|time| time.0),
    })
}
