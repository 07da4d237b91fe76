//! Claims: which jobs are leased, in the order in which they were admitted, and all that their attempts need.

use crate::{
    error::{DbError, DbResult},
    roles::{
        rows::{bigint, natural},
        scan_position::Frontier,
    },
    time::{SqlTime, micros},
};
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, JobId, RateLimit, SagaId, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, DeliveryJob, Lease, LeaseRequest, LeaseToken, SealedSecret, StoredSecret,
    Target,
};
use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio_postgres::{Row, Statement, types::ToSql};

/// The last part of a claim: the targets of what was leased, a line for each valid secret of each. In the claim's own
/// snapshot: no URL is seen with the headers of another, and it costs neither a transaction of its own nor a memory of
/// whom the next claim might be for.
macro_rules! targets {
    () => {
        "
UNION ALL
SELECT NULL, NULL, k.id, s.id, NULL, CASE WHEN s.deleted_at IS NULL THEN s.rate_limit END, NULL, NULL,
       s.callback_url, k.key_id, h.key_id, NULL, s.deliverable, s.deleted_at IS NOT NULL, k.sealed, h.sealed
FROM subscriptions s
LEFT JOIN subscription_headers h ON h.subscription_id = s.id AND s.header_names IS NOT NULL
LEFT JOIN subscription_secrets k
    ON k.subscription_id = s.id AND (k.expires_at IS NULL OR k.expires_at > now())
WHERE s.id = ANY (ARRAY(SELECT subscription_id FROM leased))"
    };
}

/// Scans the partial index of Pending jobs in its own order, which is that of admission: any other would pass every finished
/// job. The update finds the picked rows by their `ctid`, which nobody can change while they are locked; a status
/// that is a subquery (`SELECT`) instead of a constant keeps the planner from using the status index.
///
/// For a claim that passes nobody over and whose payloads fit into the limit of bytes, were each as long as the longest:
/// nearly every one. If they do not, nothing is leased, the first line says so, and [`CLAIM_SOME`] does it: a larger
/// statement, which would cost a single job half as much again. The jobs of one event are mostly claimed together, and
/// `sent` reads each event once for all of them. A large payload is not read for its length.
///
/// The first line is the clock, how far the scan came, and how many the limit of bytes left (-1: it does not fit); then
/// come the jobs, then the events, then the targets.
pub(crate) const CLAIM: &str = concat!(
    "/* worker.claim */
WITH picked AS MATERIALIZED (
    SELECT ctid AS place, lease_until, event_id FROM webhook_delivery_jobs
    WHERE status = 'Pending' AND lease_until BETWEEN $4::timestamptz AND now()
    ORDER BY lease_until LIMIT $1
    FOR UPDATE SKIP LOCKED
), sent AS MATERIALIZED (
    SELECT id, tenant, event_type, correlation_id, payload, created_at FROM events
    WHERE id = ANY (ARRAY(SELECT event_id FROM picked))
), pass AS MATERIALIZED (
    SELECT coalesce((SELECT count(*) FROM picked) * max(octet_length(payload)), 0) <= $5::bigint AS fits FROM sent
), leased AS (
    UPDATE webhook_delivery_jobs j
    SET status = 'Leased', lease_until = now() + $2::bigint * interval '1 microsecond', lease_token = $3,
        updated_at = now()
    WHERE j.ctid = ANY (ARRAY(SELECT place FROM picked WHERE (SELECT fits FROM pass)))
      AND j.status = (SELECT 'Pending'::job_status)
    RETURNING j.id, j.saga_id, j.subscription_id, j.event_id, j.attempt, j.attempt_at, j.lease_until, j.lease_resets
)
SELECT now(), NULL::bigint, NULL::bigint, NULL::bigint, (SELECT max(lease_until) FROM picked), NULL::int, NULL::int,
       CASE WHEN (SELECT fits FROM pass) THEN 0 ELSE -1 END::bigint, NULL::text, NULL::text, NULL::text, NULL::text,
       NULL::boolean, NULL::boolean, NULL::bytea, NULL::bytea
UNION ALL
SELECT lease_until, id, saga_id, subscription_id, attempt_at, lease_resets, attempt, event_id,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM leased
UNION ALL
SELECT created_at, NULL, NULL, NULL, NULL, NULL, NULL, id, event_type, correlation_id, tenant, payload,
       NULL, NULL, NULL, NULL
FROM sent WHERE (SELECT fits FROM pass)",
    targets!()
);

/// A claim that passes subscriptions over, or that takes what fits into the limit of bytes.
///
/// - `numbered`: `first_of` is the event of a job, where the one before is of another. The jobs of one event were made
///   together and are mostly claimed together, so `sent` reads each event once for all of them. A large payload is not
///   read for that, nor copied: what is kept is a reference to it.
/// - `taken` is how many of them fit into the limit of bytes; the first does, whatever its size. Lengths stand in the
///   references, too. Adding them up job by job is for those whose largest payload would not fit as often.
/// - The least of what was left because of its subscription is where the next scan may begin at the latest.
pub(crate) const CLAIM_SOME: &str = concat!(
    "/* worker.claim_some */
WITH picked AS MATERIALIZED (
    SELECT ctid AS place, lease_until, event_id FROM webhook_delivery_jobs
    WHERE status = 'Pending' AND lease_until BETWEEN $4::timestamptz AND now()
      AND subscription_id <> ALL ($6::bigint[])
    ORDER BY lease_until LIMIT $1
    FOR UPDATE SKIP LOCKED
), numbered AS MATERIALIZED (
    SELECT place, lease_until, row_number() OVER () AS nth,
           CASE WHEN lag(event_id) OVER () IS DISTINCT FROM event_id THEN event_id END AS first_of
    FROM picked
), sent AS MATERIALIZED (
    SELECT n.nth, e.id, e.tenant, e.event_type, e.correlation_id, e.payload, e.created_at
    FROM numbered n JOIN events e ON e.id = n.first_of
), taken AS MATERIALIZED (
    SELECT CASE WHEN (SELECT count(*) FROM picked) * max(octet_length(payload)) <= $5::bigint
                THEN (SELECT count(*) FROM picked)
                ELSE (
        SELECT greatest(count(*), 1) FROM (
            SELECT sum(octet_length(e.payload)) OVER (ROWS UNBOUNDED PRECEDING) AS bytes
            FROM picked p LEFT JOIN events e ON e.id = p.event_id
        ) p WHERE p.bytes <= $5::bigint
    ) END AS jobs
    FROM sent
), leased AS (
    UPDATE webhook_delivery_jobs j
    SET status = 'Leased', lease_until = now() + $2::bigint * interval '1 microsecond', lease_token = $3,
        updated_at = now()
    WHERE j.ctid = ANY (ARRAY(SELECT place FROM numbered WHERE nth <= (SELECT jobs FROM taken)))
      AND j.status = (SELECT 'Pending'::job_status)
    RETURNING j.id, j.saga_id, j.subscription_id, j.event_id, j.attempt, j.attempt_at, j.lease_until, j.lease_resets
)
SELECT now(), NULL::bigint, NULL::bigint, NULL::bigint,
       least((SELECT max(lease_until) FROM numbered WHERE nth <= (SELECT jobs FROM taken)),
             CASE WHEN cardinality($6::bigint[]) > 0 THEN (
                 SELECT lease_until FROM webhook_delivery_jobs
                 WHERE status = 'Pending' AND lease_until BETWEEN $4::timestamptz AND now()
                   AND subscription_id = ANY ($6::bigint[])
                 ORDER BY lease_until LIMIT 1
             ) END),
       NULL::int, NULL::int, (SELECT count(*) FROM picked) - (SELECT jobs FROM taken),
       NULL::text, NULL::text, NULL::text, NULL::text,
       NULL::boolean, NULL::boolean, NULL::bytea, NULL::bytea
UNION ALL
SELECT lease_until, id, saga_id, subscription_id, attempt_at, lease_resets, attempt, event_id,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM leased
UNION ALL
SELECT created_at, NULL, NULL, NULL, NULL, NULL, NULL, id, event_type, correlation_id, tenant, payload,
       NULL, NULL, NULL, NULL
FROM sent WHERE nth <= (SELECT jobs FROM taken)",
    targets!()
);

/// Jobs are made with the time at which their pass began, and are seen when it commits.
const MARGIN: Duration = Duration::from_millis(250);

/// What one process remembers from one claim to the next.
pub(super) struct Claims {
    frontier: Frontier,
    /// When a claim did not fit into the limit of bytes: the next ones probably do not, either.
    too_large: Mutex<Option<Instant>>,
}

impl Claims {
    const SOME_FOR: Duration = Duration::from_secs(10);

    pub(super) fn new() -> Self {
        Self { frontier: Frontier::new(micros(MARGIN)), too_large: Mutex::default() }
    }

    fn too_large(&self) -> MutexGuard<'_, Option<Instant>> {
        // Nothing panics while it is held.
        self.too_large.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn claim(
        &self,
        client: &Client,
        limits: &ClaimLimits,
        lease: LeaseRequest,
    ) -> DbResult<ClaimedBatch> {
        let expects_all = limits.skip.is_empty()
            && self.too_large().is_none_or(|at: Instant| at.elapsed() >= Self::SOME_FOR);
        if expects_all {
            let statement = client.prepare_cached(CLAIM).await?;
            let claiming = Claiming { client, limits, lease, statement, skip: None };
            if let Some(claimed) = self.frontier.scan(|from| claiming.claim_from(from)).await? {
                return Ok(claimed);
            }
            *self.too_large() = Some(Instant::now());
        }
        let statement = client.prepare_cached(CLAIM_SOME).await?;
        let skip = Some(limits.skip.iter().map(|id| id.0).collect());
        let claiming = Claiming { client, limits, lease, statement, skip };
        let claimed = self.frontier.scan(|from| claiming.claim_from(from)).await?;
        claimed.ok_or_else(|| DbError::unreadable("a claim that takes what fits did not fit"))
    }
}

/// One of the two statements with its arguments.
struct Claiming<'a> {
    client: &'a Client,
    limits: &'a ClaimLimits,
    lease: LeaseRequest,
    statement: Statement,
    /// Of [`CLAIM_SOME`].
    skip: Option<Vec<i64>>,
}

impl Claiming<'_> {
    /// What was claimed, and how far the scan came. Where it does not fit, nothing, and the scan stays where it was.
    async fn claim_from(&self, from: i64) -> DbResult<(Option<ClaimedBatch>, Option<i64>)> {
        let (jobs, lease) = (bigint(self.limits.jobs), micros(self.lease.lasts));
        let (bytes, begin) = (bigint(self.limits.payload_bytes), SqlTime(Timestamp::from_micros(from)));
        let mut parameters: Vec<&(dyn ToSql + Sync)> =
            vec![&jobs, &lease, &self.lease.token.0, &begin, &bytes];
        parameters.extend(self.skip.iter().map(|skip| skip as &(dyn ToSql + Sync)));
        let rows = self.client.query(&self.statement, &parameters).await?;
        // A UNION ALL returns its parts in order.
        let (clock, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no clock"))?;
        let left: i64 = clock.try_get(7)?;
        if left < 0 && self.skip.is_none() {
            return Ok((None, Some(from)));
        }
        let now = clock.try_get::<_, SqlTime>(0)?.0;
        let is_target = |row: &Row| matches!(row.try_get::<_, Option<bool>>(13), Ok(Some(_)));
        let (rows, of_targets) = rows.split_at(rows.iter().position(is_target).unwrap_or(rows.len()));
        let (jobs, targets) = (leases(rows, self.lease.token)?, targets(of_targets)?);
        let reached = clock.try_get::<_, Option<SqlTime>>(4)?.map(|time| time.0.as_micros());
        Ok((Some(ClaimedBatch { now, jobs, cut_short: left > 0, targets }), reached))
    }
}

/// The jobs, then their events.
fn leases(rows: &[Row], token: LeaseToken) -> DbResult<Vec<Lease<DeliveryJob>>> {
    let first_event = rows.iter().position(|row| matches!(row.try_get::<_, Option<i64>>(1), Ok(None)));
    let (jobs, events) = rows.split_at(first_event.unwrap_or(rows.len()));
    // Each is there once at least; it is kept once, however many subscriptions it goes to.
    let mut event_of: HashMap<i64, (&Row, Arc<str>)> = HashMap::with_capacity(events.len());
    for row in events {
        let event_id = row.try_get(7)?;
        if let Entry::Vacant(entry) = event_of.entry(event_id) {
            entry.insert((row, Arc::from(row.try_get::<_, &str>(11)?)));
        }
    }
    let mut leases = Vec::with_capacity(jobs.len());
    for row in jobs {
        let event_id: i64 = row.try_get(7)?;
        // Without its event a job cannot be sent. It stays leased, and is no reason to lose the others.
        let Some((event, payload)) = event_of.get(&event_id) else { continue };
        let held = DeliveryJob {
            saga_id: SagaId(row.try_get(2)?),
            subscription_id: SubscriptionId(row.try_get(3)?),
            event_id: EventId(event_id),
            tenant: event.try_get(10)?,
            event_type: event.try_get(8)?,
            correlation_id: event.try_get(9)?,
            payload: Arc::clone(payload),
            accepted_at: event.try_get::<_, SqlTime>(0)?.0,
            attempt: natural(row.try_get(6)?),
            lease_resets: natural(row.try_get(5)?),
            attempt_at: row.try_get::<_, SqlTime>(4)?.0,
        };
        let until = row.try_get::<_, SqlTime>(0)?.0;
        leases.push(Lease { job_id: JobId(row.try_get(1)?), token, until, held });
    }
    Ok(leases)
}

/// One line or more of each: one for every secret.
fn targets(rows: &[Row]) -> DbResult<HashMap<SubscriptionId, Arc<Target>>> {
    let mut targets: HashMap<SubscriptionId, Target> = HashMap::new();
    for row in rows {
        let target = match targets.entry(SubscriptionId(row.try_get(3)?)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Target {
                callback_url: row.try_get(8)?,
                deliverable: row.try_get(12)?,
                deleted: row.try_get(13)?,
                rate_limit: row.try_get::<_, Option<i32>>(5)?.map(natural).map(RateLimit::per_second),
                secrets: Vec::new(),
                headers: sealed(row, 10, 15)?,
            }),
        };
        if let Some((id, secret)) = row.try_get::<_, Option<i64>>(2)?.zip(sealed(row, 9, 14)?) {
            target.secrets.push(StoredSecret { id: SecretId(id), secret });
        }
    }
    for target in targets.values_mut() {
        // Newest first.
        target.secrets.sort_unstable_by_key(|secret| Reverse(secret.id.0));
    }
    Ok(targets.into_iter().map(|(id, target)| (id, Arc::new(target))).collect())
}

fn sealed(row: &Row, key_id: usize, sealed: usize) -> DbResult<Option<SealedSecret>> {
    let (key_id, sealed): (Option<String>, Option<Vec<u8>>) = (row.try_get(key_id)?, row.try_get(sealed)?);
    Ok(key_id.zip(sealed).map(|(key_id, sealed)| SealedSecret { key_id, sealed }))
}
