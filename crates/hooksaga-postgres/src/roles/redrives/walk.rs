//! The walk over the events of a time, in the order of their creation: which of them a subscription has no saga of.

use crate::{
    error::{DbError, DbResult},
    roles::{
        dead_letters::{is_going, lock_events},
        rows::{bigint, integer, natural, parsed},
    },
    time::Time,
};
use deadpool_postgres::Transaction;
use hooksaga_saga::{Chosen, EventType, Fate, Saga, SagaId, SubscriptionId, Timestamp, Topics, choose};
use hooksaga_store::{Requeued, RequeuedSaga, StepLimits, Trace};
use std::collections::HashMap;

/// By the index of creation times, from where the walk is, and no more than asked for: events of one moment are sorted as
/// they come (Incremental Sort).
pub(crate) const NEXT_EVENTS: &str = concat!(
    "/* redrives.next_events */
SELECT e.id, e.created_at, e.tenant, e.event_type, e.correlation_id,
       e.tenant = $6 AND (EXISTS (SELECT FROM webhook_delivery_sagas g
                                  WHERE g.event_id = e.id AND g.subscription_id = $5 AND g.generation = 0)
                          OR ",
    is_going!(),
    ")
FROM events e
WHERE e.created_at >= $1 AND e.created_at < $2 AND (e.created_at > $1 OR e.id > $3)
ORDER BY e.created_at, e.id LIMIT $4"
);

const SUBSCRIPTION: &str = "/* redrives.subscription */
SELECT tenant, event_type, active, verified, max_retry_limit FROM subscriptions WHERE id = $1 AND deleted_at IS NULL";

/// Twice is once: the unique key (event, subscription, generation) lets one of them in. The events are locked against the
/// janitor; one that has gone meanwhile, or is going, gets no saga.
pub(crate) const INSERT: &str = concat!(
    "/* redrives.insert */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT e.id, $2, 0, $3::text::saga_status, $4, $5, $6, now(), now()
FROM unnest($1::bigint[]) AS u (event_id) JOIN events e ON e.id = u.event_id
WHERE NOT ",
    is_going!(),
    "
ORDER BY e.id
ON CONFLICT DO NOTHING
RETURNING id, event_id"
);

/// Whom the walk is for.
pub(super) struct Subscription {
    pub(super) id: SubscriptionId,
    tenant: String,
    topics: Topics,
    pub(super) active: bool,
    pub(super) verified: bool,
    max_retry_limit: Option<u32>,
}

impl Subscription {
    pub(super) async fn read(transaction: &Transaction<'_>, id: SubscriptionId) -> DbResult<Option<Self>> {
        let statement = transaction.prepare_cached(SUBSCRIPTION).await?;
        let Some(row) = transaction.query_opt(&statement, &[&id.0]).await? else { return Ok(None) };
        Ok(Some(Self {
            id,
            tenant: row.try_get(0)?,
            topics: row.try_get::<_, &str>(1)?.parse().map_err(DbError::unreadable)?,
            active: row.try_get(2)?,
            verified: row.try_get(3)?,
            max_retry_limit: row.try_get::<_, Option<i32>>(4)?.map(natural),
        }))
    }

    pub(super) fn is_deliverable(&self) -> bool {
        self.active && self.verified
    }
}

/// A place in the walk: behind this event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) at: Timestamp,
    pub(super) id: i64,
}

/// Looks at the next events behind a place and before a time, and makes the sagas that are missing.
pub(super) async fn walk(
    transaction: &Transaction<'_>,
    subscription: &Subscription,
    after: Place,
    until: Timestamp,
    now: Timestamp,
    limits: StepLimits,
) -> DbResult<(Chosen<Place>, Vec<RequeuedSaga>)> {
    let examine = limits.examine.max(1);
    let statement = transaction.prepare_cached(NEXT_EVENTS).await?;
    let rows = transaction
        .query(
            &statement,
            &[
                &Time(after.at),
                &Time(until),
                &after.id,
                &bigint(examine),
                &subscription.id.0,
                &subscription.tenant,
            ],
        )
        .await?;
    let mut traces: HashMap<i64, Trace> = HashMap::new();
    let mut seen = Vec::with_capacity(rows.len());
    for row in &rows {
        let place = Place { id: row.try_get(0)?, at: row.try_get::<_, Time>(1)?.0 };
        let own = row.try_get::<_, &str>(2)? == subscription.tenant;
        let fate = if !own || !subscription.topics.matches(&parsed::<EventType>(row.try_get(3)?)?) {
            Fate::Pass
        } else if row.try_get(5)? {
            Fate::Skip
        } else {
            let (tenant, correlation_id) = (subscription.tenant.clone(), row.try_get(4)?);
            traces.insert(place.id, Trace { tenant, correlation_id });
            Fate::Send
        };
        seen.push((place, fate));
    }
    let chosen = choose(&seen, limits.create as usize, rows.len() < examine as usize);
    let made = insert(transaction, subscription, &chosen, &traces, now, limits.default_limit).await?;
    Ok((chosen, made))
}

async fn insert(
    transaction: &Transaction<'_>,
    subscription: &Subscription,
    chosen: &Chosen<Place>,
    traces: &HashMap<i64, Trace>,
    now: Timestamp,
    default_limit: u32,
) -> DbResult<Vec<RequeuedSaga>> {
    if chosen.send.is_empty() {
        return Ok(Vec::new());
    }
    let events: Vec<i64> = chosen.send.iter().map(|place| place.id).collect();
    let saga = Saga::new(subscription.max_retry_limit.unwrap_or(default_limit), now);
    lock_events(transaction, &events).await?;
    let statement = transaction.prepare_cached(INSERT).await?;
    let rows = transaction
        .query(
            &statement,
            &[
                &events,
                &subscription.id.0,
                &saga.status.as_str(),
                &integer(saga.attempt_count),
                &integer(saga.max_retry_limit),
                &Time(saga.next_attempt_at),
            ],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let trace = traces.get(&row.try_get::<_, i64>(1)?);
            Ok(RequeuedSaga {
                requeued: Requeued { saga_id: SagaId(row.try_get(0)?), generation: 0 },
                subscription_id: subscription.id,
                trace: trace.cloned().unwrap_or_default(),
            })
        })
        .collect()
}
