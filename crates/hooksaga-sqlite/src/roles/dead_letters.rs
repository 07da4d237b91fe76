//! `dead_letter_operator`: stores dead letters, and requeues them as new sagas.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, EventId, Saga, SagaId, SubscriptionId, requeue as next_saga};
use hooksaga_store::{
    Buried, DeadLetterFilter, DeadLetterStore, RequeueOutcome, RequeueRequest, RequeueTally, Requeued,
    StoreError, StoreResult,
};
use rusqlite::{OptionalExtension, Row, named_params};
use std::collections::HashMap;

/// A queued saga that is not seen dead is left where it is.
const TAKE_DEAD: &str = "/* dead_letter_operator: take_dead */
SELECT g.id, g.event_id, g.subscription_id, g.final_error_code, e.correlation_id
  FROM pending_dead_letters AS q
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = q.saga_id
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE +g.status = 'DeadLettered'
 ORDER BY q.saga_id LIMIT ?1";

const INSERT_LETTER: &str = "/* dead_letter_operator: insert_letter */
INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, created_at, payload)
SELECT ?1, id, ?3, ?4, ?5, payload FROM events WHERE id = ?2
ON CONFLICT DO NOTHING";

const LEAVE_QUEUE: &str = "/* dead_letter_operator: leave_queue */
DELETE FROM pending_dead_letters WHERE saga_id = ?1";

/// A letter's dead saga, the correlation id, and the saga that a requeue has made of it already.
const LETTER: &str = "/* dead_letter_operator: letter */
SELECT g.event_id, g.subscription_id, g.generation, g.status, g.attempt_count, g.max_retry_limit,
       g.next_attempt_at, g.final_error_code, e.correlation_id, n.id
  FROM dead_letters AS d
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = d.saga_id
 CROSS JOIN events AS e ON e.id = d.event_id
  LEFT JOIN webhook_delivery_sagas AS n
    ON n.event_id = g.event_id AND n.subscription_id = g.subscription_id AND n.generation = g.generation + 1
 WHERE d.id = ?1";

const SUBSCRIPTION: &str = "/* dead_letter_operator: subscription */
SELECT active AND verified, coalesce(max_retry_limit, ?2) FROM subscriptions WHERE id = ?1";

const INSERT_SAGA: &str = "/* dead_letter_operator: insert_saga */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
ON CONFLICT DO NOTHING";

/// Oldest first. One text for every filter: a search by an operator, read row by row until enough are
/// found.
const MATCHING: &str = "/* dead_letter_operator: matching */
SELECT d.id, d.subscription_id
  FROM dead_letters AS d
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = d.saga_id
 CROSS JOIN events AS e ON e.id = d.event_id
 WHERE (:subscription_id IS NULL OR d.subscription_id = :subscription_id)
   AND (:final_error_code IS NULL OR d.final_error_code = :final_error_code)
   AND (:created_after IS NULL OR d.created_at >= :created_after)
   AND (:created_before IS NULL OR d.created_at < :created_before)
   AND (:event_type IS NULL OR e.event_type = :event_type)
   AND NOT EXISTS (SELECT 1 FROM webhook_delivery_sagas AS n
                    WHERE n.event_id = g.event_id AND n.subscription_id = g.subscription_id
                      AND n.generation = g.generation + 1)
 ORDER BY d.id";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[TAKE_DEAD, INSERT_LETTER, LEAVE_QUEUE];

pub(crate) struct DeadLetters(pub(crate) RoleHandle);

#[async_trait]
impl DeadLetterStore for DeadLetters {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.0.write(move |tx| bury(tx, limit)).await
    }

    async fn requeue(&self, id: DeadLetterId, default_limit: u32) -> StoreResult<RequeueOutcome> {
        self.0
            .write(move |tx| {
                Ok(requeue(tx, id, &mut Subscriptions::new(default_limit))?
                    .map_or(RequeueOutcome::NotFound, |(outcome, _)| outcome))
            })
            .await
    }

    /// Looks for the letters on a reading connection, so that a long search does not hold up the writer;
    /// each requeue then decides anew.
    async fn requeue_matching(&self, request: &RequeueRequest) -> StoreResult<RequeueTally> {
        let RequeueRequest { filter, limit, dry_run, default_limit } = request.clone();
        let found = self.0.read(move |tx| matching(tx, &filter, limit, default_limit)).await?;
        if dry_run || found.letters.is_empty() {
            let requeued = found.letters.len() as u64;
            let skipped = found.skipped;
            return Ok(RequeueTally { matched: requeued + skipped, requeued, skipped, sagas: Vec::new() });
        }
        self.0.write(move |tx| requeue_all(tx, &found, default_limit)).await
    }
}

fn bury(tx: &Tx<'_>, limit: u32) -> DbResult<Vec<Buried>> {
    let mut dead = rows::all(tx, TAKE_DEAD, [limit], |row| {
        Ok(Buried {
            dead_letter_id: None,
            saga_id: SagaId(row.get(0)?),
            event_id: EventId(row.get(1)?),
            subscription_id: SubscriptionId(row.get(2)?),
            final_error_code: rows::error_code(row, 3)?,
            correlation_id: row.get(4)?,
        })
    })?;
    let mut insert = tx.prepare(INSERT_LETTER)?;
    let mut leave = tx.prepare(LEAVE_QUEUE)?;
    for letter in &mut dead {
        let inserted = insert.execute((
            letter.saga_id.0,
            letter.event_id.0,
            letter.subscription_id.0,
            letter.final_error_code.as_str(),
            tx.now.as_micros(),
        ))?;
        letter.dead_letter_id = (inserted > 0).then(|| DeadLetterId(tx.last_id()));
        leave.execute([letter.saga_id.0])?;
    }
    Ok(dead)
}

/// Whether subscriptions can be delivered to and with which limit, each read once per transaction.
struct Subscriptions {
    default_limit: u32,
    known: HashMap<SubscriptionId, Option<u32>>,
}

impl Subscriptions {
    fn new(default_limit: u32) -> Self {
        Self { default_limit, known: HashMap::new() }
    }

    /// The limit of a new saga; nothing if the subscription is not active and verified.
    fn limit(&mut self, tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<u32>> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let found = tx
            .prepare(SUBSCRIPTION)?
            .query_row((id.0, self.default_limit), |row| Ok((row.get::<_, bool>(0)?, row.get(1)?)))
            .optional()?;
        let limit = found.and_then(|(deliverable, limit)| deliverable.then_some(limit));
        self.known.insert(id, limit);
        Ok(limit)
    }
}

/// A letter's dead saga and what is around it.
struct Letter {
    event_id: EventId,
    subscription_id: SubscriptionId,
    generation: u32,
    dead: Saga,
    correlation_id: String,
    successor: Option<SagaId>,
}

fn letter(row: &Row<'_>) -> rusqlite::Result<Letter> {
    Ok(Letter {
        event_id: EventId(row.get(0)?),
        subscription_id: SubscriptionId(row.get(1)?),
        generation: row.get(2)?,
        dead: Saga {
            status: rows::parsed(row, 3)?,
            attempt_count: row.get(4)?,
            max_retry_limit: row.get(5)?,
            next_attempt_at: rows::time(row, 6)?,
            final_error_code: rows::optional_error_code(row, 7)?,
        },
        correlation_id: row.get(8)?,
        successor: row.get::<_, Option<i64>>(9)?.map(SagaId),
    })
}

/// Requeues one letter; its correlation id with the outcome. Nothing if there is no such letter.
fn requeue(
    tx: &Tx<'_>,
    id: DeadLetterId,
    subscriptions: &mut Subscriptions,
) -> DbResult<Option<(RequeueOutcome, String)>> {
    let Some(letter) = tx.prepare(LETTER)?.query_row([id.0], letter).optional()? else {
        return Ok(None);
    };
    let outcome = if let Some(saga_id) = letter.successor {
        RequeueOutcome::Already(Requeued { saga_id, generation: letter.generation + 1 })
    } else if let Some(limit) = subscriptions.limit(tx, letter.subscription_id)? {
        // A letter is only ever written for a dead saga, and that stays dead.
        let Some((generation, saga)) = next_saga(&letter.dead, letter.generation, limit, tx.now) else {
            return Ok(None);
        };
        let inserted = tx.execute(
            INSERT_SAGA,
            (
                letter.event_id.0,
                letter.subscription_id.0,
                generation,
                saga.status.as_str(),
                saga.attempt_count,
                saga.max_retry_limit,
                saga.next_attempt_at.as_micros(),
                tx.now.as_micros(),
            ),
        )?;
        if inserted == 0 {
            return Err(StoreError::Other("a requeued saga cannot be seen".to_owned()).into());
        }
        RequeueOutcome::Created(Requeued { saga_id: SagaId(tx.last_id()), generation })
    } else {
        RequeueOutcome::NotDeliverable(letter.subscription_id)
    };
    Ok(Some((outcome, letter.correlation_id)))
}

/// Letters that fit a filter and are not requeued yet.
struct Matching {
    letters: Vec<DeadLetterId>,
    /// Passed over: their subscriptions are not active and verified.
    skipped: u64,
}

fn matching(tx: &Tx<'_>, filter: &DeadLetterFilter, limit: u32, default_limit: u32) -> DbResult<Matching> {
    let mut subscriptions = Subscriptions::new(default_limit);
    let mut found = Matching { letters: Vec::new(), skipped: 0 };
    let mut statement = tx.prepare(MATCHING)?;
    let mut letters = statement.query(named_params! {
        ":subscription_id": filter.subscription_id.map(|id| id.0),
        ":final_error_code": filter.final_error_code,
        ":created_after": filter.created_after.map(hooksaga_saga::Timestamp::as_micros),
        ":created_before": filter.created_before.map(hooksaga_saga::Timestamp::as_micros),
        ":event_type": filter.event_type,
    })?;
    while found.letters.len() < limit as usize {
        let Some(row) = letters.next()? else { break };
        match subscriptions.limit(tx, SubscriptionId(row.get(1)?))? {
            Some(_) => found.letters.push(DeadLetterId(row.get(0)?)),
            None => found.skipped += 1,
        }
    }
    Ok(found)
}

fn requeue_all(tx: &Tx<'_>, found: &Matching, default_limit: u32) -> DbResult<RequeueTally> {
    let mut subscriptions = Subscriptions::new(default_limit);
    let mut tally = RequeueTally { skipped: found.skipped, ..RequeueTally::default() };
    for id in &found.letters {
        match requeue(tx, *id, &mut subscriptions)? {
            Some((RequeueOutcome::Created(saga), correlation_id)) => tally.sagas.push((saga, correlation_id)),
            Some((RequeueOutcome::NotDeliverable(_), _)) => tally.skipped += 1,
            // Somebody else has requeued it since the search: it does not match any more.
            Some((RequeueOutcome::Already(_) | RequeueOutcome::NotFound, _)) | None => {}
        }
    }
    tally.requeued = tally.sagas.len() as u64;
    tally.matched = tally.requeued + tally.skipped;
    Ok(tally)
}
