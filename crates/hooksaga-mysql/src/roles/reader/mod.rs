//! `api_reader`: everything that the API and the metrics show. Lists are pages by id, newest first.

mod audit;
mod blocks;
pub(crate) mod counts;
mod dead_letters;
mod deliveries;
mod events;
mod failing;
pub(crate) mod health;
mod inventory;
mod redrives;
pub(crate) mod stats;
mod subscriptions;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{filter::Filter, rows::take},
    schema::{self, MIGRATIONS},
};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, EventId, RedriveId, SagaId, SubscriptionId};
use hooksaga_store::{
    AuditFilter, AuditRecord, DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Delivery,
    DeliveryDetail, DeliveryFilter, EventDetail, EventFilter, EventHead, FailingEndpoints, Inventory,
    ListQuery, LivingWorker, Page, PageRequest, QueryQueue, QueueGauges, ReaderStore, Redrive, Stats,
    StoreResult, Subscription, SubscriptionDetail, SubscriptionFilter, TenantGauges, TenantScope,
    migration::{check_released, check_usable},
};
use mysql_async::{Conn, Row, prelude::Queryable as _};

pub(crate) use deliveries::attempt;

pub(crate) struct ReaderSql {
    lists: RolePool,
    line: QueryQueue,
    /// The metrics have one of the connections for themselves: however slow lists are, alerts have their metrics.
    watch: QueryQueue,
    /// For readiness, which waits for no list.
    prompt: RolePool,
}

impl ReaderSql {
    /// `connections` is the number of those in `lists`.
    pub(crate) fn new(lists: RolePool, connections: usize, prompt: RolePool) -> Self {
        let line = QueryQueue::new(connections.saturating_sub(1));
        Self { lists, line, watch: QueryQueue::new(1), prompt }
    }

    /// Runs a query that may be slow: its session's time limit ends it. If its caller disconnects, the query is killed, and keeps
    /// its turn until then.
    async fn list<T, W, F>(&self, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        self.query(&self.line, work).await
    }

    async fn query<T, W, F>(&self, line: &QueryQueue, work: W) -> StoreResult<T>
    where
        W: Fn(Conn) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let turn = line.turn().await?;
        let work = &work;
        let query = |connection| async move { work(connection).await.map_err(DbError::of_a_query) };
        self.lists.run_in_turn(turn, &self.prompt, query).await
    }
}

#[async_trait]
impl ReaderStore for ReaderSql {
    async fn events(&self, wanted: ListQuery<'_, EventFilter>) -> StoreResult<Page<EventHead>> {
        self.list(|connection| events::list(connection, wanted)).await
    }

    async fn event(&self, scope: &TenantScope, id: EventId) -> StoreResult<Option<EventDetail>> {
        self.list(|connection| events::get(connection, scope, id)).await
    }

    async fn subscriptions(
        &self,
        wanted: ListQuery<'_, SubscriptionFilter>,
    ) -> StoreResult<Page<Subscription>> {
        self.list(|connection| subscriptions::list(connection, wanted)).await
    }

    async fn subscription(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>> {
        self.list(|mut connection| async move { subscriptions::get(&mut connection, scope, id).await }).await
    }

    async fn callback_urls(
        &self,
        scope: &TenantScope,
        ids: &[SubscriptionId],
    ) -> StoreResult<Vec<(SubscriptionId, String)>> {
        self.list(|connection| subscriptions::callback_urls(connection, scope, ids)).await
    }

    async fn subscription_detail(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<SubscriptionDetail>> {
        let read = |mut connection: Conn| async move {
            let Some(subscription) = subscriptions::get(&mut connection, scope, id).await? else {
                return Ok(None);
            };
            Ok(Some(SubscriptionDetail { subscription, health: health::read(&mut connection, id).await? }))
        };
        self.list(read).await
    }

    async fn deliveries(&self, wanted: ListQuery<'_, DeliveryFilter>) -> StoreResult<Page<Delivery>> {
        self.list(|connection| deliveries::list(connection, wanted)).await
    }

    async fn delivery(&self, scope: &TenantScope, id: SagaId) -> StoreResult<Option<DeliveryDetail>> {
        self.list(|connection| deliveries::get(connection, scope, id)).await
    }

    async fn deliveries_of(&self, scope: &TenantScope, ids: &[SagaId]) -> StoreResult<Vec<Delivery>> {
        self.list(|connection| deliveries::of_given_ids(connection, scope, ids)).await
    }

    async fn dead_letters(
        &self,
        wanted: ListQuery<'_, DeadLetterFilter>,
    ) -> StoreResult<Page<DeadLetterSummary>> {
        self.list(|connection| dead_letters::list(connection, wanted)).await
    }

    async fn dead_letter(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
    ) -> StoreResult<Option<DeadLetterDetail>> {
        self.list(|connection| dead_letters::get(connection, scope, id)).await
    }

    async fn audit(&self, wanted: ListQuery<'_, AuditFilter>) -> StoreResult<Page<AuditRecord>> {
        self.list(|connection| audit::list(connection, wanted)).await
    }

    async fn redrives(&self, scope: &TenantScope, page: PageRequest) -> StoreResult<Page<Redrive>> {
        self.list(|connection| redrives::list(connection, scope, page)).await
    }

    async fn redrive(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<Option<Redrive>> {
        self.list(|connection| redrives::get(connection, scope, id)).await
    }

    async fn failing(&self, scope: &TenantScope, each: u32) -> StoreResult<FailingEndpoints> {
        self.list(|connection| failing::list(connection, scope, each)).await
    }

    async fn gauges(&self) -> StoreResult<QueueGauges> {
        self.query(&self.watch, stats::gauges).await
    }

    async fn tenant_gauges(&self, tenant: &str) -> StoreResult<TenantGauges> {
        self.list(|connection| stats::tenant_gauges(connection, tenant)).await
    }

    async fn stats(&self, scope: &TenantScope) -> StoreResult<Stats> {
        self.list(|connection| stats::stats(connection, scope)).await
    }

    async fn stats_in_all(&self, scope: &TenantScope) -> StoreResult<Stats> {
        self.list(|connection| stats::in_all(connection, scope)).await
    }

    async fn workers(&self) -> StoreResult<Vec<LivingWorker>> {
        self.list(stats::workers).await
    }

    async fn inventory(&self) -> StoreResult<Inventory> {
        self.query(&self.watch, inventory::read).await
    }

    async fn ready(&self) -> StoreResult<i64> {
        let recorded =
            self.prompt.run(|mut connection| async move { schema::recorded(&mut connection).await }).await?;
        check_released(&recorded, MIGRATIONS)?;
        check_usable(&recorded, MIGRATIONS)
    }
}

/// One page of `select`, which is ordered by its first column, the id. It reads one row more than the page has, to learn whether
/// there are more.
async fn page<T>(
    connection: &mut Conn,
    select: &str,
    id: &str,
    filter: &Filter,
    page: PageRequest,
    read: fn(Row) -> DbResult<T>,
) -> DbResult<Page<T>> {
    let limit = usize::try_from(page.limit).map_err(DbError::unreadable)?;
    cut(rows_of(connection, select, id, filter, limit + 1).await?, limit, read)
}

/// The first rows in `filter`, newest first.
async fn rows_of(
    connection: &mut Conn,
    select: &str,
    id: &str,
    filter: &Filter,
    most: usize,
) -> DbResult<Vec<Row>> {
    let sql = format!("{select} {} ORDER BY {id} DESC LIMIT {most}", filter.where_clause());
    Ok(connection.exec(sql, filter.parameters()).await?)
}

/// Makes a page from the rows; there is one more than `limit` if there are more.
fn cut<T>(mut rows: Vec<Row>, limit: usize, read: fn(Row) -> DbResult<T>) -> DbResult<Page<T>> {
    let mut next = None;
    if rows.len() > limit {
        rows.truncate(limit);
        next = rows.last().map(|last| take(&mut last.clone(), 0)).transpose()?;
    }
    Ok(Page { items: rows.into_iter().map(read).collect::<Result<_, _>>()?, next })
}
