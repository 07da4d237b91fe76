//! Sends deliveries again: a new saga, of the next generation, for the event and subscription of a saga that has ended.

use crate::{
    error::{DbError, DbResult},
    roles::rows::{bigint, integer, natural, parsed, trace},
    time::SqlTime,
};
use deadpool_postgres::{Client, GenericClient, Transaction};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, Saga, SagaId, SubscriptionId};
use hooksaga_store::{
    DeadLetterFilter, Ended, EndedDelivery, FoundSaga, LetterWindow, NextSaga, RequeueStep, RequeuedBatch,
    RequeuedSaga, ResendOutcome, SendAgain, SendTest, StoreError, TenantScope, TestOutcome,
};
use tokio_postgres::{Row, types::ToSql};

/// Whether the janitor has begun to remove the event `e`: then nothing of it is sent again.
macro_rules! is_going {
    () => {
        "EXISTS (SELECT FROM removals r WHERE r.kind = 'event' AND r.subject_id = e.id OFFSET 0)"
    };
}
pub(crate) use is_going;

/// The columns that decide whether a saga can be sent again; `successor` is the saga that it was sent again as. It cannot be
/// delivered if the janitor has begun to remove its event.
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
macro_rules! letter {
    () => {
        saga!(
            ", d.id, e.event_type, d.final_error_code, d.created_at",
            "dead_letters d JOIN webhook_delivery_sagas s ON s.id = d.saga_id"
        )
    };
}

const LETTER: &str = letter!();

/// The letters with the ids that a scan of one index finds, oldest first.
macro_rules! letters {
    ($name:literal, $ids:literal) => {
        concat!("/* ", $name, " */", letter!(), " WHERE d.id = ANY (ARRAY(", $ids, ")) ORDER BY d.id")
    };
}

/// The next letters of everybody.
pub(crate) const EXAMINE: &str =
    letters!("dead_letters.examine", "SELECT id FROM dead_letters WHERE id > $1 ORDER BY id LIMIT $2");

/// The next letters of one subscription. A range of its index, not an equality: where one subscription has most letters, a
/// plan for an equality goes by the primary key, and stays when others have some.
pub(crate) const EXAMINE_OF_SUBSCRIPTION: &str = letters!(
    "dead_letters.examine_of_subscription",
    "SELECT id FROM dead_letters
     WHERE (subscription_id, id) > ($3, $1) AND (subscription_id, id) <= ($3, 9223372036854775807)
     ORDER BY subscription_id, id LIMIT $2"
);

/// The next letters of one tenant, in the same way, however many subscriptions it has.
pub(crate) const EXAMINE_OF_TENANT: &str = letters!(
    "dead_letters.examine_of_tenant",
    "SELECT letter_id FROM letter_heads
     WHERE (tenant, letter_id) > ($3, $1) AND (tenant, letter_id) <= ($3, 9223372036854775807)
     ORDER BY tenant, letter_id LIMIT $2"
);

/// The janitor locks an event before it removes any of it. What is read after this, by another statement, shows whether it
/// has begun.
pub(crate) const LOCK_EVENTS: &str = "/* dead_letters.lock_events */
SELECT FROM events WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE";

/// Idempotent through the unique key (event, subscription, generation). The events are locked; one that was removed
/// meanwhile, or is being removed, gets no saga.
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

/// A subscription for a test event, whether it can get one, and an existing delivery of it.
const TEST: &str = "/* dead_letters.test */
SELECT now(), s.max_retry_limit, s.active AND s.verified, e.tenant, e.correlation_id, g.id
FROM subscriptions s
JOIN events e ON e.id = $1 AND e.tenant = s.tenant
LEFT JOIN webhook_delivery_sagas g ON g.event_id = e.id AND g.subscription_id = s.id AND g.generation = 0
WHERE s.id = $2 AND ($3::text IS NULL OR s.tenant = $3) AND s.deleted_at IS NULL";

/// A letter whose event is being removed counts as removed.
const IN_SCOPE: &str = concat!("($2::text IS NULL OR e.tenant = $2) AND NOT ", is_going!());

/// Sends one delivery again, if it has ended.
pub(super) async fn one(
    client: &Transaction<'_>,
    scope: &TenantScope,
    wanted: SendAgain,
) -> DbResult<ResendOutcome> {
    let (sql, id) = match wanted.ended {
        EndedDelivery::Letter(id) => (letter(), id.0),
        EndedDelivery::Saga(id) => (delivery(), id.0),
    };
    let statement = client.prepare_cached(&sql).await?;
    // A second look is needed only if somebody else came in between.
    for _ in 0..2 {
        let Some(row) = client.query_opt(&statement, &[&id, &scope.tenant()]).await? else {
            return Ok(ResendOutcome::NotFound);
        };
        let Some(ended) = ended(&row, wanted.default_limit)? else {
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

pub(super) async fn test(
    client: &Transaction<'_>,
    scope: &TenantScope,
    wanted: SendTest,
) -> DbResult<TestOutcome> {
    let SendTest { event_id, subscription_id, default_limit } = wanted;
    let statement = client.prepare_cached(TEST).await?;
    // A second look is needed only if somebody else came in between.
    for _ in 0..2 {
        let row = client.query_opt(&statement, &[&event_id.0, &subscription_id.0, &scope.tenant()]).await?;
        let Some(row) = row else { return Ok(TestOutcome::NotFound) };
        if let Some(saga) = row.try_get::<_, Option<i64>>(5)? {
            return Ok(TestOutcome::Delivery(SagaId(saga)));
        }
        if !row.try_get::<_, bool>(2)? {
            return Ok(TestOutcome::NotDeliverable);
        }
        let limit = row.try_get::<_, Option<i32>>(1)?.map_or(default_limit, natural);
        let first = NextSaga {
            event_id,
            subscription_id,
            trace: trace(&row, 3)?,
            generation: 0,
            saga: Saga::new(limit, row.try_get::<_, SqlTime>(0)?.0),
        };
        if let Some(made) = insert(client, &[&first]).await?.pop() {
            return Ok(TestOutcome::Delivery(made.requeued.saga_id));
        }
    }
    Err(DbError::Store(StoreError::Other("a test event's saga cannot be seen".to_owned())))
}

/// The statement that finds a letter in a scope.
fn letter() -> String {
    format!("/* dead_letters.letter */{LETTER} WHERE d.id = $1 AND {IN_SCOPE}")
}

/// The statement that finds a saga in a scope.
fn delivery() -> String {
    format!("/* dead_letters.saga */{SAGA} WHERE s.id = $1 AND {IN_SCOPE}")
}

/// One step of a requeue of many.
pub(super) async fn step(
    mut client: Client,
    scope: &TenantScope,
    step: &RequeueStep,
) -> DbResult<RequeuedBatch> {
    let window = LetterWindow::of_requeue(step);
    let letters = examine(&client, scope, window).await?;
    let mut batch = RequeuedBatch::default();
    let mut chosen: Vec<&NextSaga> = Vec::new();
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
    let is_end = letters.len() < step.examine as usize && last == letters.last().map(|letter| letter.id);
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
}

fn length(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// The next letters, oldest first, that a step examines: those of its subscription, else of its tenant, else all. The rest
/// of the filter is told of each ([`Letter::wanted`]): however few match, a step ends.
pub(crate) async fn examine(
    client: &impl GenericClient,
    scope: &TenantScope,
    step: LetterWindow<'_>,
) -> DbResult<Vec<Letter>> {
    let after = step.after.map_or(0, |id| id.0);
    let limit = bigint(step.most);
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&after, &limit];
    let subscription_id = step.filter.subscription_id.map(|id| id.0);
    let tenant = scope.tenant();
    let sql = if let Some(id) = &subscription_id {
        parameters.push(id);
        EXAMINE_OF_SUBSCRIPTION
    } else if let Some(tenant) = &tenant {
        parameters.push(tenant);
        EXAMINE_OF_TENANT
    } else {
        EXAMINE
    };
    let statement = client.prepare_cached(sql).await?;
    let rows = client.query(&statement, &parameters).await?;
    rows.iter()
        .map(|row| {
            let ended = ended(row, step.default_limit)?
                .ok_or_else(|| DbError::unreadable("a dead letter whose saga is not dead"))?;
            let wanted = is_wanted(row, scope, step.filter)?;
            Ok(Letter { id: DeadLetterId(row.try_get(13)?), wanted, ended })
        })
        .collect()
}

/// Whether a row of [`LETTER`] is what the filter asks for.
fn is_wanted(row: &Row, scope: &TenantScope, wanted: &DeadLetterFilter) -> DbResult<bool> {
    let event_type: &str = row.try_get(14)?;
    let code = ErrorCode::from_stored(row.try_get(15)?);
    let created_at = row.try_get::<_, SqlTime>(16)?.0;
    Ok(scope.includes(row.try_get(10)?)
        && wanted.event_type.as_ref().is_none_or(|wanted| wanted.as_str() == event_type)
        && scope.matches_code(wanted.final_error_code.as_ref(), &code)
        && wanted.created_after.is_none_or(|after| created_at >= after)
        && wanted.created_before.is_none_or(|before| created_at < before))
}

/// A letter that a step examines.
pub(crate) struct Letter {
    pub(crate) id: DeadLetterId,
    /// The filter asks for it.
    pub(crate) wanted: bool,
    pub(crate) ended: Ended,
}

/// Nothing if the saga is open.
fn ended(row: &Row, default_limit: u32) -> DbResult<Option<Ended>> {
    let saga = Saga {
        status: parsed(row.try_get(4)?)?,
        attempt_count: natural(row.try_get(5)?),
        max_retry_limit: natural(row.try_get(6)?),
        next_attempt_at: row.try_get::<_, SqlTime>(7)?.0,
        final_error_code: None,
    };
    let found = FoundSaga {
        now: row.try_get::<_, SqlTime>(0)?.0,
        event_id: EventId(row.try_get(1)?),
        subscription_id: SubscriptionId(row.try_get(2)?),
        trace: trace(row, 10)?,
        generation: natural(row.try_get(3)?),
        saga,
        max_retry_limit: row.try_get::<_, Option<i32>>(8)?.map(natural),
        deliverable: row.try_get(9)?,
        successor: row.try_get::<_, Option<i64>>(12)?.map(SagaId),
    };
    Ok(found.ended(default_limit))
}

/// Keeps the janitor from these events until the transaction ends.
pub(crate) async fn lock_events(transaction: &Transaction<'_>, events: &[i64]) -> DbResult<()> {
    let statement = transaction.prepare_cached(LOCK_EVENTS).await?;
    transaction.execute(&statement, &[&events]).await?;
    Ok(())
}

/// Inserts sagas; returns those that were not there yet.
pub(crate) async fn insert(client: &Transaction<'_>, sagas: &[&NextSaga]) -> DbResult<Vec<RequeuedSaga>> {
    let column = |of: fn(&NextSaga) -> i64| sagas.iter().map(|next| of(next)).collect::<Vec<i64>>();
    let narrow = |of: fn(&NextSaga) -> u32| sagas.iter().map(|next| integer(of(next))).collect::<Vec<i32>>();
    let event_ids = column(|next| next.event_id.0);
    let subscription_ids = column(|next| next.subscription_id.0);
    let generations = narrow(|next| next.generation);
    let statuses: Vec<&str> = sagas.iter().map(|next| next.saga.status.as_str()).collect();
    let attempt_counts = narrow(|next| next.saga.attempt_count);
    let limits = narrow(|next| next.saga.max_retry_limit);
    let next_attempts: Vec<SqlTime> = sagas.iter().map(|next| SqlTime(next.saga.next_attempt_at)).collect();

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
    let inserted: DbResult<Vec<_>> = rows
        .iter()
        .map(|row| Ok((SagaId(row.try_get(0)?), EventId(row.try_get(1)?), SubscriptionId(row.try_get(2)?))))
        .collect();
    Ok(NextSaga::all_made(sagas, inserted?))
}
