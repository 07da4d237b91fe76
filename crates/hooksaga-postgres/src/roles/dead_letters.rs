//! `dead_letter_operator`: stores dead letters, and sends again what has ended, as new sagas.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::rows::{bigint, integer, natural, parsed, trace},
    time::Time,
};
use async_trait::async_trait;
use deadpool_postgres::{GenericClient, Transaction};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, Saga, SagaId, SubscriptionId, send_again};
use hooksaga_store::{
    Buried, DeadLetterFilter, DeadLetterStore, RequeueOutcome, RequeueStep, Requeued, RequeuedBatch,
    RequeuedSaga, ResendOutcome, StoreError, StoreResult, TenantScope, TestOutcome, Trace,
};
use std::collections::HashMap;
use tokio_postgres::{Row, types::ToSql};

/// One statement: what its snapshot sees queued, it also sees dead. A queued saga that is not dead stays queued.
/// Deleted by place, as the router does. OFFSET 0 keeps the lookups of sagas as written, one by its key for each of
/// the batch: planned on a small table, a filter on the status makes the planner begin with the sagas.
pub(crate) const BURY: &str = "/* dead_letters.bury */
WITH batch AS MATERIALIZED (
    SELECT saga_id, ctid AS place FROM pending_dead_letters ORDER BY saga_id LIMIT $1 FOR UPDATE SKIP LOCKED
), dead AS MATERIALIZED (
    SELECT b.place, s.id, s.event_id, s.subscription_id, coalesce(s.final_error_code, 'INTERNAL') AS code,
           e.correlation_id, e.payload, e.tenant
    FROM batch b
    CROSS JOIN LATERAL (
        SELECT * FROM webhook_delivery_sagas WHERE id = b.saga_id AND status::text = 'DeadLettered' OFFSET 0
    ) s
    JOIN events e ON e.id = s.event_id
), letters AS (
    INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at)
    SELECT id, event_id, subscription_id, code, payload, now() FROM dead ORDER BY id
    ON CONFLICT DO NOTHING
    RETURNING id, saga_id
), gone AS (
    DELETE FROM pending_dead_letters WHERE ctid = ANY (ARRAY(SELECT place FROM dead))
)
SELECT id, event_id, subscription_id, correlation_id, code, NULL::bigint, tenant FROM dead
UNION ALL
SELECT saga_id, NULL, NULL, NULL, NULL, id, NULL FROM letters";

/// Whether the janitor has begun to remove the event `e`: what is left of it is not sent again.
macro_rules! is_going {
    () => {
        "EXISTS (SELECT FROM removals r WHERE r.kind = 'event' AND r.subject_id = e.id OFFSET 0)"
    };
}
pub(super) use is_going;

/// What must be known of a saga to send it again; `successor` is the saga that it was sent again as. It cannot be delivered
/// once its event is going.
macro_rules! saga {
    ($more:literal, $from:literal) => {
        concat!(
            "
SELECT now(), s.event_id, s.subscription_id, s.generation, s.status::text, s.attempt_count,
       s.max_retry_limit, s.next_attempt_at, sub.max_retry_limit,
       coalesce(sub.active AND sub.verified, false) AND NOT ",
            is_going!(),
            ",
       e.tenant, e.correlation_id, successor.id",
            $more,
            "
FROM ",
            $from,
            "
JOIN events e ON e.id = s.event_id
LEFT JOIN subscriptions sub ON sub.id = s.subscription_id
LEFT JOIN webhook_delivery_sagas successor
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1"
        )
    };
}

const SAGA: &str = saga!("", "webhook_delivery_sagas s");
/// With what a requeue of many filters by.
const LETTER: &str = saga!(
    ", d.id, e.event_type, d.final_error_code, d.created_at",
    "dead_letters d JOIN webhook_delivery_sagas s ON s.id = d.saga_id"
);

/// The janitor locks an event before it removes any of it. What is read after this, by another statement, shows whether it
/// has begun.
pub(crate) const LOCK_EVENTS: &str = "/* dead_letters.lock_events */
SELECT FROM events WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE";

/// Twice is once: the unique key (event, subscription, generation) lets one of them in. The events are locked; one that has
/// gone meanwhile, or is going, gets no saga.
const REQUEUE: &str = concat!(
    "/* dead_letters.requeue */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT u.event_id, u.subscription_id, u.generation, u.status::saga_status, u.attempt_count, u.max_retry_limit,
       u.next_attempt_at, now(), now()
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::int[], $6::int[], $7::timestamptz[])
     AS u (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at)
JOIN events e ON e.id = u.event_id
WHERE NOT ",
    is_going!(),
    "
ORDER BY u.event_id, u.subscription_id, u.generation
ON CONFLICT DO NOTHING
RETURNING id, event_id, subscription_id, generation"
);

/// A subscription that a test event may go to, whether it can, and the delivery that there is.
const TEST: &str = "/* dead_letters.test */
SELECT now(), s.max_retry_limit, s.active AND s.verified, e.tenant, e.correlation_id, g.id
FROM subscriptions s
JOIN events e ON e.id = $1 AND e.tenant = s.tenant
LEFT JOIN webhook_delivery_sagas g ON g.event_id = e.id AND g.subscription_id = s.id AND g.generation = 0
WHERE s.id = $2 AND ($3::text IS NULL OR s.tenant = $3) AND s.deleted_at IS NULL";

/// What is going is not there any more.
const IN_SCOPE: &str = concat!("($2::text IS NULL OR e.tenant = $2) AND NOT ", is_going!());

pub(crate) struct DeadLetters {
    pool: RolePool,
}

impl DeadLetters {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }

    async fn again(
        &self,
        sql: &str,
        scope: &TenantScope,
        id: i64,
        default_limit: u32,
    ) -> StoreResult<ResendOutcome> {
        self.pool
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let outcome = again(&transaction, sql, scope, id, default_limit).await?;
                transaction.commit().await?;
                Ok(outcome)
            })
            .await
    }
}

#[async_trait]
impl DeadLetterStore for DeadLetters {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(BURY).await?;
                let rows = client.query(&statement, &[&bigint(limit)]).await?;
                // A UNION ALL returns its halves in order: the sagas, then the letters that are new.
                let mut buried: Vec<Buried> = Vec::with_capacity(rows.len());
                let mut place_of = HashMap::with_capacity(rows.len());
                for row in &rows {
                    let saga_id = SagaId(row.try_get(0)?);
                    if let Some(letter) = row.try_get::<_, Option<i64>>(5)? {
                        if let Some(&place) = place_of.get(&saga_id) {
                            let entry: &mut Buried = &mut buried[place];
                            entry.dead_letter_id = Some(DeadLetterId(letter));
                        }
                        continue;
                    }
                    place_of.insert(saga_id, buried.len());
                    buried.push(Buried {
                        dead_letter_id: None,
                        saga_id,
                        event_id: EventId(row.try_get(1)?),
                        subscription_id: SubscriptionId(row.try_get(2)?),
                        tenant: row.try_get(6)?,
                        correlation_id: row.try_get(3)?,
                        final_error_code: ErrorCode::from_stored(row.try_get(4)?),
                    });
                }
                Ok(buried)
            })
            .await
    }

    async fn requeue(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
        default_limit: u32,
    ) -> StoreResult<RequeueOutcome> {
        let sql = &format!("/* dead_letters.letter */{LETTER} WHERE d.id = $1 AND {IN_SCOPE}");
        Ok(self.again(sql, scope, id.0, default_limit).await?.into())
    }

    async fn resend(
        &self,
        scope: &TenantScope,
        id: SagaId,
        default_limit: u32,
    ) -> StoreResult<ResendOutcome> {
        let sql = &format!("/* dead_letters.saga */{SAGA} WHERE s.id = $1 AND {IN_SCOPE}");
        self.again(sql, scope, id.0, default_limit).await
    }

    async fn send_test(
        &self,
        scope: &TenantScope,
        event: EventId,
        subscription: SubscriptionId,
        default_limit: u32,
    ) -> StoreResult<TestOutcome> {
        self.pool
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let outcome = send_test(&transaction, scope, event, subscription, default_limit).await?;
                transaction.commit().await?;
                Ok(outcome)
            })
            .await
    }

    async fn requeue_step(&self, scope: &TenantScope, step: &RequeueStep) -> StoreResult<RequeuedBatch> {
        self.pool
            .run(|mut client| async move {
                let look = Examined {
                    filter: &step.filter,
                    after: step.after,
                    most: step.examine,
                    default_limit: step.default_limit,
                };
                let letters = examine(&client, scope, &look).await?;
                let mut batch = RequeuedBatch::default();
                let mut chosen: Vec<&Next> = Vec::new();
                let mut last = None;
                for letter in &letters {
                    if chosen.len() >= step.requeue as usize {
                        break;
                    }
                    last = Some(letter.id);
                    match letter.wanted && letter.ended.successor.is_none() {
                        true if letter.ended.deliverable => chosen.push(&letter.ended.next),
                        true => batch.skipped += 1,
                        false => {}
                    }
                }
                // The end of the letters was seen, and nothing is left between here and there.
                let is_end =
                    letters.len() < step.examine as usize && last == letters.last().map(|letter| letter.id);
                batch.resume_after = last.filter(|_| !is_end);
                if step.dry_run {
                    batch.requeued = length(chosen.len());
                } else if !chosen.is_empty() {
                    let transaction = client.transaction().await?;
                    batch.sagas = insert(&transaction, &chosen).await?;
                    transaction.commit().await?;
                    batch.requeued = length(batch.sagas.len());
                }
                Ok(batch)
            })
            .await
    }
}

/// Sends the saga that `sql` finds by this id again, if it has ended.
async fn again(
    client: &Transaction<'_>,
    sql: &str,
    scope: &TenantScope,
    id: i64,
    default_limit: u32,
) -> DbResult<ResendOutcome> {
    let statement = client.prepare_cached(sql).await?;
    // A second look is needed only if somebody else came in between.
    for _ in 0..2 {
        let Some(row) = client.query_opt(&statement, &[&id, &scope.tenant()]).await? else {
            return Ok(ResendOutcome::NotFound);
        };
        let Some(ended) = Ended::from_row(&row, default_limit)? else {
            return Ok(ResendOutcome::Open);
        };
        if let Some(requeued) = ended.sent_again() {
            return Ok(ResendOutcome::Already(requeued));
        }
        if !ended.deliverable {
            return Ok(ResendOutcome::NotDeliverable(ended.next.subscription_id));
        }
        if let Some(saga) = insert(client, &[&ended.next]).await?.pop() {
            return Ok(ResendOutcome::Created(saga.requeued, saga.trace));
        }
    }
    Err(DbError::Store(StoreError::Other("a saga that was sent again cannot be seen".to_owned())))
}

async fn send_test(
    client: &Transaction<'_>,
    scope: &TenantScope,
    event: EventId,
    subscription: SubscriptionId,
    default_limit: u32,
) -> DbResult<TestOutcome> {
    let statement = client.prepare_cached(TEST).await?;
    // A second look is needed only if somebody else came in between.
    for _ in 0..2 {
        let row = client.query_opt(&statement, &[&event.0, &subscription.0, &scope.tenant()]).await?;
        let Some(row) = row else { return Ok(TestOutcome::NotFound) };
        if let Some(saga) = row.try_get::<_, Option<i64>>(5)? {
            return Ok(TestOutcome::Delivery(SagaId(saga)));
        }
        if !row.try_get::<_, bool>(2)? {
            return Ok(TestOutcome::NotDeliverable);
        }
        let limit = row.try_get::<_, Option<i32>>(1)?.map_or(default_limit, natural);
        let first = Next {
            event_id: event,
            subscription_id: subscription,
            trace: trace(&row, 3)?,
            generation: 0,
            saga: Saga::new(limit, row.try_get::<_, Time>(0)?.0),
        };
        if let Some(made) = insert(client, &[&first]).await?.pop() {
            return Ok(TestOutcome::Delivery(made.requeued.saga_id));
        }
    }
    Err(DbError::Store(StoreError::Other("a test event's saga cannot be seen".to_owned())))
}

fn length(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// The next letters, oldest first, that a step looks at: those of its subscription, else of its tenant's subscriptions,
/// else all. The rest of the filter is told of each ([`Letter::wanted`]): however few match, a step ends.
pub(super) async fn examine(
    client: &impl GenericClient,
    scope: &TenantScope,
    step: &Examined<'_>,
) -> DbResult<Vec<Letter>> {
    let after = step.after.map_or(0, |id| id.0);
    let limit = bigint(step.most);
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&after, &limit];
    let subscription_id = step.filter.subscription_id.map(|id| id.0);
    let tenant = scope.tenant();
    let ids = if let Some(id) = &subscription_id {
        parameters.push(id);
        "SELECT id FROM dead_letters WHERE subscription_id = $3 AND id > $1 ORDER BY id LIMIT $2"
    } else if let Some(tenant) = &tenant {
        parameters.push(tenant);
        "SELECT l.id FROM subscriptions s CROSS JOIN LATERAL (
            SELECT id FROM dead_letters WHERE subscription_id = s.id AND id > $1 ORDER BY id LIMIT $2
         ) l WHERE s.tenant = $3 ORDER BY l.id LIMIT $2"
    } else {
        "SELECT id FROM dead_letters WHERE id > $1 ORDER BY id LIMIT $2"
    };
    let sql =
        format!("/* dead_letters.examine */{LETTER} WHERE d.id = ANY (ARRAY({ids})) ORDER BY d.id LIMIT $2");
    let statement = client.prepare_cached(&sql).await?;
    let rows = client.query(&statement, &parameters).await?;
    rows.iter()
        .map(|row| {
            let ended = Ended::from_row(row, step.default_limit)?
                .ok_or_else(|| DbError::unreadable("a dead letter whose saga is not dead"))?;
            let wanted = is_wanted(row, scope, step.filter)?;
            Ok(Letter { id: DeadLetterId(row.try_get(13)?), wanted, ended })
        })
        .collect()
}

/// Whether a row of [`LETTER`] is what the filter asks for.
fn is_wanted(row: &Row, scope: &TenantScope, wanted: &DeadLetterFilter) -> DbResult<bool> {
    let (event_type, code): (&str, &str) = (row.try_get(14)?, row.try_get(15)?);
    let created_at = row.try_get::<_, Time>(16)?.0;
    Ok(scope.includes(row.try_get(10)?)
        && wanted.event_type.as_deref().is_none_or(|wanted| wanted == event_type)
        && scope.matches_code(wanted.final_error_code.as_deref(), code)
        && wanted.created_after.is_none_or(|after| created_at >= after)
        && wanted.created_before.is_none_or(|before| created_at < before))
}

/// Which letters a step looks at.
pub(super) struct Examined<'a> {
    pub(super) filter: &'a DeadLetterFilter,
    /// Only letters behind this one.
    pub(super) after: Option<DeadLetterId>,
    pub(super) most: u32,
    pub(super) default_limit: u32,
}

/// A letter that a step looks at.
pub(super) struct Letter {
    pub(super) id: DeadLetterId,
    /// The filter asks for it.
    pub(super) wanted: bool,
    pub(super) ended: Ended,
}

/// A saga that has ended.
pub(super) struct Ended {
    pub(super) deliverable: bool,
    pub(super) successor: Option<SagaId>,
    /// What it is sent again as, as the state machine says.
    pub(super) next: Next,
}

/// A saga to insert.
pub(super) struct Next {
    event_id: EventId,
    subscription_id: SubscriptionId,
    trace: Trace,
    generation: u32,
    saga: Saga,
}

impl Ended {
    /// Nothing if the saga is open.
    fn from_row(row: &Row, default_limit: u32) -> DbResult<Option<Self>> {
        let now = row.try_get::<_, Time>(0)?.0;
        let saga = Saga {
            status: parsed(row.try_get(4)?)?,
            attempt_count: natural(row.try_get(5)?),
            max_retry_limit: natural(row.try_get(6)?),
            next_attempt_at: row.try_get::<_, Time>(7)?.0,
            final_error_code: None,
        };
        let limit = row.try_get::<_, Option<i32>>(8)?.map_or(default_limit, natural);
        let Some((generation, saga)) = send_again(&saga, natural(row.try_get(3)?), limit, now) else {
            return Ok(None);
        };
        Ok(Some(Self {
            deliverable: row.try_get(9)?,
            successor: row.try_get::<_, Option<i64>>(12)?.map(SagaId),
            next: Next {
                event_id: EventId(row.try_get(1)?),
                subscription_id: SubscriptionId(row.try_get(2)?),
                trace: trace(row, 10)?,
                generation,
                saga,
            },
        }))
    }

    fn sent_again(&self) -> Option<Requeued> {
        self.successor.map(|saga_id| Requeued { saga_id, generation: self.next.generation })
    }
}

/// Keeps the janitor from these events until the transaction ends.
pub(super) async fn lock_events(transaction: &Transaction<'_>, events: &[i64]) -> DbResult<()> {
    let statement = transaction.prepare_cached(LOCK_EVENTS).await?;
    transaction.execute(&statement, &[&events]).await?;
    Ok(())
}

/// Inserts sagas; returns those that were not there yet.
pub(super) async fn insert(client: &Transaction<'_>, sagas: &[&Next]) -> DbResult<Vec<RequeuedSaga>> {
    let column = |of: fn(&Next) -> i64| sagas.iter().map(|next| of(next)).collect::<Vec<i64>>();
    let narrow = |of: fn(&Next) -> u32| sagas.iter().map(|next| integer(of(next))).collect::<Vec<i32>>();
    let event_ids = column(|next| next.event_id.0);
    let subscription_ids = column(|next| next.subscription_id.0);
    let generations = narrow(|next| next.generation);
    let statuses: Vec<&str> = sagas.iter().map(|next| next.saga.status.as_str()).collect();
    let attempt_counts = narrow(|next| next.saga.attempt_count);
    let limits = narrow(|next| next.saga.max_retry_limit);
    let next_attempts: Vec<Time> = sagas.iter().map(|next| Time(next.saga.next_attempt_at)).collect();

    lock_events(client, &event_ids).await?;
    let statement = client.prepare_cached(REQUEUE).await?;
    let rows = client
        .query(
            &statement,
            &[
                &event_ids,
                &subscription_ids,
                &generations,
                &statuses,
                &attempt_counts,
                &limits,
                &next_attempts,
            ],
        )
        .await?;
    let trace_of: HashMap<(i64, i64), &Trace> =
        sagas.iter().map(|next| ((next.event_id.0, next.subscription_id.0), &next.trace)).collect();
    rows.iter()
        .map(|row| {
            let requeued =
                Requeued { saga_id: SagaId(row.try_get(0)?), generation: natural(row.try_get(3)?) };
            let subscription_id: i64 = row.try_get(2)?;
            let trace = trace_of.get(&(row.try_get(1)?, subscription_id)).copied();
            Ok(RequeuedSaga {
                requeued,
                subscription_id: SubscriptionId(subscription_id),
                trace: trace.cloned().unwrap_or_default(),
            })
        })
        .collect()
}
