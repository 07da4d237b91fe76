//! Claims: which jobs are leased, in the order in which they were admitted, and all that their attempts need.

use crate::{
    error::{DbError, DbResult},
    roles::{
        frontier::Frontier,
        rows::{bigint, natural},
    },
    time::{Time, micros},
};
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, JobId, RateLimit, SagaId, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    ClaimLimits, ClaimedBatch, DeliveryJob, Lease, LeaseToken, SealedSecret, StoredSecret, Target,
};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio_postgres::{Row, Statement, types::ToSql};

/// Scans the partial index of Pending jobs in its own order, which is that of admission: any other would pass every finished
/// job. The update finds the picked rows by their `ctid`, which nobody can change while they are locked; a status
/// that is a subquery (`SELECT`) instead of a constant keeps the planner from using the status index.
///
/// For a claim that passes nobody over and whose payloads fit into the limit of bytes, were each as long as the longest:
/// nearly every one. If they do not, nothing is leased, the first line says so, and [`CLAIM_SOME`] does it: a larger
/// statement, which would cost a single job half as much again. The jobs of one event are mostly claimed together, and
/// `sent` reads each event once for all of them. A large payload is not read for its length.
///
/// The first line is the clock, how far the walk came, and how many the limit of bytes left (-1: it does not fit); then
/// come the jobs, then the events.
pub(crate) const CLAIM: &str = "/* worker.claim */
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
       CASE WHEN (SELECT fits FROM pass) THEN 0 ELSE -1 END::bigint, NULL::text, NULL::text, NULL::text, NULL::text
UNION ALL
SELECT lease_until, id, saga_id, subscription_id, attempt_at, lease_resets, attempt, event_id,
       NULL, NULL, NULL, NULL
FROM leased
UNION ALL
SELECT created_at, NULL, NULL, NULL, NULL, NULL, NULL, id, event_type, correlation_id, tenant, payload
FROM sent WHERE (SELECT fits FROM pass)";

/// The same for a claim that passes subscriptions over, or that takes what fits into the limit of bytes.
///
/// - `numbered`: `first_of` is the event of a job, where the one before is of another. The jobs of one event were made
///   together and are mostly claimed together, so `sent` reads each event once for all of them. A large payload is not
///   read for that, nor copied: what is kept is a reference to it.
/// - `taken` is how many of them fit into the limit of bytes; the first does, whatever its size. Lengths stand in the
///   references, too. Adding them up job by job is for those whose largest payload would not fit as often.
/// - The least of what was left because of its subscription is where the next walk may begin at the latest.
pub(crate) const CLAIM_SOME: &str = "/* worker.claim_some */
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
       NULL::text, NULL::text, NULL::text, NULL::text
UNION ALL
SELECT lease_until, id, saga_id, subscription_id, attempt_at, lease_resets, attempt, event_id,
       NULL, NULL, NULL, NULL
FROM leased
UNION ALL
SELECT created_at, NULL, NULL, NULL, NULL, NULL, NULL, id, event_type, correlation_id, tenant, payload
FROM sent WHERE nth <= (SELECT jobs FROM taken)";

/// Jobs are made with the time at which their pass began, and are seen when it commits.
const MARGIN: Duration = Duration::from_millis(250);

/// The subscriptions of a claim, each with its valid secrets, newest first, and its headers: one snapshot, so that no URL
/// is seen with the headers of another.
pub(crate) const TARGETS: &str = "/* worker.targets */
SELECT s.id, s.callback_url, s.deliverable, k.id, k.key_id, k.sealed, s.deleted_at IS NOT NULL, h.key_id, h.sealed,
    CASE WHEN s.deleted_at IS NULL THEN s.rate_limit END
FROM subscriptions s
LEFT JOIN subscription_headers h ON h.subscription_id = s.id AND s.header_names IS NOT NULL
LEFT JOIN subscription_secrets k
    ON k.subscription_id = s.id AND (k.expires_at IS NULL OR k.expires_at > now())
WHERE s.id = ANY ($1::bigint[])
ORDER BY s.id, k.id DESC";

/// The subscriptions of recent claims. Their targets are asked for along with the next claim: it is probably for
/// the same ones, and then costs one round trip instead of two.
#[derive(Default)]
struct Recent(Mutex<Option<(Vec<i64>, Instant)>>);

impl Recent {
    const MOST: usize = 64;
    const FOR: Duration = Duration::from_secs(10);

    fn slot(&self) -> MutexGuard<'_, Option<(Vec<i64>, Instant)>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Vec<i64> {
        self.slot()
            .as_ref()
            .filter(|(_, at)| at.elapsed() < Self::FOR)
            .map_or_else(Vec::new, |(ids, _)| ids.clone())
    }

    fn set(&self, ids: &BTreeSet<i64>) {
        if !ids.is_empty() {
            *self.slot() = Some((ids.iter().copied().take(Self::MOST).collect(), Instant::now()));
        }
    }
}

/// What one process remembers from one claim to the next.
pub(super) struct Claims {
    recent: Recent,
    frontier: Frontier,
    /// When a claim did not fit into the limit of bytes: the next ones probably do not, either.
    too_large: Mutex<Option<Instant>>,
}

impl Claims {
    const SOME_FOR: Duration = Duration::from_secs(10);

    pub(super) fn new() -> Self {
        Self {
            recent: Recent::default(),
            frontier: Frontier::new(micros(MARGIN)),
            too_large: Mutex::default(),
        }
    }

    fn too_large(&self) -> MutexGuard<'_, Option<Instant>> {
        // Nothing panics while it is held.
        self.too_large.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn claim(
        &self,
        client: &Client,
        limits: &ClaimLimits,
        lease: Duration,
        token: LeaseToken,
    ) -> DbResult<ClaimedBatch> {
        let expects_all = limits.skip.is_empty()
            && self.too_large().is_none_or(|at: Instant| at.elapsed() >= Self::SOME_FOR);
        if expects_all {
            let statement = client.prepare_cached(CLAIM).await?;
            let claiming = Claiming { client, limits, lease, token, statement, skip: None };
            if let Some(claimed) = self.claim_with(&claiming).await? {
                return Ok(claimed);
            }
            *self.too_large() = Some(Instant::now());
        }
        let statement = client.prepare_cached(CLAIM_SOME).await?;
        let skip = Some(limits.skip.iter().map(|id| id.0).collect());
        let claimed = self.claim_with(&Claiming { client, limits, lease, token, statement, skip }).await?;
        claimed.ok_or_else(|| DbError::unreadable("a claim that takes what fits did not fit"))
    }

    /// Nothing: it does not fit.
    async fn claim_with(&self, claiming: &Claiming<'_>) -> DbResult<Option<ClaimedBatch>> {
        let client = claiming.client;
        let recent = self.recent.get();
        let claim = |from| {
            let claim = claiming.claim_from(from);
            let targets = targets(client, &recent);
            async move {
                // They travel together; `biased`: the claim first, so that the targets are as it finds them or
                // newer.
                let ((claimed, reached), targets) = tokio::try_join!(biased; claim, targets)?;
                Ok(((claimed, targets), reached))
            }
        };
        let (claimed, mut targets) = self.frontier.walk(claim).await?;
        let Some(claimed) = claimed else { return Ok(None) };
        let subscriptions: BTreeSet<i64> =
            claimed.jobs.iter().map(|job| job.held.subscription_id.0).collect();
        self.recent.set(&subscriptions);
        targets.retain(|id, _| subscriptions.contains(&id.0));
        let unread = subscriptions.into_iter().filter(|id| !targets.contains_key(&SubscriptionId(*id)));
        targets.extend(self::targets(client, &unread.collect::<Vec<_>>()).await?);
        Ok(Some(ClaimedBatch { targets, ..claimed }))
    }
}

/// One of the two statements with its arguments.
struct Claiming<'a> {
    client: &'a Client,
    limits: &'a ClaimLimits,
    lease: Duration,
    token: LeaseToken,
    statement: Statement,
    /// Of [`CLAIM_SOME`].
    skip: Option<Vec<i64>>,
}

impl Claiming<'_> {
    /// What was claimed, without its targets, and how far the walk came. Where it does not fit, nothing, and the walk stays
    /// where it was.
    async fn claim_from(&self, from: i64) -> DbResult<(Option<ClaimedBatch>, Option<i64>)> {
        let (jobs, lease) = (bigint(self.limits.jobs), micros(self.lease));
        let (bytes, begin) = (bigint(self.limits.payload_bytes), Time(Timestamp::from_micros(from)));
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&jobs, &lease, &self.token.0, &begin, &bytes];
        parameters.extend(self.skip.iter().map(|skip| skip as &(dyn ToSql + Sync)));
        let rows = self.client.query(&self.statement, &parameters).await?;
        // A UNION ALL returns its parts in order.
        let (clock, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no clock"))?;
        let left: i64 = clock.try_get(7)?;
        if left < 0 && self.skip.is_none() {
            return Ok((None, Some(from)));
        }
        let now = clock.try_get::<_, Time>(0)?.0;
        let jobs = leases(rows, self.token)?;
        let reached = clock.try_get::<_, Option<Time>>(4)?.map(|time| time.0.as_micros());
        Ok((Some(ClaimedBatch { now, jobs, cut_short: left > 0, targets: HashMap::new() }), reached))
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
            accepted_at: event.try_get::<_, Time>(0)?.0,
            attempt: natural(row.try_get(6)?),
            lease_resets: natural(row.try_get(5)?),
            attempt_at: row.try_get::<_, Time>(4)?.0,
        };
        let until = row.try_get::<_, Time>(0)?.0;
        leases.push(Lease { job_id: JobId(row.try_get(1)?), token, until, held });
    }
    Ok(leases)
}

async fn targets(client: &Client, ids: &[i64]) -> DbResult<HashMap<SubscriptionId, Arc<Target>>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let statement = client.prepare_cached(TARGETS).await?;
    let mut targets: HashMap<SubscriptionId, Target> = HashMap::with_capacity(ids.len());
    for row in client.query(&statement, &[&ids]).await? {
        let target = match targets.entry(SubscriptionId(row.try_get(0)?)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Target {
                callback_url: row.try_get(1)?,
                deliverable: row.try_get(2)?,
                deleted: row.try_get(6)?,
                rate_limit: row.try_get::<_, Option<i32>>(9)?.map(natural).map(RateLimit::per_second),
                secrets: Vec::new(),
                headers: headers(&row)?,
            }),
        };
        if let Some(secret_id) = row.try_get::<_, Option<i64>>(3)? {
            let secret = SealedSecret { key_id: row.try_get(4)?, sealed: row.try_get(5)? };
            target.secrets.push(StoredSecret { id: SecretId(secret_id), secret });
        }
    }
    Ok(targets.into_iter().map(|(id, target)| (id, Arc::new(target))).collect())
}

/// Of a row of [`TARGETS`].
fn headers(row: &Row) -> DbResult<Option<SealedSecret>> {
    let (key_id, sealed): (Option<String>, Option<Vec<u8>>) = (row.try_get(7)?, row.try_get(8)?);
    Ok(key_id.zip(sealed).map(|(key_id, sealed)| SealedSecret { key_id, sealed }))
}
