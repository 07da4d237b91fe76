//! `router_worker`: makes one saga per event and matching subscription.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        correlations::Correlations,
        frontier::Frontier,
        insert::{Insert, Inserter},
        rows::{bigint, count, integer},
    },
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, SagaId, SubscriptionId};
use hooksaga_store::{RouteBatch, RouteLimits, RoutedEvent, RoutedSaga, RouterStore, StoreResult, Unmatched};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio_postgres::{Row, types::ToSql};

/// The topics that match an event type, as a subquery (`EventType::matching_topics`): `*`, the type itself, and each prefix
/// that ends at a dot, with a star: for `a.b.c` also `a.*` and `a.b.*`. A dot at the beginning ends no prefix. A test
/// event matches none.
macro_rules! matching_topics {
    ($event_type:literal) => {
        concat!(
            "SELECT left(",
            $event_type,
            ", dot) || CASE WHEN dot <= length(",
            $event_type,
            ") THEN '*' ELSE '' END AS topic
            FROM generate_series(0, length(",
            $event_type,
            ") + 1) AS dot
            WHERE (dot = 0 OR dot > length(",
            $event_type,
            ") OR (dot > 1 AND substr(",
            $event_type,
            ", dot, 1) = '.')) AND ",
            $event_type,
            " <> 'hooksaga.test'"
        )
    };
}

/// Routes a batch in which no event matches more than [`FEW`] subscriptions, and all of them together no more than the
/// limit. If that does not hold, nothing is changed, the last line says so, and [`ROUTE_MANY`] does it: a larger
/// statement, which would cost a single event half as much again.
///
/// One statement. Its snapshot shows the queue and the subscriptions at the same moment, so an event that it
/// sees queued is matched with every subscription that was there when the event was accepted; a row that another
/// router holds is skipped, one that it has taken off meanwhile is gone.
///
/// - `batch` locks queue rows in the order of their key.
/// - `kinds` groups them by tenant, type and how far routing came. Each is looked up once, by its topics.
/// - `matched` has the subscriptions of each, from the routing index alone; from each topic no more than decides.
/// - `considered` has what is known of them, by their key (OFFSET 0 keeps that lookup as written). Those that are active and
///   verified get sagas; the others are counted in `unmatched_events`, in which nothing is written if there are none.
/// - `gaps` queues what the verification will not: events that were created before `unverified_since`
///   ([`MissedEarly`](hooksaga_store::MissedEarly)). `missed_before` is null where a kind has none.
///
/// The last two columns tell whether nobody gets an event. `elsewhere`: this pass alone cannot say so, since an earlier one
/// began with it, or it is a test event. `$matched`: where sagas may be there already, the events that matched somebody; else
/// the new sagas say it.
///
/// Locked rows are deleted by their place in the table (nobody else can move them), which a join over a long queue would
/// not find as cheaply.
macro_rules! route_few {
    ($on_conflict:literal, $matched:literal) => {
        concat!(
            "/* router.route_few */
WITH batch AS MATERIALIZED (
    SELECT event_id, after_subscription_id AS after, ctid AS place FROM unrouted_events
    WHERE event_id >= $3 ORDER BY event_id LIMIT $1
    FOR UPDATE SKIP LOCKED
), queued AS MATERIALIZED (
    SELECT e.id, e.tenant, e.event_type, e.correlation_id, e.created_at, b.after
    FROM batch b JOIN events e ON e.id = b.event_id
), kinds AS MATERIALIZED (
    SELECT tenant, event_type, after, array_agg(id) AS events, min(created_at) AS oldest
    FROM queued GROUP BY tenant, event_type, after
), matched AS MATERIALIZED (
    SELECT k.events, k.oldest, m.ids FROM kinds k CROSS JOIN LATERAL (
        SELECT array_agg(DISTINCT entry.subscription_id) AS ids
        FROM (
            ",
            matching_topics!("k.event_type"),
            "
        ) t
        CROSS JOIN LATERAL (
            SELECT subscription_id FROM subscription_topics
            WHERE tenant = k.tenant AND topic = t.topic AND subscription_id > k.after
            ORDER BY subscription_id LIMIT $5::bigint + 1
        ) entry
    ) m
), pass AS MATERIALIZED (
    SELECT coalesce(sum(cardinality(events) * cardinality(ids)) <= $4::bigint, true)
       AND coalesce(max(cardinality(ids)) <= $5::bigint, true) AS fits
    FROM matched
), considered AS MATERIALIZED (
    SELECT m.events, s.id, s.max_retry_limit, s.state,
           CASE WHEN s.state = 3 AND m.oldest < s.unverified_since THEN s.unverified_since END AS missed_before
    FROM matched m CROSS JOIN LATERAL unnest(m.ids) AS c (id)
    CROSS JOIN LATERAL (
        SELECT id, coalesce(max_retry_limit, $2::int) AS max_retry_limit, unverified_since,
               CASE WHEN active AND verified THEN 0 WHEN disabled_reason IS NOT NULL THEN 1
                    WHEN NOT active THEN 2 ELSE 3 END AS state
        FROM subscriptions WHERE id = c.id OFFSET 0
    ) s
    WHERE (SELECT fits FROM pass)
), unmatched AS (
    INSERT INTO unmatched_events (event_id, disabled, paused, unverified)
    SELECT event_id, count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2),
           count(*) FILTER (WHERE state = 3)
    FROM considered c CROSS JOIN LATERAL unnest(c.events) AS event_id
    WHERE c.state > 0 GROUP BY event_id ORDER BY event_id
    ON CONFLICT (event_id) DO UPDATE
    SET disabled = unmatched_events.disabled + excluded.disabled, paused = unmatched_events.paused + excluded.paused,
        unverified = unmatched_events.unverified + excluded.unverified
    RETURNING event_id, disabled, paused, unverified
), gaps AS (
    INSERT INTO catch_ups (subscription_id, since, until)
    SELECT c.id, min(e.created_at), max(e.created_at) + interval '1 microsecond'
    FROM considered c CROSS JOIN LATERAL unnest(c.events) AS event_id
    CROSS JOIN LATERAL (SELECT created_at FROM events WHERE id = event_id OFFSET 0) e
    WHERE c.missed_before IS NOT NULL AND e.created_at < c.missed_before
    GROUP BY c.id, date_trunc('second', e.created_at)
), sagas AS (
    INSERT INTO webhook_delivery_sagas
        (event_id, subscription_id, generation, max_retry_limit, next_attempt_at, created_at, updated_at)
    SELECT event_id, t.id, 0, t.max_retry_limit, now(), now(), now()
    FROM considered t CROSS JOIN LATERAL unnest(t.events) AS event_id
    WHERE t.state = 0
    ORDER BY event_id, t.id
    ",
            $on_conflict,
            "
    RETURNING id, event_id, subscription_id
), gone AS (
    DELETE FROM unrouted_events
    WHERE ctid = ANY (ARRAY(SELECT place FROM batch WHERE (SELECT fits FROM pass)))
)
SELECT id, correlation_id, tenant, true, NULL::bigint[], NULL::bigint[], NULL::bigint[], NULL::bigint[],
       NULL::bigint[], NULL::bigint[], NULL::bigint[], after > 0 OR event_type = 'hooksaga.test' AS elsewhere,
       NULL::bigint[]
FROM queued WHERE (SELECT fits FROM pass)
UNION ALL
SELECT NULL, NULL, NULL, (SELECT fits FROM pass), s.*, u.*, NULL, ",
            $matched,
            "
FROM (SELECT array_agg(event_id), array_agg(id), array_agg(subscription_id) FROM sagas) s
CROSS JOIN (SELECT array_agg(event_id), array_agg(disabled), array_agg(paused), array_agg(unverified) FROM unmatched) u"
        )
    };
}

/// As many as an event matches in [`ROUTE_FEW`].
const FEW: u32 = 32;

pub(crate) const ROUTE_FEW: Insert = Insert {
    plain: route_few!("", "NULL::bigint[]"),
    careful: route_few!(
        "ON CONFLICT DO NOTHING",
        "(
    SELECT array_agg(DISTINCT event_id) FROM considered c CROSS JOIN LATERAL unnest(c.events) AS event_id
    WHERE c.state = 0)"
    ),
};

/// Routes until the limit is reached, whatever an event matches; one statement, as above.
///
/// - `queued` numbers the kinds in the order of each one's first event.
/// - `resolved` looks one kind up after the other: from each topic no more entries than the pass may still consider, plus
///   one. So a pass reads no more entries per topic than its limit and one for each kind, however many there are.
///   `limits` has no positive number where a subscription is not active and verified: considered, but given no saga, and
///   counted in `unmatched_events` as what the number says; -4 is unverified, with events in `gaps`.
/// - `flat` is all of that as arrays, since joining kinds with events would compare all with all, without hash joins:
///   the candidates of kind k are those from `upto[k] + 1` to `upto[k + 1]`.
/// - `counted` adds up what the events cost in their order. The one at which the sum exceeds the limit is the last that
///   is worked on, and keeps its place in the queue, with how far it came. (A kind that was not resolved, or not to its
///   end, only has events from that one on.)
macro_rules! route_many {
    ($on_conflict:literal, $matched:literal) => {
        concat!(
            "/* router.route_many */
WITH RECURSIVE batch AS MATERIALIZED (
    SELECT event_id, after_subscription_id AS after, ctid AS place FROM unrouted_events
    WHERE event_id >= $3 ORDER BY event_id LIMIT $1
    FOR UPDATE SKIP LOCKED
), queued AS MATERIALIZED (
    SELECT *, dense_rank() OVER (ORDER BY first) AS kind FROM (
        SELECT e.id, e.tenant, e.event_type, e.correlation_id, e.created_at, b.after,
               min(e.id) OVER (PARTITION BY e.tenant, e.event_type, b.after) AS first,
               min(e.created_at) OVER (PARTITION BY e.tenant, e.event_type, b.after) AS oldest
        FROM batch b JOIN events e ON e.id = b.event_id
    ) e
), kinds AS MATERIALIZED (
    SELECT array_agg(tenant ORDER BY id) AS tenants, array_agg(event_type ORDER BY id) AS types,
           array_agg(after ORDER BY id) AS afters, array_agg(oldest ORDER BY id) AS oldest
    FROM queued WHERE id = first
), resolved AS (
    SELECT 0 AS kind, 0::bigint AS used, '{}'::bigint[] AS ids, '{}'::int[] AS limits
    UNION ALL
    SELECT r.kind + 1, r.used + cardinality(c.ids), c.ids, c.limits
    FROM resolved r CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(m.subscription_id ORDER BY m.subscription_id), '{}') AS ids,
               coalesce(array_agg(coalesce(s.max_retry_limit, 0) ORDER BY m.subscription_id), '{}') AS limits
        FROM (
            SELECT DISTINCT entry.subscription_id
            FROM (
                SELECT (SELECT tenants FROM kinds)[r.kind + 1] AS tenant,
                       (SELECT types FROM kinds)[r.kind + 1] AS event_type,
                       (SELECT afters FROM kinds)[r.kind + 1] AS after
                OFFSET 0
            ) k
            CROSS JOIN LATERAL (
                ",
            matching_topics!("k.event_type"),
            "
            ) t
            CROSS JOIN LATERAL (
                SELECT subscription_id FROM subscription_topics
                WHERE tenant = k.tenant AND topic = t.topic AND subscription_id > k.after
                ORDER BY subscription_id LIMIT $4::bigint - r.used + 1
            ) entry
            ORDER BY entry.subscription_id LIMIT $4::bigint - r.used + 1
        ) m
        LEFT JOIN LATERAL (
            SELECT CASE WHEN active AND verified THEN coalesce(max_retry_limit, $2::int)
                        WHEN disabled_reason IS NOT NULL THEN -1 WHEN NOT active THEN -2
                        WHEN (SELECT oldest FROM kinds)[r.kind + 1] < unverified_since THEN -4 ELSE -3
                   END AS max_retry_limit
            FROM subscriptions WHERE id = m.subscription_id OFFSET 0
        ) s ON true
    ) c
    WHERE r.kind < (SELECT cardinality(tenants) FROM kinds) AND r.used <= $4::bigint
), flat AS MATERIALIZED (
    SELECT (SELECT array_agg(used ORDER BY kind) FROM resolved) AS upto,
           array_agg(c.id ORDER BY r.kind, c.id) AS ids, array_agg(c.max_retry_limit ORDER BY r.kind, c.id) AS limits
    FROM resolved r CROSS JOIN LATERAL unnest(r.ids, r.limits) AS c (id, max_retry_limit)
), counted AS MATERIALIZED (
    SELECT id, tenant, correlation_id, created_at, elsewhere, start, cost, sum(cost) OVER (ORDER BY id) AS until FROM (
        SELECT id, tenant, correlation_id, created_at, after > 0 OR event_type = 'hooksaga.test' AS elsewhere,
               (SELECT upto FROM flat)[kind] AS start,
               coalesce((SELECT upto FROM flat)[kind + 1] - (SELECT upto FROM flat)[kind], 0)::int AS cost
        FROM queued
    ) e
), stop AS MATERIALIZED (
    SELECT id, start + $4::bigint - (until - cost) AS last, until - cost < $4::bigint AS moved
    FROM counted WHERE until > $4::bigint ORDER BY id LIMIT 1
), unmatched AS (
    INSERT INTO unmatched_events (event_id, disabled, paused, unverified)
    SELECT e.id, count(*) FILTER (WHERE (SELECT limits FROM flat)[n] = -1),
           count(*) FILTER (WHERE (SELECT limits FROM flat)[n] = -2),
           count(*) FILTER (WHERE (SELECT limits FROM flat)[n] <= -3)
    FROM counted e
    CROSS JOIN LATERAL generate_series(e.start + 1, e.start + least(e.cost, $4::bigint - (e.until - e.cost))) AS n
    WHERE e.until - e.cost < $4::bigint AND (SELECT limits FROM flat)[n] < 0
    GROUP BY e.id ORDER BY e.id
    ON CONFLICT (event_id) DO UPDATE
    SET disabled = unmatched_events.disabled + excluded.disabled, paused = unmatched_events.paused + excluded.paused,
        unverified = unmatched_events.unverified + excluded.unverified
    RETURNING event_id, disabled, paused, unverified
), gaps AS (
    INSERT INTO catch_ups (subscription_id, since, until)
    SELECT s.id, min(e.created_at), max(e.created_at) + interval '1 microsecond'
    FROM counted e
    CROSS JOIN LATERAL generate_series(e.start + 1, e.start + least(e.cost, $4::bigint - (e.until - e.cost))) AS n
    CROSS JOIN LATERAL (
        SELECT id, unverified_since FROM subscriptions WHERE id = (SELECT ids FROM flat)[n] OFFSET 0
    ) s
    WHERE e.until - e.cost < $4::bigint AND (SELECT limits FROM flat)[n] = -4 AND e.created_at < s.unverified_since
    GROUP BY s.id, date_trunc('second', e.created_at)
), sagas AS (
    INSERT INTO webhook_delivery_sagas
        (event_id, subscription_id, generation, max_retry_limit, next_attempt_at, created_at, updated_at)
    SELECT e.id, (SELECT ids FROM flat)[n], 0, (SELECT limits FROM flat)[n], now(), now(), now()
    FROM counted e
    CROSS JOIN LATERAL generate_series(e.start + 1, e.start + least(e.cost, $4::bigint - (e.until - e.cost))) AS n
    WHERE e.until - e.cost < $4::bigint AND (SELECT limits FROM flat)[n] > 0
    ORDER BY e.id, n
    ",
            $on_conflict,
            "
    RETURNING id, event_id, subscription_id
), gone AS (
    DELETE FROM unrouted_events WHERE ctid = ANY (ARRAY(
        SELECT place FROM batch WHERE event_id < coalesce((SELECT id FROM stop), 9223372036854775807)))
), moved AS (
    UPDATE unrouted_events SET after_subscription_id = (SELECT ids FROM flat)[(SELECT last FROM stop)]
    WHERE ctid = ANY (ARRAY(SELECT place FROM batch WHERE event_id = (SELECT id FROM stop WHERE moved)))
)
SELECT id, correlation_id, tenant, until <= $4::bigint, NULL::bigint[], NULL::bigint[], NULL::bigint[],
       NULL::bigint[], NULL::bigint[], NULL::bigint[], NULL::bigint[], elsewhere, NULL::bigint[]
FROM counted WHERE until - cost <= $4::bigint
UNION ALL
SELECT NULL, NULL, NULL, true, s.*, u.*, NULL, ",
            $matched,
            "
FROM (SELECT array_agg(event_id), array_agg(id), array_agg(subscription_id) FROM sagas) s
CROSS JOIN (SELECT array_agg(event_id), array_agg(disabled), array_agg(paused), array_agg(unverified) FROM unmatched) u"
        )
    };
}

pub(crate) const ROUTE_MANY: Insert =
    Insert { plain: route_many!("", "NULL::bigint[]"), careful: route_many!("ON CONFLICT DO NOTHING", "(
    SELECT array_agg(DISTINCT e.id) FROM counted e
    CROSS JOIN LATERAL generate_series(e.start + 1, e.start + least(e.cost, $4::bigint - (e.until - e.cost))) AS n
    WHERE e.until - e.cost < $4::bigint AND (SELECT limits FROM flat)[n] > 0)") };

/// Of the newest events in the queue those that match few: each is then routed by [`ROUTE_FEW`], alone. Reads no more entries of
/// a topic than decide. No lock: one that another router takes meanwhile is simply gone.
pub(crate) const SMALL: &str = concat!(
    "/* router.small */
SELECT q.event_id
FROM (SELECT event_id, after_subscription_id AS after FROM unrouted_events ORDER BY event_id DESC LIMIT $1) q
CROSS JOIN LATERAL (SELECT tenant, event_type FROM events WHERE id = q.event_id OFFSET 0) e
CROSS JOIN LATERAL (
    SELECT count(*) AS matching
    FROM (
        ",
    matching_topics!("e.event_type"),
    "
    ) t
    CROSS JOIN LATERAL (
        SELECT subscription_id FROM subscription_topics
        WHERE tenant = e.tenant AND topic = t.topic AND subscription_id > q.after
        ORDER BY subscription_id LIMIT $2::bigint + 1
    ) entry
) m
WHERE m.matching <= $2::bigint ORDER BY q.event_id"
);

/// Ids are handed out before the commits of ingestion, of which two groups run at a time in each process. What commits
/// later than that much after it is routed within a second.
const MARGIN: i64 = 2000;

pub(crate) struct Router {
    pool: RolePool,
    frontier: Frontier,
    sagas: Inserter,
    /// The last pass was one for [`ROUTE_MANY`], so the next one probably is, too. Lost, it costs one statement.
    many: AtomicBool,
    correlations: Arc<Correlations>,
}

impl Router {
    pub(crate) fn new(pool: RolePool, correlations: Arc<Correlations>) -> Self {
        Self {
            pool,
            frontier: Frontier::new(MARGIN),
            sagas: Inserter::default(),
            many: AtomicBool::new(false),
            correlations,
        }
    }

    /// What was routed, and the last event.
    async fn route_from(
        &self,
        client: &Client,
        limits: RouteLimits,
        default_limit: u32,
        from: i64,
    ) -> DbResult<(RouteBatch, Option<i64>)> {
        // A pass that could consider nobody would never get on; a cost is an integer, and one more than the limit is read.
        let most = bigint(limits.sagas.clamp(1, u32::MAX >> 2));
        let (events, default_limit) = (bigint(limits.events), integer(default_limit));
        let mut routed = None;
        if !self.many.load(Ordering::Relaxed) {
            let few = bigint(FEW);
            let parameters: [&(dyn ToSql + Sync); 5] = [&events, &default_limit, &from, &most, &few];
            routed = routed_events(&self.sagas.run(client, ROUTE_FEW, &parameters).await?)?;
        }
        let routed = if let Some(routed) = routed {
            routed
        } else {
            let parameters: [&(dyn ToSql + Sync); 4] = [&events, &default_limit, &from, &most];
            let routed = routed_events(&self.sagas.run(client, ROUTE_MANY, &parameters).await?)?;
            routed.ok_or_else(|| DbError::unreadable("a pass that did nothing"))?
        };
        let is_many = |event: &RoutedEvent| !event.complete || event.sagas.len() > FEW as usize;
        self.many.store(routed.iter().any(is_many), Ordering::Relaxed);
        let matched = routed.iter().filter(|event| !event.sagas.is_empty());
        self.correlations
            .remember(matched.map(|event| (event.event_id.0, &*event.tenant, &*event.correlation_id)));
        let reached = routed.last().map(|event| event.event_id.0);
        Ok((RouteBatch { events: routed }, reached))
    }
}

impl Router {
    async fn route_few(
        &self,
        client: &Client,
        limits: RouteLimits,
        default_limit: u32,
    ) -> DbResult<RouteBatch> {
        let few = bigint(limits.sagas.clamp(1, FEW));
        let statement = client.prepare_cached(SMALL).await?;
        let rows = client.query(&statement, &[&bigint(limits.events), &few]).await?;
        let mut batch = RouteBatch::default();
        for row in &rows {
            let from: i64 = row.try_get(0)?;
            let (one, default_limit) = (1_i64, integer(default_limit));
            let parameters: [&(dyn ToSql + Sync); 5] = [&one, &default_limit, &from, &few, &few];
            let routed = routed_events(&self.sagas.run(client, ROUTE_FEW, &parameters).await?)?;
            batch.events.extend(routed.unwrap_or_default());
        }
        let matched = batch.events.iter().filter(|event| !event.sagas.is_empty());
        self.correlations
            .remember(matched.map(|event| (event.event_id.0, &*event.tenant, &*event.correlation_id)));
        Ok(batch)
    }
}

/// The events of a pass with their sagas; nothing if it did not fit.
fn routed_events(rows: &[Row]) -> DbResult<Option<Vec<RoutedEvent>>> {
    // A UNION ALL returns its halves in order: the events, then all their sagas, and whom they missed, in one line.
    let (sagas, events) = rows.split_last().ok_or_else(|| DbError::unreadable("no sagas"))?;
    if !sagas.try_get::<_, bool>(3)? {
        return Ok(None);
    }
    let mut routed = BTreeMap::new();
    for row in events {
        let event = RoutedEvent {
            event_id: EventId(row.try_get(0)?),
            tenant: row.try_get(2)?,
            correlation_id: row.try_get(1)?,
            sagas: Vec::new(),
            unmatched: Unmatched::default(),
            complete: row.try_get(3)?,
            unwanted: !row.try_get::<_, bool>(11)?,
        };
        routed.insert(event.event_id, event);
    }
    let column = |index| -> DbResult<Vec<i64>> {
        Ok(sagas.try_get::<_, Option<Vec<i64>>>(index)?.unwrap_or_default())
    };
    for ((event_id, saga_id), subscription_id) in column(4)?.into_iter().zip(column(5)?).zip(column(6)?) {
        let saga = RoutedSaga { saga_id: SagaId(saga_id), subscription_id: SubscriptionId(subscription_id) };
        let event = routed.get_mut(&EventId(event_id));
        event.ok_or_else(|| DbError::unreadable("a saga without its event"))?.sagas.push(saga);
    }
    let missed = column(7)?.into_iter().zip(column(8)?).zip(column(9)?).zip(column(10)?);
    for (((event_id, disabled), paused), unverified) in missed {
        if let Some(event) = routed.get_mut(&EventId(event_id)) {
            let [disabled, paused, unverified] = [disabled, paused, unverified].map(count);
            event.unmatched = Unmatched { paused, disabled, unverified };
        }
    }
    // Where a conflict was looked for, an event may have matched subscriptions that have their sagas already.
    let matched: HashSet<i64> = column(12)?.into_iter().collect();
    for event in routed.values_mut() {
        let nobody = event.sagas.is_empty() && !matched.contains(&event.event_id.0);
        event.unwanted &= event.complete && nobody;
    }
    Ok(Some(routed.into_values().collect()))
}

#[async_trait]
impl RouterStore for Router {
    async fn route(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch> {
        let route = |client| async move {
            self.frontier.walk(|from| self.route_from(&client, limits, default_limit, from)).await
        };
        self.pool.run(route).await
    }

    async fn route_small(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch> {
        self.pool.run(|client| async move { self.route_few(&client, limits, default_limit).await }).await
    }
}
