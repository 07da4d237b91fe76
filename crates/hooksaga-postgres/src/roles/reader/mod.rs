//! `api_reader`: everything that the API and the metrics show. Lists are pages by id, newest first.

mod audit;
pub(crate) mod blocks;
pub(crate) mod counts;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod events;
mod failing;
pub(crate) mod health;
mod inventory;
mod redrives;
pub(crate) mod stats;
mod subscriptions;
mod tenant_stats;
mod workers;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::filter::Filter,
    schema::{MIGRATIONS, RECORDED, recorded},
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{DeadLetterId, EventId, RedriveId, SagaId, SubscriptionId};
use hooksaga_store::{
    AuditFilter, AuditRecord, DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Delivery,
    DeliveryDetail, DeliveryFilter, EventDetail, EventFilter, EventHead, FailingEndpoints, Inventory,
    ListQuery, LivingWorker, Page, PageRequest, QueryQueue, QueueGauges, ReaderStore, Redrive, Stats,
    StoreResult, Subscription, SubscriptionDetail, SubscriptionFilter, TenantGauges, TenantScope,
    migration::{check_released, check_usable},
};
use std::sync::Arc;
use tokio_postgres::Row;

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

    /// Runs a query that may be slow: then its session's time limit ends it. A query whose caller has gone is cancelled,
    /// and keeps its turn and its connection until it has ended.
    async fn list<T, W, F>(&self, work: W) -> StoreResult<T>
    where
        W: Fn(Arc<Client>) -> F,
        F: Future<Output = DbResult<T>>,
    {
        self.query(&self.line, work).await
    }

    async fn query<T, W, F>(&self, line: &QueryQueue, work: W) -> StoreResult<T>
    where
        W: Fn(Arc<Client>) -> F,
        F: Future<Output = DbResult<T>>,
    {
        let turn = line.turn().await?;
        let work = &work;
        let query = |client| async move { work(client).await.map_err(DbError::of_a_query) };
        self.lists.run_in_turn(turn, query).await
    }
}

#[async_trait]
impl ReaderStore for ReaderSql {
    async fn events(&self, wanted: ListQuery<'_, EventFilter>) -> StoreResult<Page<EventHead>> {
        self.list(|client| async move { events::list(&client, wanted).await }).await
    }

    async fn event(&self, scope: &TenantScope, id: EventId) -> StoreResult<Option<EventDetail>> {
        self.list(|client| async move { events::get(&client, scope, id).await }).await
    }

    async fn subscriptions(
        &self,
        wanted: ListQuery<'_, SubscriptionFilter>,
    ) -> StoreResult<Page<Subscription>> {
        self.list(|client| async move { subscriptions::list(&client, wanted).await }).await
    }

    async fn subscription(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>> {
        self.list(|client| async move { subscriptions::get(&client, scope, id).await }).await
    }

    async fn callback_urls(
        &self,
        scope: &TenantScope,
        ids: &[SubscriptionId],
    ) -> StoreResult<Vec<(SubscriptionId, String)>> {
        self.list(|client| async move { subscriptions::callback_urls(&client, scope, ids).await }).await
    }

    async fn subscription_detail(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<SubscriptionDetail>> {
        let read = |client: Arc<Client>| async move {
            let Some(subscription) = subscriptions::get(&client, scope, id).await? else { return Ok(None) };
            Ok(Some(SubscriptionDetail { subscription, health: health::read(&client, id).await? }))
        };
        self.list(read).await
    }

    async fn deliveries(&self, wanted: ListQuery<'_, DeliveryFilter>) -> StoreResult<Page<Delivery>> {
        self.list(|client| async move { deliveries::list(&client, wanted).await }).await
    }

    async fn delivery(&self, scope: &TenantScope, id: SagaId) -> StoreResult<Option<DeliveryDetail>> {
        self.list(|client| async move { deliveries::get(&client, scope, id).await }).await
    }

    async fn deliveries_of(&self, scope: &TenantScope, ids: &[SagaId]) -> StoreResult<Vec<Delivery>> {
        self.list(|client| async move { deliveries::of_ids(&client, scope, ids).await }).await
    }

    async fn dead_letters(
        &self,
        wanted: ListQuery<'_, DeadLetterFilter>,
    ) -> StoreResult<Page<DeadLetterSummary>> {
        self.list(|client| async move { dead_letters::list(&client, wanted).await }).await
    }

    async fn dead_letter(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
    ) -> StoreResult<Option<DeadLetterDetail>> {
        self.list(|client| async move { dead_letters::get(&client, scope, id).await }).await
    }

    async fn audit(&self, wanted: ListQuery<'_, AuditFilter>) -> StoreResult<Page<AuditRecord>> {
        self.list(|client| async move { audit::list(&client, wanted).await }).await
    }

    async fn redrives(&self, scope: &TenantScope, page: PageRequest) -> StoreResult<Page<Redrive>> {
        self.list(|client| async move { redrives::list(&client, scope, page).await }).await
    }

    async fn redrive(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<Option<Redrive>> {
        self.list(|client| async move { redrives::get(&client, scope, id).await }).await
    }

    async fn failing(&self, scope: &TenantScope, each: u32) -> StoreResult<FailingEndpoints> {
        self.list(|client| async move { failing::list(&client, scope, each).await }).await
    }

    async fn gauges(&self) -> StoreResult<QueueGauges> {
        self.query(&self.watch, |client| async move { stats::gauges(&client).await }).await
    }

    async fn tenant_gauges(&self, tenant: &str) -> StoreResult<TenantGauges> {
        self.list(|client| async move { tenant_stats::gauges(&client, tenant).await }).await
    }

    async fn stats(&self, scope: &TenantScope) -> StoreResult<Stats> {
        self.list(|client| async move { stats::stats(&client, scope).await }).await
    }

    async fn stats_in_all(&self, scope: &TenantScope) -> StoreResult<Stats> {
        self.list(|client| async move { stats::in_all(&client, scope).await }).await
    }

    async fn workers(&self) -> StoreResult<Vec<LivingWorker>> {
        self.list(|client| async move { workers::list(&client).await }).await
    }

    async fn inventory(&self) -> StoreResult<Inventory> {
        self.query(&self.watch, |client| async move { inventory::read(&client).await }).await
    }

    async fn ready(&self) -> StoreResult<i64> {
        let recorded = self
            .prompt
            .run(|client| async move {
                let statement = client.prepare_cached(RECORDED).await?;
                Ok(recorded(&client.query(&statement, &[]).await?)?)
            })
            .await?;
        check_released(&recorded, MIGRATIONS)?;
        check_usable(&recorded, MIGRATIONS)
    }
}

/// One page of `select`, whose first column is the id by which it is ordered. One row more than asked for is read:
/// it says whether there is more.
async fn page<T>(
    client: &Client,
    select: &str,
    id: &str,
    filter: &Filter,
    page: PageRequest,
    read: fn(&Row) -> DbResult<T>,
) -> DbResult<Page<T>> {
    let limit = usize::try_from(page.limit).map_err(DbError::unreadable)?;
    cut(&rows_of(client, select, id, filter, limit + 1).await?, limit, read)
}

/// The first rows in `filter`, newest first.
async fn rows_of(
    client: &Client,
    select: &str,
    id: &str,
    filter: &Filter,
    most: usize,
) -> DbResult<Vec<Row>> {
    let most = i64::try_from(most).map_err(DbError::unreadable)?;
    let statement = client.prepare_cached(&newest(select, id, filter)).await?;
    let mut parameters = filter.parameters();
    parameters.push(&most);
    Ok(client.query(&statement, &parameters).await?)
}

/// Their statement. How many they are is its last parameter: a session keeps each text that it has prepared.
fn newest(select: &str, id: &str, filter: &Filter) -> String {
    let number = filter.parameters().len() + 1;
    format!("{select} {} ORDER BY {id} DESC LIMIT ${number}", filter.where_clause())
}

/// Makes a page from the rows; there is one more than `limit` if there are more.
fn cut<T>(rows: &[Row], limit: usize, read: fn(&Row) -> DbResult<T>) -> DbResult<Page<T>> {
    let items = rows.iter().take(limit).map(read).collect::<DbResult<Vec<T>>>()?;
    let next = match rows.len() > limit {
        true => rows.get(limit.saturating_sub(1)).map(|last| last.try_get(0)).transpose()?,
        false => None,
    };
    Ok(Page { items, next })
}
