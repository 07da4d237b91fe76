//! `dead_letter_operator`: stores dead letters, and sends deliveries that have ended again, as new sagas.

pub(crate) mod requeue;

use crate::{pool::RolePool, roles::rows::bigint};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    Buried, DeadLetterStore, RequeueStep, RequeuedBatch, ResendOutcome, SendAgain, SendTest, StoreResult,
    TenantScope, TestOutcome,
};
use std::collections::HashMap;

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

pub(crate) struct DeadLettersSql(pub(crate) RolePool);

#[async_trait]
impl DeadLetterStore for DeadLettersSql {
    async fn bury(&self, limit: u32) -> StoreResult<Vec<Buried>> {
        self.0
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

    async fn send_again(&self, scope: &TenantScope, wanted: SendAgain) -> StoreResult<ResendOutcome> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let outcome = requeue::one(&transaction, scope, wanted).await?;
                transaction.commit().await?;
                Ok(outcome)
            })
            .await
    }

    async fn send_test(&self, scope: &TenantScope, wanted: SendTest) -> StoreResult<TestOutcome> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let outcome = requeue::test(&transaction, scope, wanted).await?;
                transaction.commit().await?;
                Ok(outcome)
            })
            .await
    }

    async fn requeue_step(&self, scope: &TenantScope, step: &RequeueStep) -> StoreResult<RequeuedBatch> {
        self.0.run(|client| async move { requeue::step(client, scope, step).await }).await
    }
}
