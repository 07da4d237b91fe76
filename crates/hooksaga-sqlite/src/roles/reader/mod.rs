//! `api_reader`: everything that the API and the metrics show. It cannot read secrets.

mod audit;
mod blocks;
mod counts;
mod dead_letters;
mod deliveries;
mod events;
mod failing;
mod health;
mod inventory;
mod redrives;
mod stats;
mod subscriptions;

use crate::{engine::RoleHandle, schema};
use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, EventId, RedriveId, SagaId, SubscriptionId};
use hooksaga_store::{
    AuditFilter, AuditRecord, DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Delivery,
    DeliveryDetail, DeliveryFilter, EventDetail, EventFilter, EventHead, FailingEndpoints, Inventory,
    ListQuery, LivingWorker, Page, PageRequest, QueueGauges, ReaderStore, Redrive, Stats, StoreResult,
    Subscription, SubscriptionDetail, SubscriptionFilter, TenantGauges, TenantScope, migration::Recorded,
};
use rusqlite::OptionalExtension;

const SCHEMA_VERSION: &str = "/* reader.schema_version */
SELECT version, fingerprint, lowest_program FROM schema_migrations ORDER BY version DESC LIMIT 1";

pub(in crate::roles) use deliveries::attempt;
#[cfg(feature = "test-support")]
pub(crate) use stats::HOT;

pub(crate) struct ReaderSql(pub(crate) RoleHandle);

#[async_trait]
impl ReaderStore for ReaderSql {
    async fn events(&self, wanted: ListQuery<'_, EventFilter>) -> StoreResult<Page<EventHead>> {
        let (scope, filter, page) = (wanted.scope.clone(), wanted.filter.clone(), wanted.page);
        self.0.list(move |tx| events::list(tx, &scope, filter, page)).await
    }

    async fn event(&self, scope: &TenantScope, id: EventId) -> StoreResult<Option<EventDetail>> {
        let scope = scope.clone();
        self.0.list(move |tx| events::detail(tx, &scope, id)).await
    }

    async fn subscriptions(
        &self,
        wanted: ListQuery<'_, SubscriptionFilter>,
    ) -> StoreResult<Page<Subscription>> {
        let (scope, filter, page) = (wanted.scope.clone(), wanted.filter.clone(), wanted.page);
        self.0.list(move |tx| subscriptions::list(tx, &scope, &filter, page)).await
    }

    async fn subscription(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>> {
        let scope = scope.clone();
        self.0.list(move |tx| subscriptions::one(tx, &scope, id)).await
    }

    async fn callback_urls(
        &self,
        scope: &TenantScope,
        ids: &[SubscriptionId],
    ) -> StoreResult<Vec<(SubscriptionId, String)>> {
        let (scope, ids) = (scope.clone(), ids.to_vec());
        self.0.list(move |tx| subscriptions::callback_urls(tx, &scope, &ids)).await
    }

    async fn subscription_detail(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<SubscriptionDetail>> {
        let scope = scope.clone();
        self.0
            .list(move |tx| {
                let Some(subscription) = subscriptions::one(tx, &scope, id)? else { return Ok(None) };
                Ok(Some(SubscriptionDetail { subscription, health: health::read(tx, id)? }))
            })
            .await
    }

    async fn deliveries(&self, wanted: ListQuery<'_, DeliveryFilter>) -> StoreResult<Page<Delivery>> {
        let (scope, filter, page) = (wanted.scope.clone(), wanted.filter.clone(), wanted.page);
        self.0.list(move |tx| deliveries::list(tx, &scope, &filter, page)).await
    }

    async fn delivery(&self, scope: &TenantScope, id: SagaId) -> StoreResult<Option<DeliveryDetail>> {
        let scope = scope.clone();
        self.0.list(move |tx| deliveries::detail(tx, &scope, id)).await
    }

    async fn deliveries_of(&self, scope: &TenantScope, ids: &[SagaId]) -> StoreResult<Vec<Delivery>> {
        let (scope, ids) = (scope.clone(), ids.to_vec());
        self.0.list(move |tx| deliveries::of_ids(tx, &scope, &ids)).await
    }

    async fn dead_letters(
        &self,
        wanted: ListQuery<'_, DeadLetterFilter>,
    ) -> StoreResult<Page<DeadLetterSummary>> {
        let (scope, filter, page) = (wanted.scope.clone(), wanted.filter.clone(), wanted.page);
        self.0.list(move |tx| dead_letters::list(tx, &scope, &filter, page)).await
    }

    async fn dead_letter(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
    ) -> StoreResult<Option<DeadLetterDetail>> {
        let scope = scope.clone();
        self.0.list(move |tx| dead_letters::detail(tx, &scope, id)).await
    }

    async fn audit(&self, wanted: ListQuery<'_, AuditFilter>) -> StoreResult<Page<AuditRecord>> {
        let (scope, filter, page) = (wanted.scope.clone(), wanted.filter.clone(), wanted.page);
        self.0.list(move |tx| audit::list(tx, &scope, &filter, page)).await
    }

    async fn redrives(&self, scope: &TenantScope, page: PageRequest) -> StoreResult<Page<Redrive>> {
        let scope = scope.clone();
        self.0.list(move |tx| redrives::list(tx, &scope, page)).await
    }

    async fn redrive(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<Option<Redrive>> {
        let scope = scope.clone();
        self.0.list(move |tx| redrives::one(tx, &scope, id)).await
    }

    async fn failing(&self, scope: &TenantScope, each: u32) -> StoreResult<FailingEndpoints> {
        let scope = scope.clone();
        self.0.list(move |tx| failing::list(tx, &scope, each)).await
    }

    async fn gauges(&self) -> StoreResult<QueueGauges> {
        self.0.watch(stats::gauges).await
    }

    async fn tenant_gauges(&self, tenant: &str) -> StoreResult<TenantGauges> {
        let tenant = tenant.to_owned();
        self.0.list(move |tx| stats::tenant_gauges(tx, &tenant)).await
    }

    async fn stats(&self, scope: &TenantScope) -> StoreResult<Stats> {
        let scope = scope.clone();
        self.0.list(move |tx| stats::stats(tx, &scope)).await
    }

    async fn stats_in_all(&self, scope: &TenantScope) -> StoreResult<Stats> {
        let scope = scope.clone();
        self.0.list(move |tx| stats::in_all(tx, &scope)).await
    }

    async fn workers(&self) -> StoreResult<Vec<LivingWorker>> {
        self.0.list(stats::workers).await
    }

    async fn inventory(&self) -> StoreResult<Inventory> {
        self.0.watch(inventory::read).await
    }

    async fn ready(&self) -> StoreResult<i64> {
        let last = self
            .0
            .read(|tx| {
                let last = tx.prepare(SCHEMA_VERSION)?.query_row([], |row| {
                    Ok(Recorded {
                        version: row.get(0)?,
                        fingerprint: row.get(1)?,
                        lowest_program: row.get(2)?,
                    })
                });
                Ok(last.optional()?)
            })
            .await?;
        schema::check(last.as_ref())
    }
}
