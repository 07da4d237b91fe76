//! `api_reader`: everything that the API and the metrics show. Secrets are out of its reach.

mod dead_letters;
mod deliveries;
mod events;
mod list;
mod stats;
mod subscriptions;

use crate::{engine::RoleHandle, schema};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Delivery, DeliveryDetail, DeliveryFilter,
    EventDetail, EventFilter, EventHead, LivingWorker, Page, PageRequest, QueueGauges, ReaderStore, Stats,
    StoreResult, Subscription, SubscriptionFilter, TenantScope,
};

const SCHEMA_VERSION: &str = "/* api_reader: schema_version */
SELECT max(version) FROM schema_migrations";

#[cfg(feature = "test-support")]
pub(crate) use stats::HOT;

pub(crate) struct Reader(pub(crate) RoleHandle);

#[async_trait]
impl ReaderStore for Reader {
    async fn events(
        &self,
        scope: &TenantScope,
        filter: &EventFilter,
        page: PageRequest,
    ) -> StoreResult<Page<EventHead>> {
        let (scope, filter) = (scope.clone(), filter.clone());
        self.0.read(move |tx| events::list(tx, &scope, filter, page)).await
    }

    async fn event(&self, scope: &TenantScope, id: EventId) -> StoreResult<Option<EventDetail>> {
        let scope = scope.clone();
        self.0.read(move |tx| events::detail(tx, &scope, id)).await
    }

    async fn subscriptions(
        &self,
        scope: &TenantScope,
        filter: &SubscriptionFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Subscription>> {
        let (scope, filter) = (scope.clone(), filter.clone());
        self.0.read(move |tx| subscriptions::list(tx, &scope, filter, page)).await
    }

    async fn subscription(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>> {
        let scope = scope.clone();
        self.0.read(move |tx| subscriptions::one(tx, &scope, id)).await
    }

    async fn deliveries(
        &self,
        scope: &TenantScope,
        filter: &DeliveryFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Delivery>> {
        let (scope, filter) = (scope.clone(), filter.clone());
        self.0.read(move |tx| deliveries::list(tx, &scope, filter, page)).await
    }

    async fn delivery(&self, scope: &TenantScope, id: SagaId) -> StoreResult<Option<DeliveryDetail>> {
        let scope = scope.clone();
        self.0.read(move |tx| deliveries::detail(tx, &scope, id)).await
    }

    async fn dead_letters(
        &self,
        scope: &TenantScope,
        filter: &DeadLetterFilter,
        page: PageRequest,
    ) -> StoreResult<Page<DeadLetterSummary>> {
        let (scope, filter) = (scope.clone(), filter.clone());
        self.0.read(move |tx| dead_letters::list(tx, &scope, filter, page)).await
    }

    async fn dead_letter(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
    ) -> StoreResult<Option<DeadLetterDetail>> {
        let scope = scope.clone();
        self.0.read(move |tx| dead_letters::detail(tx, &scope, id)).await
    }

    async fn gauges(&self) -> StoreResult<QueueGauges> {
        self.0.read(stats::gauges).await
    }

    async fn stats(&self, scope: &TenantScope) -> StoreResult<Stats> {
        let scope = scope.clone();
        self.0.read(move |tx| stats::stats(tx, &scope)).await
    }

    async fn workers(&self) -> StoreResult<Vec<LivingWorker>> {
        self.0.read(stats::workers).await
    }

    async fn ready(&self) -> StoreResult<()> {
        let version =
            self.0.read(|tx| Ok(tx.prepare(SCHEMA_VERSION)?.query_row([], |row| row.get(0))?)).await?;
        schema::check(version)
    }
}
