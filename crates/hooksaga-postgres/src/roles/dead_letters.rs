//! `dead_letter_operator`: stores dead letters, and requeues them as new sagas.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        filter::Filter,
        rows::{bigint, integer, natural, parsed},
    },
    time::Time,
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, Saga, SagaId, SubscriptionId, requeue};
use hooksaga_store::{
    Buried, DeadLetterFilter, DeadLetterStore, RequeueOutcome, RequeueRequest, RequeueTally, Requeued,
    StoreError, StoreResult,
};
use std::collections::HashMap;
use tokio_postgres::Row;

/// One statement: what its snapshot sees queued, it also sees dead. A queued saga that is not dead stays queued.
/// Deleted by place, as the router does. OFFSET 0 keeps the lookups of sagas as written, one by its key for each of
/// the batch: planned on a small table, a filter on the status makes the planner begin with the sagas.
pub(crate) const BURY: &str = "/* dead_letters.bury */
WITH batch AS MATERIALIZED (
    SELECT saga_id, ctid AS place FROM pending_dead_letters ORDER BY saga_id LIMIT $1 FOR UPDATE SKIP LOCKED
), dead AS MATERIALIZED (
    SELECT b.place, s.id, s.event_id, s.subscription_id, coalesce(s.final_error_code, 'INTERNAL') AS code,
           e.correlation_id, e.payload
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
SELECT id, event_id, subscription_id, correlation_id, code, NULL::bigint FROM dead
UNION ALL
SELECT saga_id, NULL, NULL, NULL, NULL, id FROM letters";

/// What a requeue needs to know of a letter; `successor` is the saga that an earlier requeue made.
const LETTER: &str = "
SELECT now(), d.id, d.event_id, d.subscription_id, s.generation, s.status::text, s.attempt_count,
       s.max_retry_limit, s.next_attempt_at, sub.max_retry_limit, coalesce(sub.active AND sub.verified, false),
       e.correlation_id, successor.id
FROM dead_letters d
JOIN webhook_delivery_sagas s ON s.id = d.saga_id
JOIN events e ON e.id = d.event_id
LEFT JOIN subscriptions sub ON sub.id = d.subscription_id
LEFT JOIN webhook_delivery_sagas successor
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1";

/// Twice is once: the unique key (event, subscription, generation) lets one of them in.
const REQUEUE: &str = "/* dead_letters.requeue */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT event_id, subscription_id, generation, status::saga_status, attempt_count, max_retry_limit,
       next_attempt_at, now(), now()
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::int[], $6::int[], $7::timestamptz[])
     AS u (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at)
ORDER BY event_id, subscription_id, generation
ON CONFLICT DO NOTHING
RETURNING id, event_id, subscription_id, generation";

/// How many letters a requeue of many looks at in one go; each go is a transaction of its own.
const CHUNK: u32 = 1000;

pub(crate) struct DeadLetters {
    pool: RolePool,
}

impl DeadLetters {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl DeadLetterStore for DeadLetters {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(BURY).await?;
                let rows = client.query(&statement, &[&bigint(limit)]).await?;
                // A UNION ALL answers its halves in turn: the sagas, then the letters that are new.
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
                        correlation_id: row.try_get(3)?,
                        final_error_code: ErrorCode::from_stored(row.try_get(4)?),
                    });
                }
                Ok(buried)
            })
            .await
    }

    async fn requeue(&self, id: DeadLetterId, default_limit: u32) -> StoreResult<RequeueOutcome> {
        self.pool
            .run(|client| async move {
                // A second look is needed only if another requeue came in between.
                for _ in 0..2 {
                    let sql = format!("/* dead_letters.letter */{LETTER} WHERE d.id = $1");
                    let statement = client.prepare_cached(&sql).await?;
                    let Some(row) = client.query_opt(&statement, &[&id.0]).await? else {
                        return Ok(RequeueOutcome::NotFound);
                    };
                    let letter = Letter::from_row(&row, default_limit)?;
                    if let Some(requeued) = letter.requeued() {
                        return Ok(RequeueOutcome::Already(requeued));
                    }
                    if !letter.deliverable {
                        return Ok(RequeueOutcome::NotDeliverable(letter.subscription_id));
                    }
                    if let Some((requeued, _)) = insert(&client, &[&letter]).await?.pop() {
                        return Ok(RequeueOutcome::Created(requeued));
                    }
                }
                Err(DbError::Store(StoreError::Other("a requeued saga cannot be seen".to_owned())))
            })
            .await
    }

    async fn requeue_matching(&self, request: &RequeueRequest) -> StoreResult<RequeueTally> {
        let mut tally = RequeueTally::default();
        let mut after = 0;
        loop {
            let wanted = u64::from(request.limit).saturating_sub(tally.requeued);
            if wanted == 0 {
                return Ok(tally);
            }
            let letters =
                &self.pool.run(|client| async move { matching(&client, request, after).await }).await?;
            let Some(last) = letters.last() else { return Ok(tally) };
            after = last.id.0;

            // Up to the one that fills the limit; what comes after it was not considered.
            let mut chosen: Vec<&Letter> = Vec::new();
            for letter in letters {
                if u64::try_from(chosen.len()).is_ok_and(|chosen| chosen == wanted) {
                    break;
                }
                if letter.deliverable {
                    chosen.push(letter);
                } else {
                    tally.skipped += 1;
                }
            }
            if request.dry_run {
                tally.requeued += length(chosen.len());
            } else if !chosen.is_empty() {
                let chosen = &chosen;
                let sagas = self.pool.run(|client| async move { insert(&client, chosen).await }).await?;
                tally.requeued += length(sagas.len());
                tally.sagas.extend(sagas);
            }
            tally.matched = tally.requeued + tally.skipped;
        }
    }
}

fn length(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// The next letters, oldest first, that fit and are not requeued.
async fn matching(client: &Client, request: &RequeueRequest, after: i64) -> DbResult<Vec<Letter>> {
    let mut filter = Filter::new();
    filter.add("d.id > ", after);
    filter_letters(&mut filter, &request.filter);
    filter.add_fixed("successor.id IS NULL");
    let sql =
        format!("/* dead_letters.matching */{LETTER} {} ORDER BY d.id LIMIT {CHUNK}", filter.where_clause());
    let statement = client.prepare_cached(&sql).await?;
    let rows = client.query(&statement, &filter.parameters()).await?;
    rows.iter().map(|row| Letter::from_row(row, request.default_limit)).collect()
}

/// The conditions that the API's list and a requeue of many have in common. `d` are dead letters, `e` events.
pub(crate) fn filter_letters(filter: &mut Filter, wanted: &DeadLetterFilter) {
    filter.add_some("d.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("e.event_type = ", wanted.event_type.clone());
    filter.add_some("d.final_error_code = ", wanted.final_error_code.clone());
    filter.add_some("d.created_at >= ", wanted.created_after.map(Time));
    filter.add_some("d.created_at < ", wanted.created_before.map(Time));
}

struct Letter {
    id: DeadLetterId,
    event_id: EventId,
    subscription_id: SubscriptionId,
    deliverable: bool,
    correlation_id: String,
    successor: Option<SagaId>,
    /// What a requeue would create; the state machine's answer.
    next: (u32, Saga),
}

impl Letter {
    fn from_row(row: &Row, default_limit: u32) -> DbResult<Self> {
        let now = row.try_get::<_, Time>(0)?.0;
        let dead = Saga {
            status: parsed(row.try_get(5)?)?,
            attempt_count: natural(row.try_get(6)?),
            max_retry_limit: natural(row.try_get(7)?),
            next_attempt_at: row.try_get::<_, Time>(8)?.0,
            final_error_code: None,
        };
        let limit = row.try_get::<_, Option<i32>>(9)?.map_or(default_limit, natural);
        let next = requeue(&dead, natural(row.try_get(4)?), limit, now)
            .ok_or_else(|| DbError::unreadable("a dead letter whose saga is not dead"))?;
        Ok(Self {
            id: DeadLetterId(row.try_get(1)?),
            event_id: EventId(row.try_get(2)?),
            subscription_id: SubscriptionId(row.try_get(3)?),
            deliverable: row.try_get(10)?,
            correlation_id: row.try_get(11)?,
            successor: row.try_get::<_, Option<i64>>(12)?.map(SagaId),
            next,
        })
    }

    fn requeued(&self) -> Option<Requeued> {
        self.successor.map(|saga_id| Requeued { saga_id, generation: self.next.0 })
    }
}

/// Inserts the letters' next sagas; those that were not there yet, with their correlation ids.
async fn insert(client: &Client, letters: &[&Letter]) -> DbResult<Vec<(Requeued, String)>> {
    let column = |of: fn(&Letter) -> i64| letters.iter().map(|letter| of(letter)).collect::<Vec<i64>>();
    let narrow =
        |of: fn(&Letter) -> u32| letters.iter().map(|letter| integer(of(letter))).collect::<Vec<i32>>();
    let event_ids = column(|letter| letter.event_id.0);
    let subscription_ids = column(|letter| letter.subscription_id.0);
    let generations = narrow(|letter| letter.next.0);
    let statuses: Vec<&str> = letters.iter().map(|letter| letter.next.1.status.as_str()).collect();
    let attempt_counts = narrow(|letter| letter.next.1.attempt_count);
    let limits = narrow(|letter| letter.next.1.max_retry_limit);
    let next_attempts: Vec<Time> = letters.iter().map(|letter| Time(letter.next.1.next_attempt_at)).collect();

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
    let correlation_of: HashMap<(i64, i64), &str> = letters
        .iter()
        .map(|letter| ((letter.event_id.0, letter.subscription_id.0), letter.correlation_id.as_str()))
        .collect();
    rows.iter()
        .map(|row| {
            let requeued =
                Requeued { saga_id: SagaId(row.try_get(0)?), generation: natural(row.try_get(3)?) };
            let correlation_id = correlation_of.get(&(row.try_get(1)?, row.try_get(2)?)).copied();
            Ok((requeued, correlation_id.unwrap_or_default().to_owned()))
        })
        .collect()
}
