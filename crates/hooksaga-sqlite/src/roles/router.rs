//! `router_worker`: makes one saga per event and matching subscription.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{EventId, SagaId, SubscriptionId};
use hooksaga_store::{RouteBatch, RoutedEvent, RoutedSaga, RouterStore, StoreResult};
use std::{collections::HashMap, rc::Rc};

const TAKE_EVENTS: &str = "/* router_worker: take_events */
SELECT q.event_id, e.event_type, e.correlation_id
  FROM unrouted_events AS q CROSS JOIN events AS e ON e.id = q.event_id
 ORDER BY q.event_id LIMIT ?1";

/// By the unique key (event_type, callback_url); `+active`, or the planner may prefer the index on it,
/// which nearly every subscription fits.
const SUBSCRIPTIONS_OF_TYPE: &str = "/* router_worker: subscriptions_of_type */
SELECT id, coalesce(max_retry_limit, ?2) FROM subscriptions
 WHERE event_type = ?1 AND +active AND verified ORDER BY id";

const INSERT_SAGA: &str = "/* router_worker: insert_saga */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, status, attempt_count, max_retry_limit, next_attempt_at, created_at,
     updated_at)
VALUES (?1, ?2, 0, 'Pending', 0, ?3, ?4, ?4, ?4)
ON CONFLICT DO NOTHING";

const LEAVE_QUEUE: &str = "/* router_worker: leave_queue */
DELETE FROM unrouted_events WHERE event_id = ?1";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] = &[TAKE_EVENTS, SUBSCRIPTIONS_OF_TYPE, INSERT_SAGA, LEAVE_QUEUE];

pub(crate) struct Router(pub(crate) RoleHandle);

#[async_trait]
impl RouterStore for Router {
    async fn route(&self, limit: u32, default_limit: u32) -> StoreResult<RouteBatch> {
        self.0.write(move |tx| route(tx, limit, default_limit)).await
    }
}

fn route(tx: &Tx<'_>, limit: u32, default_limit: u32) -> DbResult<RouteBatch> {
    let queued = rows::all(tx, TAKE_EVENTS, [limit], |row| {
        Ok((EventId(row.get(0)?), row.get::<_, String>(1)?, row.get::<_, String>(2)?))
    })?;
    let mut insert = tx.prepare(INSERT_SAGA)?;
    let mut leave = tx.prepare(LEAVE_QUEUE)?;
    // Read within this transaction, once per event type: a change is seen by the next batch.
    let mut of_type: HashMap<String, Rc<[(SubscriptionId, u32)]>> = HashMap::new();
    let mut events = Vec::with_capacity(queued.len());
    for (event_id, event_type, correlation_id) in queued {
        let subscriptions = match of_type.get(&event_type) {
            Some(known) => known.clone(),
            None => {
                let found: Rc<[_]> =
                    rows::all(tx, SUBSCRIPTIONS_OF_TYPE, (&event_type, default_limit), |row| {
                        Ok((SubscriptionId(row.get(0)?), row.get(1)?))
                    })?
                    .into();
                of_type.insert(event_type, found.clone());
                found
            }
        };
        let mut sagas = Vec::with_capacity(subscriptions.len());
        for (subscription_id, max_retry_limit) in &*subscriptions {
            if insert.execute((event_id.0, subscription_id.0, max_retry_limit, tx.now.as_micros()))? > 0 {
                sagas.push(RoutedSaga { saga_id: SagaId(tx.last_id()), subscription_id: *subscription_id });
            }
        }
        leave.execute([event_id.0])?;
        events.push(RoutedEvent { event_id, correlation_id, sagas });
    }
    Ok(RouteBatch { events })
}
