//! `router_worker`: makes one saga per event and matching subscription.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        correlations::Correlations,
        frontier::Frontier,
        insert::{Insert, Inserter},
        rows::{bigint, integer},
    },
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, SagaId, SubscriptionId};
use hooksaga_store::{RouteBatch, RoutedEvent, RoutedSaga, RouterStore, StoreResult};
use std::{collections::BTreeMap, sync::Arc};

/// One statement. Its snapshot shows the queue and the subscriptions at the same moment, so an event that it
/// sees queued is matched with every subscription that was there when the event was accepted; a row that another
/// router holds is skipped, one that it has taken off meanwhile is gone.
///
/// The queue is walked by its key; locked rows are deleted by their place in the table (nobody else can move
/// them), which a join over a long queue would not find as cheaply. `(…) IS TRUE` hides `active` from the planner,
/// which would otherwise read every active subscription for each event by `idx_sub_active`, having seen the queue
/// empty; the unique key (event_type, callback_url) finds the right ones.
macro_rules! route {
    ($on_conflict:literal) => {
        concat!(
            "/* router.route */
WITH batch AS MATERIALIZED (
    SELECT event_id, ctid AS place FROM unrouted_events
    WHERE event_id >= $3 ORDER BY event_id LIMIT $1
    FOR UPDATE SKIP LOCKED
), routed AS MATERIALIZED (
    SELECT e.id, e.event_type, e.correlation_id FROM batch b JOIN events e ON e.id = b.event_id
), sagas AS (
    INSERT INTO webhook_delivery_sagas
        (event_id, subscription_id, generation, max_retry_limit, next_attempt_at, created_at, updated_at)
    SELECT r.id, s.id, 0, coalesce(s.max_retry_limit, $2), now(), now(), now()
    FROM routed r JOIN subscriptions s ON s.event_type = r.event_type AND (s.active AND s.verified) IS TRUE
    ORDER BY r.id, s.id
    ",
            $on_conflict,
            "
    RETURNING id, event_id, subscription_id
), gone AS (
    DELETE FROM unrouted_events WHERE ctid = ANY (ARRAY(SELECT place FROM batch))
)
SELECT id, correlation_id, NULL::bigint[], NULL::bigint[], NULL::bigint[] FROM routed
UNION ALL
SELECT NULL, NULL, array_agg(event_id), array_agg(id), array_agg(subscription_id) FROM sagas"
        )
    };
}

pub(crate) const ROUTE: Insert = Insert { plain: route!(""), careful: route!("ON CONFLICT DO NOTHING") };

/// Ids are handed out before the commits of ingestion, of which two groups run at a time in each process. What commits
/// later than that much after it is routed within a second.
const MARGIN: i64 = 2000;

pub(crate) struct Router {
    pool: RolePool,
    frontier: Frontier,
    sagas: Inserter,
    correlations: Arc<Correlations>,
}

impl Router {
    pub(crate) fn new(pool: RolePool, correlations: Arc<Correlations>) -> Self {
        Self { pool, frontier: Frontier::new(MARGIN), sagas: Inserter::default(), correlations }
    }

    /// What was routed, and the last event.
    async fn route_from(
        &self,
        client: &Client,
        limit: u32,
        default_limit: u32,
        from: i64,
    ) -> DbResult<(RouteBatch, Option<i64>)> {
        let rows = self.sagas.run(client, ROUTE, &[&bigint(limit), &integer(default_limit), &from]).await?;
        // A UNION ALL answers its halves in turn: the events, then all their sagas in one line.
        let (sagas, events) = rows.split_last().ok_or_else(|| DbError::unreadable("no sagas"))?;
        let mut routed = BTreeMap::new();
        for row in events {
            let (event_id, correlation_id) = (EventId(row.try_get(0)?), row.try_get(1)?);
            routed.insert(event_id, RoutedEvent { event_id, correlation_id, sagas: Vec::new() });
        }
        let column = |index| -> DbResult<Vec<i64>> {
            Ok(sagas.try_get::<_, Option<Vec<i64>>>(index)?.unwrap_or_default())
        };
        for ((event_id, saga_id), subscription_id) in column(2)?.into_iter().zip(column(3)?).zip(column(4)?) {
            let saga =
                RoutedSaga { saga_id: SagaId(saga_id), subscription_id: SubscriptionId(subscription_id) };
            let event = routed.get_mut(&EventId(event_id));
            event.ok_or_else(|| DbError::unreadable("a saga without its event"))?.sagas.push(saga);
        }
        let matched = routed.iter().filter(|(_, event)| !event.sagas.is_empty());
        self.correlations.remember(matched.map(|(id, event)| (id.0, &*event.correlation_id)));
        let reached = routed.last_key_value().map(|(id, _)| id.0);
        Ok((RouteBatch { events: routed.into_values().collect() }, reached))
    }
}

#[async_trait]
impl RouterStore for Router {
    async fn route(&self, limit: u32, default_limit: u32) -> StoreResult<RouteBatch> {
        let route = |client| async move {
            self.frontier.walk(|from| self.route_from(&client, limit, default_limit, from)).await
        };
        self.pool.run(route).await
    }
}
