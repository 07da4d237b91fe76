//! `api_reader`: everything that the API and the metrics show. Lists are pages by id, newest first.

mod dead_letters;
mod deliveries;
mod events;
pub(crate) mod stats;
mod subscriptions;

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{filter::Filter, rows::take},
    schema::{self, MIGRATIONS},
};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Delivery, DeliveryDetail, DeliveryFilter,
    EventDetail, EventFilter, EventHead, LivingWorker, Page, PageRequest, QueueGauges, ReaderStore, Stats,
    StoreResult, Subscription, SubscriptionFilter, TenantScope,
    migration::{check_current, check_released},
};
use mysql_async::{Conn, Row, prelude::Queryable as _};

pub(crate) struct Reader {
    pool: RolePool,
}

impl Reader {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }

    /// For signals.
    pub(crate) fn pool(&self) -> RolePool {
        self.pool.clone()
    }
}

#[async_trait]
impl ReaderStore for Reader {
    async fn events(
        &self,
        scope: &TenantScope,
        filter: &EventFilter,
        page: PageRequest,
    ) -> StoreResult<Page<EventHead>> {
        self.pool.run(|connection| events::list(connection, scope, filter, page)).await
    }

    async fn event(&self, scope: &TenantScope, id: EventId) -> StoreResult<Option<EventDetail>> {
        self.pool.run(|connection| events::get(connection, scope, id)).await
    }

    async fn subscriptions(
        &self,
        scope: &TenantScope,
        filter: &SubscriptionFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Subscription>> {
        self.pool.run(|connection| subscriptions::list(connection, scope, filter, page)).await
    }

    async fn subscription(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>> {
        self.pool.run(|connection| subscriptions::get(connection, scope, id)).await
    }

    async fn deliveries(
        &self,
        scope: &TenantScope,
        filter: &DeliveryFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Delivery>> {
        self.pool.run(|connection| deliveries::list(connection, scope, filter, page)).await
    }

    async fn delivery(&self, scope: &TenantScope, id: SagaId) -> StoreResult<Option<DeliveryDetail>> {
        self.pool.run(|connection| deliveries::get(connection, scope, id)).await
    }

    async fn dead_letters(
        &self,
        scope: &TenantScope,
        filter: &DeadLetterFilter,
        page: PageRequest,
    ) -> StoreResult<Page<DeadLetterSummary>> {
        self.pool.run(|connection| dead_letters::list(connection, scope, filter, page)).await
    }

    async fn dead_letter(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
    ) -> StoreResult<Option<DeadLetterDetail>> {
        self.pool.run(|connection| dead_letters::get(connection, scope, id)).await
    }

    async fn gauges(&self) -> StoreResult<QueueGauges> {
        self.pool.run(stats::gauges).await
    }

    async fn stats(&self, scope: &TenantScope) -> StoreResult<Stats> {
        self.pool.run(|connection| stats::stats(connection, scope)).await
    }

    async fn workers(&self) -> StoreResult<Vec<LivingWorker>> {
        self.pool.run(stats::workers).await
    }

    async fn ready(&self) -> StoreResult<()> {
        let recorded =
            self.pool.run(|mut connection| async move { schema::recorded(&mut connection).await }).await?;
        check_released(&recorded, MIGRATIONS)?;
        check_current(recorded.last().map_or(0, |(version, _)| *version), MIGRATIONS)
    }
}

/// One page of `select`, whose first column is the id by which it is ordered. One row more than asked for is read: it
/// says whether there is more.
async fn page<T>(
    connection: &mut Conn,
    select: &str,
    id: &str,
    filter: &Filter,
    page: PageRequest,
    read: fn(Row) -> DbResult<T>,
) -> DbResult<Page<T>> {
    let limit = usize::try_from(page.limit).map_err(DbError::unreadable)?;
    let sql =
        format!("{select} {} ORDER BY {id} DESC LIMIT {}", filter.where_clause(), u64::from(page.limit) + 1);
    let mut rows: Vec<Row> = connection.exec(sql, filter.parameters()).await?;
    let mut next = None;
    if rows.len() > limit {
        rows.truncate(limit);
        next = rows.last().map(|last| take(&mut last.clone(), 0)).transpose()?;
    }
    Ok(Page { items: rows.into_iter().map(read).collect::<Result<_, _>>()?, next })
}
