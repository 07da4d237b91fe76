//! `job_worker`: leases jobs and reports how they ended.

use crate::{
    convert::{bigint, natural},
    error::Failure,
    pool::RolePool,
    time::{Time, micros},
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, JobId, Outcome, SagaId, SecretId, SubscriptionId};
use hooksaga_store::{
    ClaimedBatch, DeliveryJob, JobReport, Lease, LeaseRef, LeaseToken, SealedSecret, StoreResult,
    StoredSecret, Target, WorkerStore,
};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio_postgres::types::ToSql;

/// Walks the partial index of Pending jobs in its own order: `ORDER BY id` would walk the primary key past every
/// finished job. The update goes by the picked rows' places in the table, which nobody can change while they are
/// locked; `status::text` keeps the planner from going by the status index instead. One line always comes back,
/// for the clock.
pub(crate) const CLAIM: &str = "/* worker.claim */
WITH picked AS MATERIALIZED (
    SELECT ctid AS place FROM webhook_delivery_jobs
    WHERE status = 'Pending' AND lease_until <= now()
    ORDER BY lease_until LIMIT $1
    FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE webhook_delivery_jobs j
    SET status = 'Leased', lease_until = now() + $2::bigint * interval '1 microsecond', lease_token = $3,
        updated_at = now()
    WHERE j.ctid = ANY (ARRAY(SELECT place FROM picked)) AND j.status::text = 'Pending'
    RETURNING j.id, j.saga_id, j.subscription_id, j.attempt_at, j.lease_until, j.lease_resets
)
SELECT clock.now, c.id, c.saga_id, c.subscription_id, c.attempt_at, c.lease_until, c.lease_resets,
       c.attempt_count, c.event_id, c.event_type, c.correlation_id, c.payload
FROM (SELECT now() AS now) clock LEFT JOIN (
    SELECT l.*, s.attempt_count, s.event_id, e.event_type, e.correlation_id, e.payload
    FROM leased l
    JOIN webhook_delivery_sagas s ON s.id = l.saga_id
    JOIN events e ON e.id = s.event_id
) c ON true";

/// The subscriptions of a claim, each with its valid secrets, newest first.
pub(crate) const TARGETS: &str = "/* worker.targets */
SELECT s.id, s.callback_url, s.active AND s.verified, k.id, k.key_id, k.sealed
FROM subscriptions s
LEFT JOIN subscription_secrets k
    ON k.subscription_id = s.id AND (k.expires_at IS NULL OR k.expires_at > now())
WHERE s.id = ANY ($1::bigint[])
ORDER BY s.id, k.id DESC";

/// Fenced by token; driven by the given ids (`status::text`, as above).
pub(crate) const HAND_BACK: &str = "/* worker.hand_back */
UPDATE webhook_delivery_jobs j
SET status = 'Pending', lease_until = now() + $3::bigint * interval '1 microsecond', lease_token = NULL,
    updated_at = now()
FROM unnest($1::bigint[], $2::bigint[]) AS u (id, token)
WHERE j.id = u.id AND j.status::text = 'Leased' AND j.lease_token = u.token
RETURNING j.id";

/// Fenced by token; only the jobs that changed are queued for the orchestrator, in the same commit. A job
/// finishes once, so its id can be in the queue only once; were it there already, that is no reason to lose
/// the others' results.
pub(crate) const REPORT: &str = "/* worker.report */
WITH done AS (
    UPDATE webhook_delivery_jobs j
    SET status = u.status::job_status, response_status = u.response_status, error_code = u.error_code,
        duration_ms = u.duration_ms, response_excerpt = u.excerpt, lease_token = NULL, updated_at = now()
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::int[], $5::text[], $6::int[], $7::text[])
         AS u (id, token, status, response_status, error_code, duration_ms, excerpt)
    WHERE j.id = u.id AND j.status::text = 'Leased' AND j.lease_token = u.token
    RETURNING j.id
), queued AS (
    INSERT INTO finished_jobs (job_id) SELECT id FROM done ORDER BY id ON CONFLICT DO NOTHING
)
SELECT id FROM done";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* secret_key_ids */
SELECT DISTINCT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > now() ORDER BY key_id";

pub(crate) struct Worker {
    pool: RolePool,
    recent: Recent,
}

impl Worker {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool, recent: Recent::default() }
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
                let parameters: [&(dyn ToSql + Sync); 3] = [&bigint(limit), &micros(lease), &token.0];
                let recent = self.recent.get();
                // They travel together; `biased`: the claim first, so that the targets are as it finds them or newer.
                let (rows, mut targets) = tokio::try_join!(
                    biased;
                    async { Ok(client.query(&statement, &parameters).await?) },
                    targets(&client, &recent),
                )?;
                let first = rows.first().ok_or_else(|| Failure::unreadable("no clock"))?;
                let now = first.try_get::<_, Time>(0)?.0;
                // One event's payload is kept once, however many subscriptions it goes to.
                let mut payloads: HashMap<i64, Arc<str>> = HashMap::new();
                let mut jobs = Vec::with_capacity(rows.len());
                for row in &rows {
                    let Some(job_id) = row.try_get::<_, Option<i64>>(1)? else { continue };
                    let event_id: i64 = row.try_get(8)?;
                    let payload: &str = row.try_get(11)?;
                    let payload = Arc::clone(payloads.entry(event_id).or_insert_with(|| Arc::from(payload)));
                    let held = DeliveryJob {
                        saga_id: SagaId(row.try_get(2)?),
                        subscription_id: SubscriptionId(row.try_get(3)?),
                        event_id: EventId(event_id),
                        event_type: row.try_get(9)?,
                        correlation_id: row.try_get(10)?,
                        payload,
                        attempt: natural(row.try_get(7)?).saturating_add(1),
                        lease_resets: natural(row.try_get(6)?),
                        attempt_at: row.try_get::<_, Time>(4)?.0,
                    };
                    jobs.push(Lease {
                        job_id: JobId(job_id),
                        token,
                        until: row.try_get::<_, Time>(5)?.0,
                        held,
                    });
                }
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
        leases.sort_unstable_by_key(|lease| lease.job_id);
        let ids: &Vec<i64> = &leases.iter().map(|lease| lease.job_id.0).collect();
        let tokens: &Vec<i64> = &leases.iter().map(|lease| lease.token.0).collect();
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(HAND_BACK).await?;
                let rows = client.query(&statement, &[ids, tokens, &micros(delay)]).await?;
                rows.iter().map(|row| Ok(JobId(row.try_get(0)?))).collect()
            })
            .await
    }

    async fn report(&self, reports: &[JobReport]) -> StoreResult<Vec<JobId>> {
        let columns = &ReportColumns::new(reports);
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(REPORT).await?;
                let rows = client
                    .query(
                        &statement,
                        &[
                            &columns.ids,
                            &columns.tokens,
                            &columns.statuses,
                            &columns.response_statuses,
                            &columns.error_codes,
                            &columns.durations,
                            &columns.excerpts,
                        ],
                    )
                    .await?;
                rows.iter().map(|row| Ok(JobId(row.try_get(0)?))).collect()
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

async fn targets(client: &Client, ids: &[i64]) -> Result<HashMap<SubscriptionId, Arc<Target>>, Failure> {
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

/// Reports as columns, in the order of job ids.
struct ReportColumns<'a> {
    ids: Vec<i64>,
    tokens: Vec<i64>,
    statuses: Vec<&'static str>,
    response_statuses: Vec<Option<i32>>,
    error_codes: Vec<Option<&'a str>>,
    durations: Vec<i32>,
    excerpts: Vec<Option<String>>,
}

impl<'a> ReportColumns<'a> {
    fn new(reports: &'a [JobReport]) -> Self {
        let mut sorted: Vec<&JobReport> = reports.iter().collect();
        sorted.sort_unstable_by_key(|report| report.lease.job_id);
        Self {
            ids: sorted.iter().map(|report| report.lease.job_id.0).collect(),
            tokens: sorted.iter().map(|report| report.lease.token.0).collect(),
            statuses: sorted
                .iter()
                .map(|report| match report.outcome {
                    Outcome::Delivered => "Completed",
                    Outcome::Failed(_) => "Failed",
                })
                .collect(),
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
