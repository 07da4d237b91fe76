//! `dead_letter_operator`: stores dead letters, and sends deliveries that have ended again, as new sagas.

pub(crate) mod requeue;

use crate::{engine::RoleHandle, error::DbResult, roles::rows, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    Buried, DeadLetterStore, RequeueStep, RequeuedBatch, ResendOutcome, SendAgain, SendTest, StoreResult,
    TenantScope, TestOutcome,
};

/// A queued saga that is not seen dead is left where it is.
const TAKE_DEAD: &str = "/* dead_letters.take_dead */
SELECT g.id, g.event_id, g.subscription_id, g.final_error_code, e.correlation_id, e.tenant
  FROM pending_dead_letters AS q
 CROSS JOIN webhook_delivery_sagas AS g ON g.id = q.saga_id
 CROSS JOIN events AS e ON e.id = g.event_id
 WHERE +g.status = 'DeadLettered'
 ORDER BY q.saga_id LIMIT ?1";

const INSERT_LETTER: &str = "/* dead_letters.insert_letter */
INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, created_at, payload)
SELECT ?1, id, ?3, ?4, ?5, payload FROM events WHERE id = ?2
ON CONFLICT DO NOTHING";

const LEAVE_QUEUE: &str = "/* dead_letters.leave_queue */
DELETE FROM pending_dead_letters WHERE saga_id = ?1";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[TAKE_DEAD, INSERT_LETTER, LEAVE_QUEUE];

pub(crate) struct DeadLettersSql(pub(crate) RoleHandle);

#[async_trait]
impl DeadLetterStore for DeadLettersSql {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.0.write(move |tx| bury(tx, limit)).await
    }

    async fn send_again(&self, scope: &TenantScope, wanted: SendAgain) -> StoreResult<ResendOutcome> {
        let scope = scope.clone();
        self.0.write(move |tx| requeue::one(tx, &scope, wanted)).await
    }

    async fn send_test(&self, scope: &TenantScope, wanted: SendTest) -> StoreResult<TestOutcome> {
        let scope = scope.clone();
        self.0.write(move |tx| requeue::test(tx, &scope, wanted)).await
    }

    async fn requeue_step(&self, scope: &TenantScope, step: &RequeueStep) -> StoreResult<RequeuedBatch> {
        // A read finds the letters, which leaves the writer free; the write uses their keys.
        let (looking, looked_for) = (scope.clone(), step.clone());
        let plan = self.0.read(move |tx| requeue::plan(tx, &looking, &looked_for)).await?;
        if step.dry_run || plan.letters.is_empty() {
            return Ok(plan.batch);
        }
        let (scope, default_limit) = (scope.clone(), step.default_limit);
        self.0.write(move |tx| requeue::carry_out(tx, &scope, plan, default_limit)).await
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
            tenant: row.get(5)?,
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
