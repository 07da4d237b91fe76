//! `router_worker`: makes one saga per event and matching subscription.

use crate::{
    convert::{bigint, integer},
    error::Failure,
    pool::RolePool,
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, SagaId, SubscriptionId};
use hooksaga_store::{RouteBatch, RoutedEvent, RoutedSaga, RouterStore, StoreResult};
use std::collections::BTreeMap;

/// One statement. Its snapshot shows the queue and the subscriptions at the same moment, so an event that it
/// sees queued is matched with every subscription that was there when the event was accepted; a row that another
/// router holds is skipped, one that it has taken off meanwhile is gone.
///
/// The queue is walked by its key; locked rows are deleted by their place in the table (nobody else can move
/// them), which a join over a long queue would not find as cheaply. `(…) IS TRUE` hides `active` from the planner,
/// which would otherwise read every active subscription for each event by `idx_sub_active`, having seen the queue
/// empty; the unique key (event_type, callback_url) finds the right ones.
pub(crate) const ROUTE: &str = "/* router.route */
WITH batch AS MATERIALIZED (
    SELECT event_id, ctid AS place FROM unrouted_events ORDER BY event_id LIMIT $1 FOR UPDATE SKIP LOCKED
), routed AS MATERIALIZED (
    SELECT e.id, e.event_type, e.correlation_id FROM batch b JOIN events e ON e.id = b.event_id
), sagas AS (
    INSERT INTO webhook_delivery_sagas
        (event_id, subscription_id, generation, max_retry_limit, next_attempt_at, created_at, updated_at)
    SELECT r.id, s.id, 0, coalesce(s.max_retry_limit, $2), now(), now(), now()
    FROM routed r JOIN subscriptions s ON s.event_type = r.event_type AND (s.active AND s.verified) IS TRUE
    ORDER BY r.id, s.id
    ON CONFLICT DO NOTHING
    RETURNING id, event_id, subscription_id
), gone AS (
    DELETE FROM unrouted_events WHERE ctid = ANY (ARRAY(SELECT place FROM batch))
)
SELECT id, correlation_id, NULL::bigint, NULL::bigint FROM routed
UNION ALL
SELECT event_id, NULL, id, subscription_id FROM sagas";

pub(crate) struct Router {
    pool: RolePool,
}

impl Router {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl RouterStore for Router {
    async fn route(&self, limit: u32, default_limit: u32) -> StoreResult<RouteBatch> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(ROUTE).await?;
                let rows = client.query(&statement, &[&bigint(limit), &integer(default_limit)]).await?;
                let mut events = BTreeMap::new();
                for row in rows {
                    let event_id = EventId(row.try_get(0)?);
                    let Some(saga_id) = row.try_get::<_, Option<i64>>(2)? else {
                        let correlation_id = row.try_get(1)?;
                        events.insert(event_id, RoutedEvent { event_id, correlation_id, sagas: Vec::new() });
                        continue;
                    };
                    let saga = RoutedSaga {
                        saga_id: SagaId(saga_id),
                        subscription_id: SubscriptionId(row.try_get(3)?),
                    };
                    // A UNION ALL answers its halves in turn, so the event is there before its sagas.
                    let event = events.get_mut(&event_id);
                    event.ok_or_else(|| Failure::unreadable("a saga without its event"))?.sagas.push(saga);
                }
                Ok(RouteBatch { events: events.into_values().collect() })
            })
            .await
    }
}
