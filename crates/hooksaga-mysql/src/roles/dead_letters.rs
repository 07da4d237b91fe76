//! `dead_letter_operator`: stores dead letters, and requeues them as new sagas.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::{Batch, Field, list},
        filter::Filter,
        rows::{expect_rows, natural, parsed, rows, take},
    },
    time::Time,
};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, Saga, SagaId, SubscriptionId, requeue};
use hooksaga_store::{
    Buried, DeadLetterFilter, DeadLetterStore, RequeueOutcome, RequeueRequest, RequeueTally, Requeued,
    StoreError, StoreResult,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::collections::HashMap;

/// Before a transaction is begun: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* dead_letters.peek */ SELECT EXISTS (SELECT 1 FROM pending_dead_letters)";

pub(crate) const LOCK: &str = "/* dead_letters.lock */
SELECT saga_id FROM pending_dead_letters ORDER BY saga_id LIMIT ? FOR UPDATE SKIP LOCKED";

/// After the queue's rows are locked: what is seen queued is also seen dead. A queued saga that is not dead has no line
/// here, and stays queued.
pub(crate) const DEAD: &str = "/* dead_letters.dead */
SELECT s.id, s.event_id, s.subscription_id, COALESCE(s.final_error_code, 'INTERNAL'), e.correlation_id, d.id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
LEFT JOIN dead_letters d FORCE INDEX (uniq_dead_letter_saga) ON d.saga_id = s.id
WHERE s.status = 'DeadLettered'";

/// The payload goes from table to table, not through this process.
pub(crate) const BURY: &str = "/* dead_letters.bury */
INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at)
SELECT s.id, s.event_id, s.subscription_id, COALESCE(s.final_error_code, 'INTERNAL'), e.payload, UTC_TIMESTAMP(6)
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";

pub(crate) const FORGET: &str = "/* dead_letters.forget */ DELETE FROM pending_dead_letters";

/// What a requeue needs to know of a letter; `successor` is the saga that an earlier requeue made.
const LETTER: &str = "
SELECT UTC_TIMESTAMP(6), d.id, d.event_id, d.subscription_id, s.generation, s.status, s.attempt_count,
       s.max_retry_limit, s.next_attempt_at, sub.max_retry_limit, COALESCE(sub.active AND sub.verified, FALSE),
       e.correlation_id, successor.id
FROM dead_letters d
JOIN webhook_delivery_sagas s ON s.id = d.saga_id
JOIN events e ON e.id = d.event_id
LEFT JOIN subscriptions sub ON sub.id = d.subscription_id
LEFT JOIN webhook_delivery_sagas successor
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1";

/// Twice is once: the unique key (event, subscription, generation) lets one of them in. A plain insert: letters with a
/// successor were left out before, and one that gets it in between fails the whole, to be looked at again.
const REQUEUE: &str = "/* dead_letters.requeue */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT u.event_id, u.subscription_id, u.generation, CONVERT(UNHEX(u.status) USING ascii), u.attempt_count,
       u.max_retry_limit, u.next_attempt_at, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', generation INT PATH '$[2]',
    status VARCHAR(40) PATH '$[3]', attempt_count INT PATH '$[4]', max_retry_limit INT PATH '$[5]',
    next_attempt_at DATETIME(6) PATH '$[6]')) AS u";

const REQUEUED: &str = "/* dead_letters.requeued */
SELECT s.id, s.event_id, s.subscription_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', generation INT PATH '$[2]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription)
    ON s.event_id = u.event_id AND s.subscription_id = u.subscription_id AND s.generation = u.generation";

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
        self.pool.run_inserting(|connection| bury(connection, limit)).await
    }

    async fn requeue(&self, id: DeadLetterId, default_limit: u32) -> StoreResult<RequeueOutcome> {
        self.pool
            .run_inserting(|mut connection| async move {
                let sql = format!("/* dead_letters.letter */{LETTER} WHERE d.id = ?");
                let row: Option<Row> = connection.exec_first(sql, (id.0,)).await?;
                let Some(row) = row else { return Ok(RequeueOutcome::NotFound) };
                let letter = Letter::from_row(row, default_limit)?;
                if let Some(requeued) = letter.requeued() {
                    return Ok(RequeueOutcome::Already(requeued));
                }
                if !letter.deliverable {
                    return Ok(RequeueOutcome::NotDeliverable(letter.subscription_id));
                }
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let made = insert(&mut transaction, &[&letter]).await?.pop();
                transaction.commit().await?;
                let unseen =
                    || DbError::Store(StoreError::Other("a requeued saga cannot be seen".to_owned()));
                Ok(RequeueOutcome::Created(made.ok_or_else(unseen)?.0))
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
            let go = self
                .pool
                .run_inserting(|connection| requeue_some(connection, request, after, wanted))
                .await?;
            let Some(last) = go.last else { return Ok(tally) };
            after = last;
            tally.skipped += go.skipped;
            tally.requeued += go.requeued;
            tally.sagas.extend(go.sagas);
            tally.matched = tally.requeued + tally.skipped;
        }
    }
}

async fn bury(mut connection: Conn, limit: u32) -> DbResult<Vec<Buried>> {
    if connection.exec_first(PEEK, ()).await? == Some(false) {
        return Ok(Vec::new());
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let queued: Vec<i64> = transaction.exec(LOCK, (limit,)).await?;
    if queued.is_empty() {
        transaction.rollback().await?;
        return Ok(Vec::new());
    }
    let dead = dead(&mut transaction, &queued).await?;
    let new: Vec<i64> =
        dead.iter().filter(|(_, letter)| letter.is_none()).map(|(entry, _)| entry.saga_id.0).collect();
    let mut stored = 0;
    for document in Batch::of(&new, |id| [Field::Int(*id)]) {
        transaction.exec_drop(BURY, (document,)).await?;
        stored += transaction.affected_rows();
    }
    expect_rows("burying", rows(new.len()), stored)?;
    let mut letters: HashMap<SagaId, DeadLetterId> = HashMap::with_capacity(new.len());
    for (entry, letter) in self::dead(&mut transaction, &new).await? {
        letters.extend(letter.map(|letter| (entry.saga_id, letter)));
    }
    let seen = list(dead.iter().map(|(entry, _)| entry.saga_id.0));
    transaction.query_drop(format!("{FORGET} WHERE saga_id IN ({seen})")).await?;
    transaction.commit().await?;
    let buried = dead.into_iter().map(|(entry, _)| {
        let dead_letter_id = letters.get(&entry.saga_id).copied();
        Buried { dead_letter_id, ..entry }
    });
    Ok(buried.collect())
}

/// Dead sagas, each with its letter if there is one.
async fn dead(
    transaction: &mut Transaction<'_>,
    ids: &[i64],
) -> DbResult<Vec<(Buried, Option<DeadLetterId>)>> {
    let mut dead = Vec::with_capacity(ids.len());
    for document in Batch::of(ids, |id| [Field::Int(*id)]) {
        let read: Vec<Row> = transaction.exec(DEAD, (document,)).await?;
        for mut row in read {
            let row = &mut row;
            let entry = Buried {
                dead_letter_id: None,
                saga_id: SagaId(take(row, 0)?),
                event_id: EventId(take(row, 1)?),
                subscription_id: SubscriptionId(take(row, 2)?),
                final_error_code: ErrorCode::from_stored(take(row, 3)?),
                correlation_id: take(row, 4)?,
            };
            dead.push((entry, take::<Option<i64>>(row, 5)?.map(DeadLetterId)));
        }
    }
    Ok(dead)
}

/// One go of a requeue of many.
struct Go {
    /// The last letter that was looked at; nothing if there is none left.
    last: Option<i64>,
    requeued: u64,
    skipped: u64,
    sagas: Vec<(Requeued, String)>,
}

async fn requeue_some(
    mut connection: Conn,
    request: &RequeueRequest,
    after: i64,
    wanted: u64,
) -> DbResult<Go> {
    let letters = matching(&mut connection, request, after).await?;
    // Up to the one that fills the limit; what comes after it was not considered.
    let mut chosen: Vec<&Letter> = Vec::new();
    let mut skipped = 0;
    for letter in &letters {
        if rows(chosen.len()) == wanted {
            break;
        }
        if letter.deliverable {
            chosen.push(letter);
        } else {
            skipped += 1;
        }
    }
    let mut sagas = Vec::new();
    if !request.dry_run && !chosen.is_empty() {
        let mut transaction = connection.start_transaction(TxOpts::default()).await?;
        sagas = insert(&mut transaction, &chosen).await?;
        transaction.commit().await?;
    }
    Ok(Go { last: letters.last().map(|letter| letter.id.0), requeued: rows(chosen.len()), skipped, sagas })
}

/// The next letters, oldest first, that fit and are not requeued.
async fn matching(connection: &mut Conn, request: &RequeueRequest, after: i64) -> DbResult<Vec<Letter>> {
    let mut filter = Filter::new();
    filter.add("d.id > ", after);
    filter_letters(&mut filter, &request.filter);
    filter.add_fixed("successor.id IS NULL");
    let sql =
        format!("/* dead_letters.matching */{LETTER} {} ORDER BY d.id LIMIT {CHUNK}", filter.where_clause());
    let read: Vec<Row> = connection.exec(sql, filter.parameters()).await?;
    read.into_iter().map(|row| Letter::from_row(row, request.default_limit)).collect()
}

/// The conditions that the API's list and a requeue of many have in common. `d` are dead letters, `e` events.
pub(crate) fn filter_letters(filter: &mut Filter, wanted: &DeadLetterFilter) {
    filter.add_some("d.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("e.event_type = ", wanted.event_type.as_deref());
    filter.add_some("d.final_error_code = ", wanted.final_error_code.as_deref());
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
    fn from_row(mut row: Row, default_limit: u32) -> DbResult<Self> {
        let row = &mut row;
        let now = take::<Time>(row, 0)?.0;
        let dead = Saga {
            status: parsed(&take::<String>(row, 5)?)?,
            attempt_count: natural(take(row, 6)?),
            max_retry_limit: natural(take(row, 7)?),
            next_attempt_at: take::<Time>(row, 8)?.0,
            final_error_code: None,
        };
        let limit = take::<Option<i64>>(row, 9)?.map_or(default_limit, natural);
        let next = requeue(&dead, natural(take(row, 4)?), limit, now)
            .ok_or_else(|| DbError::unreadable("a dead letter whose saga is not dead"))?;
        Ok(Self {
            id: DeadLetterId(take(row, 1)?),
            event_id: EventId(take(row, 2)?),
            subscription_id: SubscriptionId(take(row, 3)?),
            deliverable: take(row, 10)?,
            correlation_id: take(row, 11)?,
            successor: take::<Option<i64>>(row, 12)?.map(SagaId),
            next,
        })
    }

    fn requeued(&self) -> Option<Requeued> {
        self.successor.map(|saga_id| Requeued { saga_id, generation: self.next.0 })
    }

    fn key(&self) -> (i64, i64, u32) {
        (self.event_id.0, self.subscription_id.0, self.next.0)
    }
}

/// Inserts the letters' next sagas, in the order of their keys; with their correlation ids.
async fn insert(transaction: &mut Transaction<'_>, letters: &[&Letter]) -> DbResult<Vec<(Requeued, String)>> {
    let mut sorted = letters.to_vec();
    sorted.sort_unstable_by_key(|letter| letter.key());
    let letter_of: HashMap<(i64, i64), &Letter> =
        letters.iter().map(|letter| ((letter.event_id.0, letter.subscription_id.0), *letter)).collect();
    let mut made = Vec::with_capacity(letters.len());
    for document in Batch::of(sorted, |letter| {
        let (event, subscription, generation) = letter.key();
        let saga = &letter.next.1;
        [
            Field::Int(event),
            Field::Int(subscription),
            Field::Int(generation.into()),
            Field::Text(saga.status.as_str()),
            Field::Int(saga.attempt_count.into()),
            Field::Int(saga.max_retry_limit.into()),
            Field::At(saga.next_attempt_at),
        ]
    }) {
        transaction.exec_drop(REQUEUE, (document.as_str(),)).await?;
        let sagas: Vec<(i64, i64, i64)> = transaction.exec(REQUEUED, (document,)).await?;
        for (saga, event, subscription) in sagas {
            if let Some(letter) = letter_of.get(&(event, subscription)) {
                let requeued = Requeued { saga_id: SagaId(saga), generation: letter.next.0 };
                made.push((requeued, letter.correlation_id.clone()));
            }
        }
    }
    Ok(made)
}
