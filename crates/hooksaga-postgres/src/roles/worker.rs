//! `job_worker`: leases jobs and reports how they ended.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        frontier::Frontier,
        rows::{bigint, natural},
    },
    time::{Time, micros},
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, JobId, Outcome, SagaId, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    ClaimedBatch, DeliveryJob, JobReport, Lease, LeaseRef, LeaseToken, SealedSecret, StoreResult,
    StoredSecret, Target, WorkerStore,
};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio_postgres::{Statement, types::ToSql};

/// Walks the partial index of Pending jobs in its own order: any other would pass every finished job. The update goes by
/// the picked rows' places in the table, which nobody can change while they are locked; a status that is asked for
/// (`SELECT`) instead of written down keeps the planner from going by the status index.
///
/// The first line is the clock, and how far the walk came. An event comes along with the first of its jobs in a row, not
/// with each of them: the jobs of one event were made together and are mostly claimed together.
pub(crate) const CLAIM: &str = "/* worker.claim */
WITH picked AS MATERIALIZED (
    SELECT ctid AS place, lease_until FROM webhook_delivery_jobs
    WHERE status = 'Pending' AND lease_until BETWEEN $4::timestamptz AND now()
    ORDER BY lease_until LIMIT $1
    FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE webhook_delivery_jobs j
    SET status = 'Leased', lease_until = now() + $2::bigint * interval '1 microsecond', lease_token = $3,
        updated_at = now()
    WHERE j.ctid = ANY (ARRAY(SELECT place FROM picked)) AND j.status = (SELECT 'Pending'::job_status)
    RETURNING j.id, j.saga_id, j.subscription_id, j.event_id, j.attempt, j.attempt_at, j.lease_until, j.lease_resets
)
SELECT now(), NULL::bigint, NULL::bigint, NULL::bigint, (SELECT max(lease_until) FROM picked), NULL::int, NULL::int,
       NULL::bigint, NULL::text, NULL::text, NULL::text
UNION ALL
SELECT c.lease_until, c.id, c.saga_id, c.subscription_id, c.attempt_at, c.lease_resets, c.attempt,
       c.event_id, e.event_type, e.correlation_id, e.payload
FROM (
    SELECT *, CASE WHEN lag(event_id) OVER () IS DISTINCT FROM event_id THEN event_id END AS first_of
    FROM leased
) c LEFT JOIN events e ON e.id = c.first_of";

/// Jobs are made with the time at which their pass began, and are seen when it commits.
const MARGIN: Duration = Duration::from_millis(250);

/// The subscriptions of a claim, each with its valid secrets, newest first.
pub(crate) const TARGETS: &str = "/* worker.targets */
SELECT s.id, s.callback_url, s.active AND s.verified, k.id, k.key_id, k.sealed
FROM subscriptions s
LEFT JOIN subscription_secrets k
    ON k.subscription_id = s.id AND (k.expires_at IS NULL OR k.expires_at > now())
WHERE s.id = ANY ($1::bigint[])
ORDER BY s.id, k.id DESC";

/// Fenced by token; driven by the given keys (the status is hidden, as above).
pub(crate) const HAND_BACK: &str = "/* worker.hand_back */
UPDATE webhook_delivery_jobs j
SET status = 'Pending', lease_until = now() + $5::bigint * interval '1 microsecond', lease_token = NULL,
    updated_at = now()
FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[]) AS u (saga_id, attempt_at, id, token)
WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
  AND j.id = u.id AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
RETURNING j.id";

/// Fenced by token; only the jobs that changed are queued for the orchestrator, with their results, in the same commit.
pub(crate) const REPORT: &str = "/* worker.report */
WITH done AS (
    UPDATE webhook_delivery_jobs j
    SET status = CASE WHEN u.error_code IS NULL THEN 'Completed'::job_status ELSE 'Failed' END,
        response_status = u.response_status, error_code = u.error_code, duration_ms = u.duration_ms,
        response_excerpt = u.excerpt, lease_token = NULL, updated_at = now()
    FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::int[], $6::text[], $7::int[],
                $8::text[])
         AS u (saga_id, attempt_at, id, token, response_status, error_code, duration_ms, excerpt)
    WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
      AND j.id = u.id AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
    RETURNING j.id, j.saga_id, j.attempt_at, j.duration_ms, j.error_code
), queued AS (
    INSERT INTO finished_jobs (job_id, saga_id, attempt_at, duration_ms, error_code)
    SELECT id, saga_id, attempt_at, duration_ms, error_code FROM done
)
SELECT array_agg(id) FROM done";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* secret_key_ids */
SELECT DISTINCT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > now() ORDER BY key_id";

pub(crate) struct Worker {
    pool: RolePool,
    recent: Recent,
    frontier: Frontier,
}

impl Worker {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, recent: Recent::default(), frontier: Frontier::new(micros(MARGIN)) }
    }
}

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

#[async_trait]
impl WorkerStore for Worker {
    async fn claim(&self, limit: u32, lease: Duration, token: LeaseToken) -> StoreResult<ClaimedBatch> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(CLAIM).await?;
                let recent = self.recent.get();
                let claim = |from| {
                    let from = Time(Timestamp::from_micros(from));
                    let claim = claim_from(&client, &statement, limit, lease, token, from);
                    let targets = targets(&client, &recent);
                    async move {
                        // They travel together; `biased`: the claim first, so that the targets are as it finds them or
                        // newer.
                        let ((claimed, reached), targets) = tokio::try_join!(biased; claim, targets)?;
                        Ok(((claimed, targets), reached))
                    }
                };
                let ((now, jobs), mut targets) = self.frontier.walk(claim).await?;
                let subscriptions: BTreeSet<i64> =
                    jobs.iter().map(|job| job.held.subscription_id.0).collect();
                self.recent.set(&subscriptions);
                targets.retain(|id, _| subscriptions.contains(&id.0));
                let unread =
                    subscriptions.into_iter().filter(|id| !targets.contains_key(&SubscriptionId(*id)));
                targets.extend(self::targets(&client, &unread.collect::<Vec<_>>()).await?);
                Ok(ClaimedBatch { now, jobs, targets })
            })
            .await
    }

    async fn hand_back(&self, leases: &[LeaseRef], delay: Duration) -> StoreResult<Vec<JobId>> {
        let mut leases = leases.to_vec();
        leases.sort_unstable_by_key(in_order);
        let keys = &Keys::new(leases.iter());
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(HAND_BACK).await?;
                let rows = client
                    .query(
                        &statement,
                        &[&keys.sagas, &keys.attempts, &keys.ids, &keys.tokens, &micros(delay)],
                    )
                    .await?;
                rows.iter().map(|row| Ok(JobId(row.try_get(0)?))).collect()
            })
            .await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        let columns = &ReportColumns::new(reports);
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(REPORT).await?;
                let row = client
                    .query_one(
                        &statement,
                        &[
                            &columns.keys.sagas,
                            &columns.keys.attempts,
                            &columns.keys.ids,
                            &columns.keys.tokens,
                            &columns.response_statuses,
                            &columns.error_codes,
                            &columns.durations,
                            &columns.excerpts,
                        ],
                    )
                    .await?;
                let changed = row.try_get::<_, Option<Vec<i64>>>(0)?.unwrap_or_default();
                Ok(changed.into_iter().map(JobId).collect())
            })
            .await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.pool).await
    }
}

/// The key ids of valid secrets: for each of the roles that may see them.
pub(crate) async fn secret_key_ids(pool: &RolePool) -> StoreResult<Vec<String>> {
    pool.run(|client| async move {
        let rows = client.query(SECRET_KEY_IDS, &[]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    })
    .await
}

/// The database's clock and what was claimed, and how far the walk came.
type Claimed = ((Timestamp, Vec<Lease<DeliveryJob>>), Option<i64>);

async fn claim_from(
    client: &Client,
    statement: &Statement,
    limit: u32,
    lease: Duration,
    token: LeaseToken,
    from: Time,
) -> DbResult<Claimed> {
    let parameters: [&(dyn ToSql + Sync); 4] = [&bigint(limit), &micros(lease), &token.0, &from];
    let rows = client.query(statement, &parameters).await?;
    // A UNION ALL answers its halves in turn.
    let (clock, rows) = rows.split_first().ok_or_else(|| DbError::unreadable("no clock"))?;
    let now = clock.try_get::<_, Time>(0)?.0;
    let reached = clock.try_get::<_, Option<Time>>(4)?.map(|time| time.0.as_micros());
    // Each event is there once at least; it is kept once, however many subscriptions it goes to.
    let mut events: HashMap<i64, (&str, &str, Arc<str>)> = HashMap::new();
    for row in rows {
        if let Some(payload) = row.try_get::<_, Option<&str>>(10)? {
            let event = (row.try_get(8)?, row.try_get(9)?, Arc::from(payload));
            events.insert(row.try_get(7)?, event);
        }
    }
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        let event_id: i64 = row.try_get(7)?;
        // An event never goes away. Were one gone, its job could not be sent, and is no reason to lose the others.
        let Some((event_type, correlation_id, payload)) = events.get(&event_id) else { continue };
        let held = DeliveryJob {
            saga_id: SagaId(row.try_get(2)?),
            subscription_id: SubscriptionId(row.try_get(3)?),
            event_id: EventId(event_id),
            event_type: (*event_type).to_owned(),
            correlation_id: (*correlation_id).to_owned(),
            payload: Arc::clone(payload),
            attempt: natural(row.try_get(6)?),
            lease_resets: natural(row.try_get(5)?),
            attempt_at: row.try_get::<_, Time>(4)?.0,
        };
        jobs.push(Lease { job_id: JobId(row.try_get(1)?), token, until: row.try_get::<_, Time>(0)?.0, held });
    }
    Ok(((now, jobs), reached))
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
                secrets: Vec::new(),
            }),
        };
        if let Some(secret_id) = row.try_get::<_, Option<i64>>(3)? {
            let secret = SealedSecret { key_id: row.try_get(4)?, sealed: row.try_get(5)? };
            target.secrets.push(StoredSecret { id: SecretId(secret_id), secret });
        }
    }
    Ok(targets.into_iter().map(|(id, target)| (id, Arc::new(target))).collect())
}

/// The order in which jobs are written: by their key.
fn in_order(lease: &LeaseRef) -> (SagaId, Timestamp) {
    (lease.saga_id, lease.attempt_at)
}

/// Leases as columns.
struct Keys {
    sagas: Vec<i64>,
    attempts: Vec<Time>,
    ids: Vec<i64>,
    tokens: Vec<i64>,
}

impl Keys {
    fn new<'a>(leases: impl Iterator<Item = &'a LeaseRef> + Clone) -> Self {
        Self {
            sagas: leases.clone().map(|lease| lease.saga_id.0).collect(),
            attempts: leases.clone().map(|lease| Time(lease.attempt_at)).collect(),
            ids: leases.clone().map(|lease| lease.job_id.0).collect(),
            tokens: leases.map(|lease| lease.token.0).collect(),
        }
    }
}

/// Reports as columns, side by side.
struct ReportColumns<'a> {
    keys: Keys,
    response_statuses: Vec<Option<i32>>,
    error_codes: Vec<Option<&'a str>>,
    durations: Vec<i32>,
    excerpts: Vec<Option<String>>,
}

impl<'a> ReportColumns<'a> {
    fn new(reports: &'a [JobReport]) -> Self {
        let mut sorted: Vec<&JobReport> = reports.iter().collect();
        sorted.sort_unstable_by_key(|report| in_order(&report.lease));
        Self {
            keys: Keys::new(sorted.iter().map(|report| &report.lease)),
            response_statuses: sorted.iter().map(|report| report.response_status.map(i32::from)).collect(),
            error_codes: sorted
                .iter()
                .map(|report| match &report.outcome {
                    Outcome::Delivered => None,
                    Outcome::Failed(code) => Some(code.as_str()),
                })
                .collect(),
            durations: sorted
                .iter()
                .map(|report| i32::try_from(report.duration.as_millis()).unwrap_or(i32::MAX))
                .collect(),
            excerpts: sorted.iter().map(|report| report.storable_excerpt()).collect(),
        }
    }
}
