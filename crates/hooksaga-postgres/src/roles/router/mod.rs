//! `router_worker`: inserts one saga per event and matching subscription.

pub(crate) mod statements;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        correlations::Correlations,
        insert_without_conflicts::{Insert, Inserter},
        rows::{bigint, count, integer},
        scan_position::Frontier,
    },
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    Examined, LargeEvent, ListedLimits, RouteBatch, RouteLimits, RoutedEvent, RoutedSaga, RouterStore,
    SmallLimits, StoreResult, Unmatched,
};
use statements::{EXAMINE, FEW, QUEUED, ROUTE_FEW, ROUTE_FEW_LISTED, ROUTE_MANY, ROUTE_MANY_LISTED};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio_postgres::{Row, types::ToSql};

/// Ids are handed out before the commits of ingestion, of which two groups run at a time in each process. What commits
/// later than that much after it is routed within a second. What an application commits later announces its place (`wake`).
const MARGIN: i64 = 2000;

pub(crate) struct RouterSql {
    pool: RolePool,
    frontier: Arc<Frontier>,
    sagas: Inserter,
    /// The last pass was one for [`ROUTE_MANY`], so the next one probably is, too. Lost, it costs one statement.
    many: AtomicBool,
    correlations: Arc<Correlations>,
}

impl RouterSql {
    pub(crate) fn new(pool: RolePool, frontier: Arc<Frontier>, correlations: Arc<Correlations>) -> Self {
        Self { pool, frontier, sagas: Inserter::default(), many: AtomicBool::new(false), correlations }
    }

    /// How far routing came along the queue.
    pub(crate) fn frontier() -> Arc<Frontier> {
        Arc::new(Frontier::new(MARGIN))
    }

    /// What was routed, and the last event.
    async fn route_from(
        &self,
        client: &Client,
        limits: RouteLimits,
        default_limit: u32,
        from: i64,
    ) -> DbResult<(RouteBatch, Option<i64>)> {
        // A pass that could consider nobody would never get on; a cost is an integer, and one more than the limit is read.
        let most = bigint(limits.sagas.clamp(1, u32::MAX >> 2));
        let (events, default_limit) = (bigint(limits.events), integer(default_limit));
        let mut routed = None;
        if !self.many.load(Ordering::Relaxed) {
            let few = bigint(FEW);
            let parameters: [&(dyn ToSql + Sync); 5] = [&events, &default_limit, &from, &most, &few];
            routed = routed_events(&self.sagas.run(client, ROUTE_FEW, &parameters).await?)?;
        }
        let routed = if let Some(routed) = routed {
            routed
        } else {
            let parameters: [&(dyn ToSql + Sync); 4] = [&events, &default_limit, &from, &most];
            let routed = routed_events(&self.sagas.run(client, ROUTE_MANY, &parameters).await?)?;
            routed.ok_or_else(|| DbError::unreadable("a pass that did nothing"))?
        };
        let is_many = |event: &RoutedEvent| !event.complete || event.sagas.len() > FEW as usize;
        self.many.store(routed.iter().any(is_many), Ordering::Relaxed);
        self.remember(&routed);
        let reached = routed.last().map(|event| event.event_id.0);
        Ok((RouteBatch { events: routed }, reached))
    }
}

impl RouterSql {
    fn remember(&self, routed: &[RoutedEvent]) {
        let matched = routed.iter().filter(|event| !event.sagas.is_empty());
        self.correlations
            .remember(matched.map(|event| (event.event_id.0, &*event.tenant, &*event.correlation_id)));
    }

    /// Runs a statement for listed events; `None` if it did nothing because they match too many.
    async fn run_listed(
        &self,
        client: &Client,
        statement: Insert,
        events: &[i64],
        sagas: u32,
        (default_limit, few): (u32, Option<u32>),
    ) -> DbResult<Option<Vec<RoutedEvent>>> {
        let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
        let (default_limit, most) = (integer(default_limit), bigint(sagas.clamp(1, u32::MAX >> 2)));
        let few = few.map(bigint);
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&count, &default_limit, &events, &most];
        if let Some(few) = &few {
            parameters.push(few);
        }
        let routed = routed_events(&self.sagas.run(client, statement, &parameters).await?)?;
        self.remember(routed.as_deref().unwrap_or_default());
        Ok(routed)
    }

    async fn examine(&self, client: &Client, events: &[EventId], limits: SmallLimits) -> DbResult<Examined> {
        let each = limits.each.clamp(1, FEW);
        let statement = client.prepare_cached(EXAMINE).await?;
        let mut found = BTreeMap::new();
        for kind in client.query(&statement, &[&ids(events), &bigint(each)]).await? {
            let (events, matching) = (kind.try_get::<_, Vec<i64>>(0)?, count(kind.try_get(3)?));
            let (tenant, event_type): (String, String) = (kind.try_get(1)?, kind.try_get(2)?);
            for id in events {
                let event_id = EventId(id);
                let event = LargeEvent { event_id, tenant: tenant.clone(), event_type: event_type.clone() };
                found.insert(id, (matching, event));
            }
        }
        let sagas = limits.sagas.max(each);
        let (mut small, mut left, mut examined) = (Vec::new(), u64::from(sagas), Examined::default());
        for (id, (matching, event)) in found {
            if matching > u64::from(each) {
                examined.large.push(event);
            } else if matching > left {
                examined.next = Some(EventId(id));
                break;
            } else {
                left -= matching;
                small.push(id);
            }
        }
        if !small.is_empty() {
            // If subscriptions were added meanwhile and these no longer fit, nothing is done: they are examined again.
            let how = (limits.default_limit, Some(each));
            let routed = self.run_listed(client, ROUTE_FEW_LISTED, &small, sagas, how).await?;
            examined.routed = routed.unwrap_or_default();
        }
        Ok(examined)
    }
}

fn ids(events: &[EventId]) -> Vec<i64> {
    events.iter().map(|id| id.0).collect()
}

/// The events of a pass with their sagas; `None` if it did not fit.
fn routed_events(rows: &[Row]) -> DbResult<Option<Vec<RoutedEvent>>> {
    // A UNION ALL returns its halves in order: the events, then all their sagas, and whom they missed, in one line.
    let (sagas, events) = rows.split_last().ok_or_else(|| DbError::unreadable("no sagas"))?;
    if !sagas.try_get::<_, bool>(3)? {
        return Ok(None);
    }
    let mut routed = BTreeMap::new();
    for row in events {
        let event = RoutedEvent {
            event_id: EventId(row.try_get(0)?),
            tenant: row.try_get(2)?,
            event_type: row.try_get(13)?,
            correlation_id: row.try_get(1)?,
            sagas: Vec::new(),
            unmatched: Unmatched::default(),
            complete: row.try_get(3)?,
            unwanted: !row.try_get::<_, bool>(11)?,
        };
        routed.insert(event.event_id, event);
    }
    let column = |index| -> DbResult<Vec<i64>> {
        Ok(sagas.try_get::<_, Option<Vec<i64>>>(index)?.unwrap_or_default())
    };
    for ((event_id, saga_id), subscription_id) in column(4)?.into_iter().zip(column(5)?).zip(column(6)?) {
        let saga = RoutedSaga { saga_id: SagaId(saga_id), subscription_id: SubscriptionId(subscription_id) };
        let event = routed.get_mut(&EventId(event_id));
        event.ok_or_else(|| DbError::unreadable("a saga without its event"))?.sagas.push(saga);
    }
    let missed = column(7)?.into_iter().zip(column(8)?).zip(column(9)?).zip(column(10)?);
    for (((event_id, disabled), paused), unverified) in missed {
        if let Some(event) = routed.get_mut(&EventId(event_id)) {
            let [disabled, paused, unverified] = [disabled, paused, unverified].map(count);
            event.unmatched = Unmatched { paused, disabled, unverified };
        }
    }
    // Where a conflict was looked for, an event may have matched subscriptions that have their sagas already.
    let matched: HashSet<i64> = column(12)?.into_iter().collect();
    for event in routed.values_mut() {
        let nobody = event.sagas.is_empty() && !matched.contains(&event.event_id.0);
        event.unwanted &= event.complete && nobody;
    }
    Ok(Some(routed.into_values().collect()))
}

#[async_trait]
impl RouterStore for RouterSql {
    async fn route(&self, limits: RouteLimits, default_limit: u32) -> StoreResult<RouteBatch> {
        let route = |client| async move {
            self.frontier.scan(|from| self.route_from(&client, limits, default_limit, from)).await
        };
        self.pool.run(route).await
    }

    async fn queued(&self, after: EventId, limit: u32) -> StoreResult<Vec<EventId>> {
        let read = |client: Client| async move {
            let statement = client.prepare_cached(QUEUED).await?;
            let rows = client.query(&statement, &[&after.0, &bigint(limit)]).await?;
            rows.iter().map(|row| Ok(EventId(row.try_get(0)?))).collect()
        };
        self.pool.run(read).await
    }

    async fn route_small(&self, events: &[EventId], limits: SmallLimits) -> StoreResult<Examined> {
        self.pool.run(|client| async move { self.examine(&client, events, limits).await }).await
    }

    async fn route_listed(&self, events: &[EventId], limits: ListedLimits) -> StoreResult<RouteBatch> {
        let listed = ids(events);
        let listed = &listed;
        let ListedLimits { sagas, default_limit } = limits;
        let route = |client: Client| async move {
            let how = (default_limit, None);
            let routed = self.run_listed(&client, ROUTE_MANY_LISTED, listed, sagas, how).await?;
            let events = routed.ok_or_else(|| DbError::unreadable("a pass that did nothing"))?;
            Ok(RouteBatch { events })
        };
        self.pool.run(route).await
    }
}
