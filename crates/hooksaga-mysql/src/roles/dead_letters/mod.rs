//! `dead_letter_operator`: stores dead letters, and sends deliveries that have ended again, as new sagas.

pub(crate) mod requeue;

use crate::{
    cluster::may_be_node,
    error::DbResult,
    pool::RolePool,
    roles::{
        batch::Batch,
        event_locks,
        filter::Filter,
        rows::{expect_rows, rows, take},
    },
};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    Buried, Conditions as _, DeadLetterFilter, DeadLetterStore, RequeueStep, RequeuedBatch, ResendOutcome,
    SendAgain, SendTest, StoreResult, TenantScope, TestOutcome,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::collections::HashMap;

/// Runs before a transaction begins: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* dead_letters.peek */ SELECT EXISTS (SELECT 1 FROM pending_dead_letters)";

pub(crate) const LOCK: &str = "/* dead_letters.lock */
SELECT saga_id FROM pending_dead_letters FORCE INDEX (PRIMARY) ORDER BY saga_id LIMIT ? FOR UPDATE SKIP LOCKED";

/// Runs after the queue's rows are locked, so a saga that is seen as queued is also seen as dead. A queued saga that is not
/// dead has no row here, and stays queued.
pub(crate) const DEAD: &str = "/* dead_letters.dead */
SELECT s.id, s.event_id, s.subscription_id, COALESCE(s.final_error_code, 'INTERNAL'), e.correlation_id, d.id, e.tenant
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id
LEFT JOIN dead_letters d FORCE INDEX (uniq_dead_letter_saga) ON d.saga_id = s.id
WHERE s.status = 'DeadLettered'";

/// Copies the payload from table to table, not through this process.
pub(crate) const BURY: &str = "/* dead_letters.bury */
INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at)
SELECT s.id, s.event_id, s.subscription_id, COALESCE(s.final_error_code, 'INTERNAL'), e.payload, UTC_TIMESTAMP(6)
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = u.id
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = s.event_id";

/// By key, so that it never waits for rows that another process has locked.
pub(crate) const FORGET: &str = "/* dead_letters.forget */
DELETE q FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN pending_dead_letters q FORCE INDEX (PRIMARY) ON q.saga_id = u.id";

pub(crate) struct DeadLettersSql(pub(crate) RolePool);

#[async_trait]
impl DeadLetterStore for DeadLettersSql {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.0.run_inserting(|connection| bury(connection, limit)).await
    }

    async fn send_again(&self, scope: &TenantScope, wanted: SendAgain) -> StoreResult<ResendOutcome> {
        self.0.run_inserting(|connection| requeue::one(connection, scope, wanted)).await
    }

    async fn send_test(&self, scope: &TenantScope, wanted: SendTest) -> StoreResult<TestOutcome> {
        self.0.run_inserting(|connection| requeue::test(connection, scope, wanted)).await
    }

    async fn requeue_step(&self, scope: &TenantScope, step: &RequeueStep) -> StoreResult<RequeuedBatch> {
        self.0.run_inserting(|connection| requeue::step(connection, scope, step)).await
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
    let unburied = || dead.iter().filter(|(_, letter)| letter.is_none()).map(|(entry, _)| entry);
    let new: Vec<i64> = unburied().map(|entry| entry.saga_id.0).collect();
    if may_be_node(&transaction) {
        // Another node, where the queue's rows are not locked, may send one of these again now. Without a key that both write,
        // both would commit, and the letter would be listed as not sent again.
        event_locks::lock(&mut transaction, unburied().map(|entry| entry.event_id.0)).await?;
    }
    let mut stored = 0;
    for document in Batch::ids(new.iter().copied()) {
        transaction.exec_drop(BURY, (document,)).await?;
        stored += transaction.affected_rows();
    }
    expect_rows("burying", rows(new.len()), stored)?;
    let mut letters: HashMap<SagaId, DeadLetterId> = HashMap::with_capacity(new.len());
    for (entry, letter) in self::dead(&mut transaction, &new).await? {
        letters.extend(letter.map(|letter| (entry.saga_id, letter)));
    }
    let mut seen: Vec<i64> = dead.iter().map(|(entry, _)| entry.saga_id.0).collect();
    seen.sort_unstable();
    for document in Batch::ids(seen) {
        transaction.exec_drop(FORGET, (document,)).await?;
    }
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
    for document in Batch::ids(ids.iter().copied()) {
        let read: Vec<Row> = transaction.exec(DEAD, (document,)).await?;
        for mut row in read {
            let row = &mut row;
            let entry = Buried {
                dead_letter_id: None,
                saga_id: SagaId(take(row, 0)?),
                event_id: EventId(take(row, 1)?),
                subscription_id: SubscriptionId(take(row, 2)?),
                tenant: take(row, 6)?,
                final_error_code: ErrorCode::from_stored(take(row, 3)?),
                correlation_id: take(row, 4)?,
            };
            dead.push((entry, take::<Option<i64>>(row, 5)?.map(DeadLetterId)));
        }
    }
    Ok(dead)
}

/// The filter of a bulk requeue. `d` are dead letters, `e` events.
fn filter_letters(filter: &mut Filter, scope: &TenantScope, wanted: &DeadLetterFilter) {
    filter.add_text("e.tenant", scope.tenant());
    filter.add_some("d.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_text("e.event_type", wanted.event_type.as_ref());
    filter.add_text("d.final_error_code", wanted.final_error_code.as_ref());
    filter.add_period("d.created_at", wanted.created_after, wanted.created_before);
}
