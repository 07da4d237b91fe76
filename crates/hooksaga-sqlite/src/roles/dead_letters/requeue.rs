//! Sends again what has ended, one delivery or many, as new sagas.

use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{DeadLetterId, EventId, EventType, Saga, SagaId, SubscriptionId, Timestamp, send_again};
use hooksaga_store::{
    DeadLetterFilter, EndedDelivery, RequeueStep, Requeued, RequeuedBatch, RequeuedSaga, ResendOutcome,
    SendAgain, SendTest, StoreError, TenantScope, TestOutcome, Trace,
};
use rusqlite::{OptionalExtension, Row, named_params};
use std::collections::HashMap;

/// Whether the janitor has begun to remove the event `e`: then nothing of it is sent again.
macro_rules! is_going {
    () => {
        "EXISTS (SELECT 1 FROM removals AS r WHERE r.kind = 'event' AND r.subject_id = e.id)"
    };
}
pub(crate) use is_going;

/// A saga, its tenant and correlation id, and the saga that it was sent again as. Of an event that is going nothing is
/// found.
macro_rules! saga {
    ($name:literal, $from:literal, $id:literal) => {
        concat!(
            "/* dead_letters.",
            $name,
            " */
SELECT g.event_id, g.subscription_id, g.generation, g.status, g.attempt_count, g.max_retry_limit,
       g.next_attempt_at, g.final_error_code, e.tenant, e.correlation_id, n.id
  FROM ",
            $from,
            "
 CROSS JOIN events AS e ON e.id = g.event_id
  LEFT JOIN webhook_delivery_sagas AS n
    ON n.event_id = g.event_id AND n.subscription_id = g.subscription_id AND n.generation = g.generation + 1
 WHERE ",
            $id,
            " = ?1 AND (?2 IS NULL OR e.tenant = ?2) AND NOT ",
            is_going!()
        )
    };
}

const OF_LETTER: &str = saga!(
    "saga_of_letter",
    "dead_letters AS d CROSS JOIN webhook_delivery_sagas AS g ON g.id = d.saga_id",
    "d.id"
);
const SAGA: &str = saga!("saga", "webhook_delivery_sagas AS g", "g.id");

const SUBSCRIPTION: &str = "/* dead_letters.subscription */
SELECT active AND verified, coalesce(max_retry_limit, ?2) FROM subscriptions WHERE id = ?1";

/// Whether the event and the subscription are one tenant's, and the delivery that there is.
const TEST: &str = "/* dead_letters.test */
SELECT g.id FROM subscriptions AS s
 CROSS JOIN events AS e ON e.id = ?1 AND e.tenant = s.tenant
  LEFT JOIN webhook_delivery_sagas AS g ON g.event_id = e.id AND g.subscription_id = s.id AND g.generation = 0
 WHERE s.id = ?2 AND (?3 IS NULL OR s.tenant = ?3) AND s.deleted_at IS NULL";

/// An event that has gone meanwhile, or is going, gets no saga.
pub(crate) const INSERT_SAGA: &str = concat!(
    "/* dead_letters.insert_saga */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT e.id, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8 FROM events AS e WHERE e.id = ?1 AND NOT ",
    is_going!(),
    "
ON CONFLICT DO NOTHING"
);

/// The letters of one step, oldest first. For each: does it match the filter apart from the error code, was it
/// requeued, and its code. The filter is not in the WHERE, because letters that do not match count against the limit,
/// too.
macro_rules! scan {
    ($name:literal, $letters:literal, $of:literal) => {
        concat!(
            "/* dead_letters.",
            $name,
            " */
SELECT d.id, d.subscription_id,
       (:tenant IS NULL OR e.tenant = :tenant)
       AND (:created_after IS NULL OR d.created_at >= :created_after)
       AND (:created_before IS NULL OR d.created_at < :created_before)
       AND (:event_type IS NULL OR e.event_type = :event_type) AND NOT ",
            is_going!(),
            ",
       EXISTS (SELECT 1 FROM webhook_delivery_sagas AS n
                        WHERE n.event_id = g.event_id AND n.subscription_id = g.subscription_id
                          AND n.generation = g.generation + 1),
       d.final_error_code
  FROM ",
            $letters,
            "
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = d.saga_id
 CROSS JOIN events AS e ON e.id = d.event_id
 WHERE ",
            $of,
            " LIMIT :limit"
        )
    };
}

/// All have the same parameters.
pub(crate) const SCAN: &str =
    scan!("scan", "dead_letters AS d", "d.id > :after AND :subscription_id IS NULL ORDER BY d.id");
pub(crate) const SCAN_OF_SUBSCRIPTION: &str = scan!(
    "scan_of_subscription",
    "dead_letters AS d INDEXED BY idx_dead_letter_subscription",
    "d.id > :after AND d.subscription_id = :subscription_id ORDER BY d.id"
);
pub(crate) const SCAN_OF_TENANT: &str = scan!(
    "scan_of_tenant",
    "letter_heads AS h INDEXED BY idx_head_tenant CROSS JOIN dead_letters AS d ON d.id = h.letter_id",
    "h.letter_id > :after AND h.tenant = :tenant AND :subscription_id IS NULL ORDER BY h.letter_id"
);

/// Whether subscriptions can be delivered to and with which limit, each read once per transaction.
pub(crate) struct SubscriptionLimits {
    default_limit: u32,
    known: HashMap<SubscriptionId, Option<u32>>,
}

impl SubscriptionLimits {
    pub(crate) fn new(default_limit: u32) -> Self {
        Self { default_limit, known: HashMap::new() }
    }

    /// The limit of a new saga; `None` if the subscription is not active and verified.
    pub(crate) fn limit(&mut self, tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<u32>> {
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

/// A saga and what is around it.
struct FinishedSaga {
    event_id: EventId,
    subscription_id: SubscriptionId,
    generation: u32,
    saga: Saga,
    trace: Trace,
    successor: Option<SagaId>,
}

fn found(row: &Row<'_>) -> rusqlite::Result<FinishedSaga> {
    Ok(FinishedSaga {
        event_id: EventId(row.get(0)?),
        subscription_id: SubscriptionId(row.get(1)?),
        generation: row.get(2)?,
        saga: Saga {
            status: rows::parsed(row, 3)?,
            attempt_count: row.get(4)?,
            max_retry_limit: row.get(5)?,
            next_attempt_at: rows::time(row, 6)?,
            final_error_code: rows::optional_error_code(row, 7)?,
        },
        trace: rows::trace(row, 8)?,
        successor: row.get::<_, Option<i64>>(10)?.map(SagaId),
    })
}

/// Sends one delivery again, if it has ended.
pub(super) fn one(tx: &Tx<'_>, scope: &TenantScope, wanted: SendAgain) -> DbResult<ResendOutcome> {
    let (sql, id) = match wanted.ended {
        EndedDelivery::Letter(id) => (OF_LETTER, id.0),
        EndedDelivery::Saga(id) => (SAGA, id.0),
    };
    let Some(found) = tx.prepare(sql)?.query_row((id, scope.tenant()), found).optional()? else {
        return Ok(ResendOutcome::NotFound);
    };
    send(tx, found, &mut SubscriptionLimits::new(wanted.default_limit))
}

/// Makes the saga that follows this one, if it may.
fn send(tx: &Tx<'_>, found: FinishedSaga, subscriptions: &mut SubscriptionLimits) -> DbResult<ResendOutcome> {
    if let Some(saga_id) = found.successor {
        return Ok(ResendOutcome::Already(Requeued { saga_id, generation: found.generation + 1 }));
    }
    if !found.saga.status.is_final() {
        return Ok(ResendOutcome::Open);
    }
    let Some(limit) = subscriptions.limit(tx, found.subscription_id)? else {
        return Ok(ResendOutcome::NotDeliverable(found.subscription_id));
    };
    let Some((generation, saga)) = send_again(&found.saga, found.generation, limit, tx.now) else {
        return Ok(ResendOutcome::Open);
    };
    if !insert_saga(tx, found.event_id, found.subscription_id, generation, &saga)? {
        return Err(StoreError::Other("a requeued saga cannot be seen".to_owned()).into());
    }
    let saga_id = SagaId(tx.last_id());
    Ok(ResendOutcome::Created(Requeued { saga_id, generation }, found.trace))
}

pub(super) fn test(tx: &Tx<'_>, scope: &TenantScope, wanted: SendTest) -> DbResult<TestOutcome> {
    let SendTest { event_id: event, subscription_id: subscription, default_limit } = wanted;
    let found = tx
        .prepare(TEST)?
        .query_row((event.0, subscription.0, scope.tenant()), |row| row.get::<_, Option<i64>>(0))
        .optional()?;
    match found {
        None => return Ok(TestOutcome::NotFound),
        Some(Some(saga)) => return Ok(TestOutcome::Delivery(SagaId(saga))),
        Some(None) => {}
    }
    let Some(limit) = SubscriptionLimits::new(default_limit).limit(tx, subscription)? else {
        return Ok(TestOutcome::NotDeliverable);
    };
    insert_saga(tx, event, subscription, 0, &Saga::new(limit, tx.now))?;
    Ok(TestOutcome::Delivery(SagaId(tx.last_id())))
}

/// False if there is one already.
fn insert_saga(
    tx: &Tx<'_>,
    event: EventId,
    subscription: SubscriptionId,
    generation: u32,
    saga: &Saga,
) -> DbResult<bool> {
    let inserted = tx.execute(
        INSERT_SAGA,
        (
            event.0,
            subscription.0,
            generation,
            saga.status.as_str(),
            saga.attempt_count,
            saga.max_retry_limit,
            saga.next_attempt_at.as_micros(),
            tx.now.as_micros(),
        ),
    )?;
    Ok(inserted > 0)
}

/// A letter that a step examines.
pub(crate) struct ScannedLetter {
    pub(crate) id: DeadLetterId,
    pub(crate) subscription_id: SubscriptionId,
    /// It is what was asked for.
    pub(crate) matches: bool,
    /// It was requeued before.
    pub(crate) requeued: bool,
}

/// What a step is to do.
pub(super) struct PlannedRequeue {
    /// To be requeued.
    pub(super) letters: Vec<DeadLetterId>,
    /// As it would be if nothing came in between.
    pub(super) batch: RequeuedBatch,
}

/// Looks at the next letters and chooses those that match, until one of the step's bounds is reached.
pub(super) fn plan(tx: &Tx<'_>, scope: &TenantScope, step: &RequeueStep) -> DbResult<PlannedRequeue> {
    let examine = step.examine.max(1);
    let seen = scan_letters(tx, scope, &step.filter, step.after, examine)?;
    let mut subscriptions = SubscriptionLimits::new(step.default_limit);
    let mut plan = PlannedRequeue { letters: Vec::new(), batch: RequeuedBatch::default() };
    let mut last = None;
    let mut looked_at = 0;
    for letter in seen.iter().take(examine as usize) {
        if plan.letters.len() >= step.requeue.max(1) as usize {
            break;
        }
        looked_at += 1;
        last = Some(letter.id);
        if !letter.matches || letter.requeued {
            continue;
        }
        match subscriptions.limit(tx, letter.subscription_id)? {
            Some(_) => plan.letters.push(letter.id),
            None => plan.batch.skipped += 1,
        }
    }
    plan.batch.requeued = u64::try_from(plan.letters.len()).unwrap_or(u64::MAX);
    plan.batch.resume_after = last.filter(|_| looked_at < seen.len());
    Ok(plan)
}

/// Requeues what was chosen; each as if it were alone, since much can have happened in between.
pub(super) fn carry_out(
    tx: &Tx<'_>,
    scope: &TenantScope,
    plan: PlannedRequeue,
    default_limit: u32,
) -> DbResult<RequeuedBatch> {
    let mut batch = RequeuedBatch { requeued: 0, ..plan.batch };
    let again = requeue_all(tx, scope, &plan.letters, &mut SubscriptionLimits::new(default_limit))?;
    batch.requeued = u64::try_from(again.sagas.len()).unwrap_or(u64::MAX);
    batch.skipped += again.skipped;
    batch.sagas = again.sagas;
    Ok(batch)
}

/// What became of several letters.
#[derive(Default)]
pub(crate) struct RequeuedLetters {
    pub(crate) sagas: Vec<RequeuedSaga>,
    /// The subscription is not active and verified.
    pub(crate) skipped: u64,
}

/// Requeues these letters.
pub(crate) fn requeue_all(
    tx: &Tx<'_>,
    scope: &TenantScope,
    letters: &[DeadLetterId],
    subscriptions: &mut SubscriptionLimits,
) -> DbResult<RequeuedLetters> {
    let mut all = RequeuedLetters::default();
    for letter in letters {
        let Some(found) = tx.prepare(OF_LETTER)?.query_row((letter.0, scope.tenant()), found).optional()?
        else {
            continue;
        };
        let subscription_id = found.subscription_id;
        match send(tx, found, subscriptions)? {
            ResendOutcome::Created(requeued, trace) => {
                all.sagas.push(RequeuedSaga { requeued, subscription_id, trace });
            }
            ResendOutcome::NotDeliverable(_) => all.skipped += 1,
            _ => {}
        }
    }
    Ok(all)
}

/// The letters that a step may look at, and one more, which shows that there are more.
pub(crate) fn scan_letters(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: &DeadLetterFilter,
    after: Option<DeadLetterId>,
    examine: u32,
) -> DbResult<Vec<ScannedLetter>> {
    let sql = match scope {
        _ if filter.subscription_id.is_some() => SCAN_OF_SUBSCRIPTION,
        TenantScope::One(_) => SCAN_OF_TENANT,
        TenantScope::All => SCAN,
    };
    let params = named_params! {
        ":tenant": scope.tenant(),
        ":after": after.map_or(0, |after| after.0),
        ":limit": i64::from(examine) + 1,
        ":subscription_id": filter.subscription_id.map(|id| id.0),
        ":created_after": filter.created_after.map(Timestamp::as_micros),
        ":created_before": filter.created_before.map(Timestamp::as_micros),
        ":event_type": filter.event_type.as_ref().map(EventType::as_str),
    };
    rows::all(tx, sql, params, |row| {
        let code = rows::error_code(row, 4)?;
        Ok(ScannedLetter {
            id: DeadLetterId(row.get(0)?),
            subscription_id: SubscriptionId(row.get(1)?),
            matches: row.get(2)? && scope.matches_code(filter.final_error_code.as_ref(), &code),
            requeued: row.get(3)?,
        })
    })
}
