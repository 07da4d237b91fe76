//! `router_worker`: makes one saga per event and matching subscription.
//!
//! One transaction. The queue's rows are locked first; what is read after that (in READ COMMITTED each statement sees
//! what is committed when it begins) has every subscription that was there when the events were accepted. While the
//! lock is held nobody else makes generation 0 sagas for these events.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::{Batch, Field, list},
        rows::{expect_rows, rows, take},
    },
    time::Time,
};
use async_trait::async_trait;
use hooksaga_saga::{EventId, SagaId, SubscriptionId};
use hooksaga_store::{RouteBatch, RoutedEvent, RoutedSaga, RouterStore, StoreResult};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Before a transaction is begun: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* router.peek */ SELECT EXISTS (SELECT 1 FROM unrouted_events)";

/// Walks the queue by its key.
pub(crate) const LOCK: &str = "/* router.lock */
SELECT event_id FROM unrouted_events ORDER BY event_id LIMIT ? FOR UPDATE SKIP LOCKED";

pub(crate) const EVENTS: &str = "/* router.events */
SELECT id, event_type, correlation_id, UTC_TIMESTAMP(6) FROM events FORCE INDEX (PRIMARY)";

pub(crate) const SUBSCRIPTIONS: &str = "/* router.subscriptions */
SELECT s.id, s.event_type, s.max_retry_limit
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (event_type VARCHAR(200) PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (uniq_sub_type_url) ON s.event_type = UNHEX(u.event_type)
WHERE s.active AND s.verified";

/// The sagas that routing has made of the given events.
pub(crate) const SAGAS: &str = "/* router.sagas */
SELECT s.id, s.event_id, s.subscription_id
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (event_id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription)
    ON s.event_id = u.event_id AND s.generation = 0";

pub(crate) const INSERT: &str = "/* router.insert */
INSERT INTO webhook_delivery_sagas
    (event_id, subscription_id, generation, max_retry_limit, next_attempt_at, created_at, updated_at)
SELECT u.event_id, u.subscription_id, 0, u.max_retry_limit, u.now, u.now, u.now
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    event_id BIGINT PATH '$[0]', subscription_id BIGINT PATH '$[1]', max_retry_limit INT PATH '$[2]',
    now DATETIME(6) PATH '$[3]')) AS u";

pub(crate) const FORGET: &str = "/* router.forget */ DELETE FROM unrouted_events";

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
        self.pool.run_inserting(|connection| route(connection, limit, default_limit)).await
    }
}

async fn route(mut connection: Conn, limit: u32, default_limit: u32) -> DbResult<RouteBatch> {
    if connection.exec_first(PEEK, ()).await? == Some(false) {
        return Ok(RouteBatch::default());
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let queued: Vec<i64> = transaction.exec(LOCK, (limit,)).await?;
    if queued.is_empty() {
        transaction.rollback().await?;
        return Ok(RouteBatch::default());
    }
    let queued = list(queued);

    let read: Vec<Row> = transaction.query(format!("{EVENTS} WHERE id IN ({queued})")).await?;
    let mut events: BTreeMap<i64, (String, RoutedEvent)> = BTreeMap::new();
    let mut now = None;
    for mut row in read {
        let id = take(&mut row, 0)?;
        now = Some(take::<Time>(&mut row, 3)?.0);
        let routed =
            RoutedEvent { event_id: EventId(id), correlation_id: take(&mut row, 2)?, sagas: Vec::new() };
        events.insert(id, (take(&mut row, 1)?, routed));
    }
    let subscriptions = subscriptions(&mut transaction, &events, default_limit).await?;
    let keys = Batch::of(events.keys(), |id| [Field::Int(*id)]);
    // An event that is queued again may have all of its sagas, or a part.
    let before = sagas(&mut transaction, &keys).await?;

    let mut new = Vec::new();
    for (id, (event_type, _)) in &events {
        for (subscription, limit) in subscriptions.get(event_type).into_iter().flatten() {
            if !before.contains_key(&(*id, *subscription)) {
                new.push((*id, *subscription, *limit));
            }
        }
    }
    if let Some(now) = now
        && !new.is_empty()
    {
        let mut inserted = 0;
        for document in Batch::of(&new, |&(event, subscription, limit)| {
            [Field::Int(event), Field::Int(subscription), Field::Int(limit), Field::At(now)]
        }) {
            transaction.exec_drop(INSERT, (document,)).await?;
            inserted += transaction.affected_rows();
        }
        expect_rows("routing", rows(new.len()), inserted)?;
        let after = sagas(&mut transaction, &keys).await?;
        for (event, subscription, _) in new {
            let saga = after.get(&(event, subscription)).copied();
            let saga_id = SagaId(saga.ok_or_else(|| DbError::unreadable("a saga that cannot be seen"))?);
            if let Some((_, routed)) = events.get_mut(&event) {
                routed.sagas.push(RoutedSaga { saga_id, subscription_id: SubscriptionId(subscription) });
            }
        }
    }
    transaction.query_drop(format!("{FORGET} WHERE event_id IN ({queued})")).await?;
    transaction.commit().await?;
    Ok(RouteBatch { events: events.into_values().map(|(_, routed)| routed).collect() })
}

/// The deliverable subscriptions of the events' types, each with its limit.
async fn subscriptions(
    transaction: &mut Transaction<'_>,
    events: &BTreeMap<i64, (String, RoutedEvent)>,
    default_limit: u32,
) -> DbResult<HashMap<String, Vec<(i64, i64)>>> {
    let types: BTreeSet<&str> = events.values().map(|(event_type, _)| event_type.as_str()).collect();
    let mut found: HashMap<String, Vec<(i64, i64)>> = HashMap::new();
    for document in Batch::of(types, |event_type| [Field::Text(event_type)]) {
        let read: Vec<Row> = transaction.exec(SUBSCRIPTIONS, (document,)).await?;
        for mut row in read {
            let limit = take::<Option<i64>>(&mut row, 2)?.unwrap_or(default_limit.into());
            found.entry(take(&mut row, 1)?).or_default().push((take(&mut row, 0)?, limit));
        }
    }
    for subscriptions in found.values_mut() {
        subscriptions.sort_unstable();
    }
    Ok(found)
}

/// The sagas that there are, by event and subscription.
async fn sagas(transaction: &mut Transaction<'_>, events: &[String]) -> DbResult<HashMap<(i64, i64), i64>> {
    let mut found = HashMap::new();
    for document in events {
        let read: Vec<(i64, i64, i64)> = transaction.exec(SAGAS, (document,)).await?;
        found.extend(read.into_iter().map(|(saga, event, subscription)| ((event, subscription), saga)));
    }
    Ok(found)
}
