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
    EventDetail, EventFilter, EventHead, Page, PageRequest, QueueGauges, ReaderStore, Stats, StoreResult,
    Subscription, SubscriptionFilter,
};

const SCHEMA_VERSION: &str = "/* api_reader: schema_version */
SELECT max(version) FROM schema_migrations";

#[cfg(feature = "test-support")]
pub(crate) use stats::HOT;

pub(crate) struct Reader(pub(crate) RoleHandle);

#[async_trait]
impl ReaderStore for Reader {
    async fn events(&self, filter: &EventFilter, page: PageRequest) -> StoreResult<Page<EventHead>> {
        let filter = filter.clone();
        self.0.read(move |tx| events::list(tx, filter, page)).await
    }

    async fn event(&self, id: EventId) -> StoreResult<Option<EventDetail>> {
        self.0.read(move |tx| events::detail(tx, id)).await
    }

    async fn subscriptions(
        &self,
        filter: &SubscriptionFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Subscription>> {
        let filter = filter.clone();
        self.0.read(move |tx| subscriptions::list(tx, filter, page)).await
    }

    async fn subscription(&self, id: SubscriptionId) -> StoreResult<Option<Subscription>> {
        self.0.read(move |tx| subscriptions::one(tx, id)).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> StoreResult<Page<Delivery>> {
        let filter = filter.clone();
        self.0.read(move |tx| deliveries::list(tx, filter, page)).await
    }

    async fn delivery(&self, id: SagaId) -> StoreResult<Option<DeliveryDetail>> {
        self.0.read(move |tx| deliveries::detail(tx, id)).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: PageRequest,
    ) -> StoreResult<Page<DeadLetterSummary>> {
        let filter = filter.clone();
        self.0.read(move |tx| dead_letters::list(tx, filter, page)).await
    }

    async fn dead_letter(&self, id: DeadLetterId) -> StoreResult<Option<DeadLetterDetail>> {
        self.0.read(move |tx| dead_letters::detail(tx, id)).await
    }

    async fn gauges(&self) -> StoreResult<QueueGauges> {
        self.0.read(stats::gauges).await
    }

    async fn stats(&self) -> StoreResult<Stats> {
        self.0.read(stats::stats).await
    }

    async fn ready(&self) -> StoreResult<()> {
        let version =
            self.0.read(|tx| Ok(tx.prepare(SCHEMA_VERSION)?.query_row([], |row| row.get(0))?)).await?;
        schema::check(version)
    }
}
