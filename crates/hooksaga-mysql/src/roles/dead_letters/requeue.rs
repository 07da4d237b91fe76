//! Sends deliveries again: a new saga, of the next generation, for the event and subscription of a saga that has ended.

use super::filter_letters;
use crate::{
    error::{DbError, DbResult},
    roles::{
        batch::{Batch, Field},
        event_locks,
        filter::Filter,
        rows::{natural, parsed, rows, take, trace},
    },
    time::SqlTime,
};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, Saga, SagaId, SubscriptionId};
use hooksaga_store::{
    DeadLetterFilter, Ended, EndedDelivery, FoundSaga, LetterWindow, NextSaga, RequeueStep, RequeuedBatch,
    RequeuedSaga, ResendOutcome, SendAgain, SendTest, TenantScope, TestOutcome, Trace,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable};

/// Whether the janitor has begun to remove the event `e`: then nothing of it is sent again.
macro_rules! is_going {
    () => {
        "EXISTS (SELECT 1 FROM removals r FORCE INDEX (PRIMARY) WHERE r.kind = 'event' AND r.subject_id = e.id)"
    };
}
pub(crate) use is_going;

/// The columns that decide whether a saga can be sent again; `successor` is the saga that it was sent again as. It cannot be
/// delivered if the janitor has begun to remove its event.
const COLUMNS: &str = concat!(
    "
SELECT UTC_TIMESTAMP(6), s.event_id, s.subscription_id, s.generation, s.status, s.attempt_count,
       s.max_retry_limit, s.next_attempt_at, sub.max_retry_limit,
       COALESCE(sub.active AND sub.verified, FALSE) AND NOT ",
    is_going!(),
    ",
       e.tenant, e.correlation_id, successor.id"
);
/// A letter whose event is being removed counts as removed.
const IS_THERE: &str = concat!("NOT ", is_going!());
const OF_LETTER: &str = "
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = d.saga_id";
const JOINED: &str = "
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
LEFT JOIN subscriptions sub FORCE INDEX (PRIMARY) ON sub.id = s.subscription_id
LEFT JOIN webhook_delivery_sagas successor FORCE INDEX (uniq_saga_event_subscription)
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1";

const LETTERS: &str = "(SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN dead_letters d FORCE INDEX (PRIMARY) ON d.id = u.id";

/// The next letters of all tenants, by their key.
pub(crate) const PAGE: &str = "/* dead_letters.page */
SELECT id FROM dead_letters FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id LIMIT ?";

/// The next letters of one subscription.
pub(crate) const PAGE_OF_SUBSCRIPTION: &str = "/* dead_letters.page_of_subscription */
SELECT id FROM dead_letters FORCE INDEX (idx_dead_letter_subscription)
WHERE subscription_id = ? AND id > ? ORDER BY id LIMIT ?";

/// The next letters of one tenant, however many subscriptions it has.
pub(crate) const PAGE_OF_TENANT: &str = "/* dead_letters.page_of_tenant */
SELECT letter_id FROM letter_heads FORCE INDEX (idx_head_tenant)
WHERE tenant = ? AND letter_id > ? ORDER BY letter_id LIMIT ?";

/// Locks events against the janitor, which locks an event before it removes anything of it. A later statement sees whether it
/// has begun. (The two servers write a shared lock differently, hence the version comments.)
pub(crate) const LOCK_EVENTS: &str = "/* dead_letters.lock_events */
SELECT e.id FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (event_id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.event_id /*!80000 FOR SHARE */ /*M!100300 LOCK IN SHARE MODE */";

/// Idempotent through the unique key (event, subscription, generation). A plain insert: letters with a successor were
/// excluded by the read before; if another transaction inserts one in between, this INSERT fails as a whole and the
/// step is repeated. The events are locked; one that was removed meanwhile, or is being removed, gets no saga.
const REQUEUE: &str = concat!(
    "/* dead_letters.requeue */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
SELECT u.event_id, u.subscription_id, u.generation, CONVERT(UNHEX(u.status) USING ascii), u.attempt_count,
       u.max_retry_limit, u.next_attempt_at, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', generation INT PATH '$[2]',
    status VARCHAR(40) PATH '$[3]', attempt_count INT PATH '$[4]', max_retry_limit INT PATH '$[5]',
    next_attempt_at DATETIME(6) PATH '$[6]')) AS t) u
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = u.event_id
WHERE NOT ",
    is_going!()
);

const REQUEUED: &str = "/* dead_letters.requeued */
SELECT s.id, s.event_id, s.subscription_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', generation INT PATH '$[2]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription)
    ON s.event_id = u.event_id AND s.subscription_id = u.subscription_id AND s.generation = u.generation";

/// A subscription for a test event, whether it can get one, and an existing delivery of it.
const TEST: &str = "/* dead_letters.test */
SELECT UTC_TIMESTAMP(6), s.max_retry_limit, s.active AND s.verified, s.tenant, e.correlation_id, g.id
FROM subscriptions s FORCE INDEX (PRIMARY)
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = ? AND e.tenant = s.tenant
LEFT JOIN webhook_delivery_sagas g FORCE INDEX (uniq_saga_event_subscription)
    ON g.event_id = e.id AND g.subscription_id = s.id AND g.generation = 0
WHERE s.id = ? AND s.deleted_at IS NULL";

/// Sends a test event to one subscription.
pub(super) async fn test(
    mut connection: Conn,
    scope: &TenantScope,
    wanted: SendTest,
) -> DbResult<TestOutcome> {
    let SendTest { event_id, subscription_id, default_limit } = wanted;
    let found: Option<Row> = connection.exec_first(TEST, (event_id.0, subscription_id.0)).await?;
    let Some(mut row) = found else { return Ok(TestOutcome::NotFound) };
    let row = &mut row;
    let trace = trace(row, 3)?;
    if !scope.includes(&trace.tenant) {
        return Ok(TestOutcome::NotFound);
    }
    if let Some(saga) = take::<Option<i64>>(row, 5)? {
        return Ok(TestOutcome::Delivery(SagaId(saga)));
    }
    if !take::<bool>(row, 2)? {
        return Ok(TestOutcome::NotDeliverable);
    }
    let limit = take::<Option<i64>>(row, 1)?.map_or(default_limit, natural);
    let first = NextSaga {
        event_id,
        subscription_id,
        trace,
        generation: 0,
        saga: Saga::new(limit, take::<SqlTime>(row, 0)?.0),
    };
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let made = insert(&mut transaction, &[&first]).await?.pop();
    transaction.commit().await?;
    let made = made.ok_or_else(|| DbError::unreadable("a test event's saga cannot be seen"))?;
    Ok(TestOutcome::Delivery(made.requeued.saga_id))
}

/// Sends one delivery again, if it has ended.
pub(super) async fn one(
    mut connection: Conn,
    scope: &TenantScope,
    wanted: SendAgain,
) -> DbResult<ResendOutcome> {
    let (sql, id) = match wanted.ended {
        EndedDelivery::Letter(id) => (
            format!(
                "/* dead_letters.letter */{COLUMNS} FROM dead_letters d{OF_LETTER}{JOINED} WHERE d.id = ? AND {IS_THERE}"
            ),
            id.0,
        ),
        EndedDelivery::Saga(id) => (
            format!(
                "/* dead_letters.saga */{COLUMNS} FROM webhook_delivery_sagas s{JOINED} WHERE s.id = ? AND {IS_THERE}"
            ),
            id.0,
        ),
    };
    let Some(mut row) = connection.exec_first::<Row, _, _>(sql, (id,)).await? else {
        return Ok(ResendOutcome::NotFound);
    };
    let trace = trace(&mut row, 10)?;
    if !scope.includes(&trace.tenant) {
        return Ok(ResendOutcome::NotFound);
    }
    let Some(ended) = ended(&mut row, trace, wanted.default_limit)? else {
        return Ok(ResendOutcome::Open);
    };
    if let Some(requeued) = ended.sent_again() {
        return Ok(ResendOutcome::Already(requeued));
    }
    if !ended.deliverable {
        return Ok(ResendOutcome::NotDeliverable(ended.next.subscription_id));
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let made = insert(&mut transaction, &[&ended.next]).await?.pop();
    transaction.commit().await?;
    // Without one the event has gone.
    Ok(made.map_or(ResendOutcome::NotFound, |made| ResendOutcome::Created(made.requeued, made.trace)))
}

/// Requeues the next letters that match, oldest first.
pub(super) async fn step(
    mut connection: Conn,
    scope: &TenantScope,
    step: &RequeueStep,
) -> DbResult<RequeuedBatch> {
    let window = LetterWindow::of_requeue(step);
    let (page, mut letters) = examine(&mut connection, scope, window).await?;
    letters.retain(|letter| letter.ended.successor.is_none());
    let full = !page.is_empty() && rows(page.len()) == u64::from(step.examine);
    let mut chosen: Vec<&NextSaga> = Vec::new();
    let mut batch = RequeuedBatch {
        resume_after: page.last().copied().filter(|_| full).map(DeadLetterId),
        ..RequeuedBatch::default()
    };
    for letter in &letters {
        // What lies behind the letter that filled the step is not examined.
        if rows(chosen.len()) >= u64::from(step.requeue) {
            let before = page.iter().copied().take_while(|id| *id < letter.id.0).last();
            batch.resume_after = before.map(DeadLetterId).or(step.after).or(Some(DeadLetterId(0)));
            break;
        }
        if letter.ended.deliverable {
            chosen.push(&letter.ended.next);
        } else {
            batch.skipped += 1;
        }
    }
    batch.requeued = rows(chosen.len());
    if !step.dry_run && !chosen.is_empty() {
        let mut transaction = connection.start_transaction(TxOpts::default()).await?;
        batch.sagas = insert(&mut transaction, &chosen).await?;
        transaction.commit().await?;
        batch.requeued = rows(batch.sagas.len());
    }
    Ok(batch)
}

/// The ids of the letters that a step examines, and those of them that match the filter.
pub(crate) async fn examine(
    connection: &mut impl Queryable,
    scope: &TenantScope,
    window: LetterWindow<'_>,
) -> DbResult<(Vec<i64>, Vec<Letter>)> {
    let page = page(connection, scope, window).await?;
    let letters = matching(connection, scope, window, &page).await?;
    Ok((page, letters))
}

/// The letters that the step examines: the next ones in the order of ids, by the most selective index.
async fn page(
    connection: &mut impl Queryable,
    scope: &TenantScope,
    window: LetterWindow<'_>,
) -> DbResult<Vec<i64>> {
    let after = window.after.map_or(0, |id| id.0);
    if let Some(subscription) = window.filter.subscription_id {
        return Ok(connection.exec(PAGE_OF_SUBSCRIPTION, (subscription.0, after, window.most)).await?);
    }
    if let Some(tenant) = scope.tenant() {
        return Ok(connection.exec(PAGE_OF_TENANT, (tenant, after, window.most)).await?);
    }
    Ok(connection.exec(PAGE, (after, window.most)).await?)
}

/// The letters of a page that match, in the order of their ids.
async fn matching(
    connection: &mut impl Queryable,
    scope: &TenantScope,
    window: LetterWindow<'_>,
    page: &[i64],
) -> DbResult<Vec<Letter>> {
    let mut filter = Filter::new();
    // The error code is compared below: what it matches depends on who asks.
    let wanted = DeadLetterFilter { final_error_code: None, ..window.filter.clone() };
    filter_letters(&mut filter, scope, &wanted);
    let sql = format!(
        "/* dead_letters.matching */{COLUMNS}, d.id, d.final_error_code FROM {LETTERS}{OF_LETTER}{JOINED} {}",
        filter.where_clause()
    );
    let mut letters = Vec::new();
    for document in Batch::ids(page.iter().copied()) {
        let read: Vec<Row> = connection.exec(sql.as_str(), filter.parameters_after(document)).await?;
        for mut row in read {
            let code = ErrorCode::from_stored(take(&mut row, 14)?);
            if !scope.matches_code(window.filter.final_error_code.as_ref(), &code) {
                continue;
            }
            let trace = trace(&mut row, 10)?;
            let ended = ended(&mut row, trace, window.default_limit)?
                .ok_or_else(|| DbError::unreadable("a dead letter whose saga is not dead"))?;
            letters.push(Letter { id: DeadLetterId(take(&mut row, 13)?), ended });
        }
    }
    letters.sort_unstable_by_key(|letter| letter.id);
    Ok(letters)
}

/// A letter that a step examines.
pub(crate) struct Letter {
    pub(crate) id: DeadLetterId,
    pub(crate) ended: Ended,
}

/// Nothing if the saga is open.
fn ended(row: &mut Row, trace: Trace, default_limit: u32) -> DbResult<Option<Ended>> {
    let saga = Saga {
        status: parsed(&take::<String>(row, 4)?)?,
        attempt_count: natural(take(row, 5)?),
        max_retry_limit: natural(take(row, 6)?),
        next_attempt_at: take::<SqlTime>(row, 7)?.0,
        final_error_code: None,
    };
    let found = FoundSaga {
        now: take::<SqlTime>(row, 0)?.0,
        event_id: EventId(take(row, 1)?),
        subscription_id: SubscriptionId(take(row, 2)?),
        trace,
        generation: natural(take(row, 3)?),
        saga,
        max_retry_limit: take::<Option<i64>>(row, 8)?.map(natural),
        deliverable: take(row, 9)?,
        successor: take::<Option<i64>>(row, 12)?.map(SagaId),
    };
    Ok(found.ended(default_limit))
}

/// Inserts sagas, in the order of their keys.
pub(crate) async fn insert(
    transaction: &mut Transaction<'_>,
    sagas: &[&NextSaga],
) -> DbResult<Vec<RequeuedSaga>> {
    let mut sorted = sagas.to_vec();
    sorted.sort_unstable_by_key(|next| next.key());
    let mut inserted = Vec::with_capacity(sagas.len());
    event_locks::lock(transaction, sagas.iter().map(|next| next.event_id.0)).await?;
    for document in Batch::of(sorted, |next| {
        let (event, subscription, generation) = next.key();
        let saga = &next.saga;
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
        transaction.exec_drop(LOCK_EVENTS, (document.as_str(),)).await?;
        transaction.exec_drop(REQUEUE, (document.as_str(),)).await?;
        let found: Vec<(i64, i64, i64)> = transaction.exec(REQUEUED, (document,)).await?;
        inserted.extend(
            found.into_iter().map(|(saga, event, subscription)| {
                (SagaId(saga), EventId(event), SubscriptionId(subscription))
            }),
        );
    }
    Ok(NextSaga::all_made(sagas, inserted))
}
