//! The SQL statements of routing.

use crate::roles::insert_without_conflicts::Insert;

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
/// `elsewhere` and the column after it tell whether nobody gets an event. `elsewhere`: this pass alone cannot say so, since an
/// earlier one began with it, or it is a test event. `$matched`: where sagas may be there already, the events that matched somebody; else
/// the new sagas say it.
///
/// Locked rows are deleted by their place in the table (nobody else can move them), which a join over a long queue would
/// not find as cheaply.
macro_rules! route_few {
    ($name:literal, $taken:literal, $on_conflict:literal, $matched:literal) => {
        concat!(
            "/* router.",
            $name,
            " */
WITH batch AS MATERIALIZED (
    SELECT event_id, after_subscription_id AS after, ctid AS place FROM unrouted_events
    WHERE event_id ",
            $taken,
            " ORDER BY event_id LIMIT $1
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
       NULL::bigint[], event_type
FROM queued WHERE (SELECT fits FROM pass)
UNION ALL
SELECT NULL, NULL, NULL, (SELECT fits FROM pass), s.*, u.*, NULL, ",
            $matched,
            ", NULL
FROM (SELECT array_agg(event_id), array_agg(id), array_agg(subscription_id) FROM sagas) s
CROSS JOIN (SELECT array_agg(event_id), array_agg(disabled), array_agg(paused), array_agg(unverified) FROM unmatched) u"
        )
    };
}

/// As many as an event matches in [`ROUTE_FEW`].
pub(super) const FEW: u32 = 32;

/// The events from an id on, or those that are listed.
macro_rules! few {
    ($name:literal, $taken:literal) => {
        Insert {
            plain: route_few!($name, $taken, "", "NULL::bigint[]"),
            careful: route_few!(
                $name,
                $taken,
                "ON CONFLICT DO NOTHING",
                "(
    SELECT array_agg(DISTINCT event_id) FROM considered c CROSS JOIN LATERAL unnest(c.events) AS event_id
    WHERE c.state = 0)"
            ),
        }
    };
}

pub(crate) const ROUTE_FEW: Insert = few!("route_few", ">= $3");
pub(crate) const ROUTE_FEW_LISTED: Insert = few!("route_few_listed", "= ANY ($3::bigint[])");

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
    ($name:literal, $taken:literal, $on_conflict:literal, $matched:literal) => {
        concat!(
            "/* router.",
            $name,
            " */
WITH RECURSIVE batch AS MATERIALIZED (
    SELECT event_id, after_subscription_id AS after, ctid AS place FROM unrouted_events
    WHERE event_id ",
            $taken,
            " ORDER BY event_id LIMIT $1
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
    SELECT id, tenant, event_type, correlation_id, created_at, elsewhere, start, cost, sum(cost) OVER (ORDER BY id) AS until FROM (
        SELECT id, tenant, event_type, correlation_id, created_at, after > 0 OR event_type = 'hooksaga.test' AS elsewhere,
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
       NULL::bigint[], NULL::bigint[], NULL::bigint[], NULL::bigint[], elsewhere, NULL::bigint[], event_type
FROM counted WHERE until - cost <= $4::bigint
UNION ALL
SELECT NULL, NULL, NULL, true, s.*, u.*, NULL, ",
            $matched,
            ", NULL
FROM (SELECT array_agg(event_id), array_agg(id), array_agg(subscription_id) FROM sagas) s
CROSS JOIN (SELECT array_agg(event_id), array_agg(disabled), array_agg(paused), array_agg(unverified) FROM unmatched) u"
        )
    };
}

macro_rules! many {
    ($name:literal, $taken:literal) => {
        Insert {
            plain: route_many!($name, $taken, "", "NULL::bigint[]"),
            careful: route_many!(
                $name,
                $taken,
                "ON CONFLICT DO NOTHING",
                "(
    SELECT array_agg(DISTINCT e.id) FROM counted e
    CROSS JOIN LATERAL generate_series(e.start + 1, e.start + least(e.cost, $4::bigint - (e.until - e.cost))) AS n
    WHERE e.until - e.cost < $4::bigint AND (SELECT limits FROM flat)[n] > 0)"
            ),
        }
    };
}

pub(crate) const ROUTE_MANY: Insert = many!("route_many", ">= $3");
pub(crate) const ROUTE_MANY_LISTED: Insert = many!("route_many_listed", "= ANY ($3::bigint[])");

pub(crate) const QUEUED: &str = "/* router.queued */
SELECT event_id FROM unrouted_events WHERE event_id > $1 ORDER BY event_id LIMIT $2";

/// How many entries the events of each kind match, no more of a topic than decide. A subscription that matches by several
/// topics counts as several. No lock: an event that another router takes meanwhile is simply gone.
pub(crate) const EXAMINE: &str = concat!(
    "/* router.examine */
WITH queued AS MATERIALIZED (
    SELECT e.id, e.tenant, e.event_type, q.after
    FROM (
        SELECT event_id, after_subscription_id AS after FROM unrouted_events WHERE event_id = ANY ($1::bigint[]) OFFSET 0
    ) q
    CROSS JOIN LATERAL (SELECT id, tenant, event_type FROM events WHERE id = q.event_id OFFSET 0) e
), kinds AS MATERIALIZED (
    SELECT tenant, event_type, after, array_agg(id) AS events FROM queued GROUP BY tenant, event_type, after
)
SELECT k.events, k.tenant, k.event_type, m.matching
FROM kinds k
CROSS JOIN LATERAL (
    SELECT count(*) AS matching
    FROM (
        ",
    matching_topics!("k.event_type"),
    "
    ) t
    CROSS JOIN LATERAL (
        SELECT subscription_id FROM subscription_topics
        WHERE tenant = k.tenant AND topic = t.topic AND subscription_id > k.after
        ORDER BY subscription_id LIMIT $2::bigint + 1
    ) entry
) m"
);
