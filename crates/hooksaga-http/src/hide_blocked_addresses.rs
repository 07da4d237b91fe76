//! Hides from customers whether a name exists in this server's network.
//!
//! A callback to a name that leads to a blocked address fails with `BLOCKED_ADDRESS`, one to a name that leads nowhere with
//! `DNS_FAILED`. If customers saw the difference, they could explore the operator's network. So everything that is read
//! for one tenant shows the second code for both, whoever asks: what an operator reads with `tenant=` is what the tenant
//! sees. A key without a tenant that asks for no tenant, and the log, see the real one.

use async_trait::async_trait;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, RedriveId, SagaId, SubscriptionId};
use hooksaga_store::{
    AuditFilter, AuditRecord, CreateOutcome, DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Delivery,
    DeliveryDetail, DeliveryFilter, EventDetail, EventFilter, EventHead, FailingEndpoints, Inventory,
    ListQuery, LivingWorker, NewSubscription, Page, PageRequest, QueueGauges, ReaderStore, Redrive, Seals,
    SecretRotation, Stats, StoreResult, Subscription, SubscriptionAdminStore, SubscriptionDetail,
    SubscriptionFilter, SubscriptionPatch, TenantGauges, TenantScope, UpdateOutcome,
};
use std::sync::Arc;

/// A store that shows one tenant `DNS_FAILED` for both codes.
pub(crate) struct Discreet<S: ?Sized>(pub(crate) Arc<S>);

/// The stored codes that this code of a filter means.
fn meant(scope: &TenantScope, code: &ErrorCode) -> Vec<ErrorCode> {
    let mut codes = vec![code.clone(), ErrorCode::BLOCKED_ADDRESS];
    codes.retain(|stored| scope.matches_code(Some(code), stored));
    codes.dedup();
    codes
}

fn hide(scope: &TenantScope, code: &mut ErrorCode) {
    let shown = scope.shown_code(code).clone();
    *code = shown;
}

fn delivery(scope: &TenantScope, mut delivery: Delivery) -> Delivery {
    delivery.final_error_code.iter_mut().for_each(|code| hide(scope, code));
    delivery
}

fn subscription(scope: &TenantScope, mut subscription: Subscription) -> Subscription {
    subscription.verification.last_error.iter_mut().for_each(|code| hide(scope, code));
    subscription
}

fn letter(scope: &TenantScope, mut letter: DeadLetterSummary) -> DeadLetterSummary {
    hide(scope, &mut letter.final_error_code);
    letter
}

fn each<T>(page: Page<T>, change: impl FnMut(T) -> T) -> Page<T> {
    Page { items: page.items.into_iter().map(change).collect(), next: page.next }
}

#[async_trait]
impl ReaderStore for Discreet<dyn ReaderStore> {
    async fn events(&self, wanted: ListQuery<'_, EventFilter>) -> StoreResult<Page<EventHead>> {
        self.0.events(wanted).await
    }

    async fn event(&self, scope: &TenantScope, id: EventId) -> StoreResult<Option<EventDetail>> {
        let found = self.0.event(scope, id).await?;
        Ok(found.map(|mut event| {
            event.deliveries = event.deliveries.into_iter().map(|it| delivery(scope, it)).collect();
            event
        }))
    }

    async fn subscriptions(
        &self,
        wanted: ListQuery<'_, SubscriptionFilter>,
    ) -> StoreResult<Page<Subscription>> {
        Ok(each(self.0.subscriptions(wanted).await?, |it| subscription(wanted.scope, it)))
    }

    async fn subscription(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>> {
        Ok(self.0.subscription(scope, id).await?.map(|it| subscription(scope, it)))
    }

    async fn callback_urls(
        &self,
        scope: &TenantScope,
        ids: &[SubscriptionId],
    ) -> StoreResult<Vec<(SubscriptionId, String)>> {
        self.0.callback_urls(scope, ids).await
    }

    async fn subscription_detail(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<SubscriptionDetail>> {
        let found = self.0.subscription_detail(scope, id).await?;
        Ok(found.map(|mut detail| {
            detail.health.last_failure.iter_mut().for_each(|it| hide(scope, &mut it.error_code));
            SubscriptionDetail { subscription: subscription(scope, detail.subscription), ..detail }
        }))
    }

    async fn deliveries(&self, wanted: ListQuery<'_, DeliveryFilter>) -> StoreResult<Page<Delivery>> {
        Ok(each(self.0.deliveries(wanted).await?, |it| delivery(wanted.scope, it)))
    }

    async fn delivery(&self, scope: &TenantScope, id: SagaId) -> StoreResult<Option<DeliveryDetail>> {
        let found = self.0.delivery(scope, id).await?;
        Ok(found.map(|mut detail| {
            detail.attempts.iter_mut().filter_map(|it| it.error_code.as_mut()).for_each(|it| hide(scope, it));
            DeliveryDetail { delivery: delivery(scope, detail.delivery), ..detail }
        }))
    }

    async fn deliveries_of(&self, scope: &TenantScope, ids: &[SagaId]) -> StoreResult<Vec<Delivery>> {
        let found = self.0.deliveries_of(scope, ids).await?;
        Ok(found.into_iter().map(|it| delivery(scope, it)).collect())
    }

    async fn dead_letters(
        &self,
        wanted: ListQuery<'_, DeadLetterFilter>,
    ) -> StoreResult<Page<DeadLetterSummary>> {
        let ListQuery { scope, filter, page } = wanted;
        let Some(code) = &filter.final_error_code else {
            return Ok(each(self.0.dead_letters(wanted).await?, |it| letter(scope, it)));
        };
        let (mut items, mut more) = (Vec::new(), false);
        for code in meant(scope, code) {
            let filter = DeadLetterFilter { final_error_code: Some(code), ..filter.clone() };
            let found = self.0.dead_letters(page.of(scope, &filter)).await?;
            items.extend(found.items.into_iter().map(|it| letter(scope, it)));
            more |= found.next.is_some();
        }
        items.sort_by_key(|letter| std::cmp::Reverse(letter.id.0));
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        more |= items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|last| last.id.0);
        Ok(Page { items, next })
    }

    async fn dead_letter(
        &self,
        scope: &TenantScope,
        id: DeadLetterId,
    ) -> StoreResult<Option<DeadLetterDetail>> {
        let found = self.0.dead_letter(scope, id).await?;
        Ok(found.map(|detail| DeadLetterDetail { summary: letter(scope, detail.summary), ..detail }))
    }

    async fn redrives(&self, scope: &TenantScope, page: PageRequest) -> StoreResult<Page<Redrive>> {
        self.0.redrives(scope, page).await
    }

    async fn redrive(&self, scope: &TenantScope, id: RedriveId) -> StoreResult<Option<Redrive>> {
        self.0.redrive(scope, id).await
    }

    async fn audit(&self, wanted: ListQuery<'_, AuditFilter>) -> StoreResult<Page<AuditRecord>> {
        self.0.audit(wanted).await
    }

    async fn failing(&self, scope: &TenantScope, each: u32) -> StoreResult<FailingEndpoints> {
        let mut failing = self.0.failing(scope, each).await?;
        failing.shown.iter_mut().for_each(|endpoint| hide(scope, &mut endpoint.last_error));
        Ok(failing)
    }

    async fn gauges(&self) -> StoreResult<QueueGauges> {
        self.0.gauges().await
    }

    async fn tenant_gauges(&self, tenant: &str) -> StoreResult<TenantGauges> {
        self.0.tenant_gauges(tenant).await
    }

    async fn stats(&self, scope: &TenantScope) -> StoreResult<Stats> {
        self.0.stats(scope).await
    }

    async fn stats_in_all(&self, scope: &TenantScope) -> StoreResult<Stats> {
        self.0.stats_in_all(scope).await
    }

    async fn workers(&self) -> StoreResult<Vec<LivingWorker>> {
        self.0.workers().await
    }

    async fn inventory(&self) -> StoreResult<Inventory> {
        self.0.inventory().await
    }

    async fn ready(&self) -> StoreResult<i64> {
        self.0.ready().await
    }
}

#[async_trait]
impl SubscriptionAdminStore for Discreet<dyn SubscriptionAdminStore> {
    async fn create(&self, new: &NewSubscription, secrets: &dyn Seals) -> StoreResult<CreateOutcome> {
        // Nothing has been sent to it yet.
        self.0.create(new, secrets).await
    }

    async fn update(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        patch: &SubscriptionPatch,
    ) -> StoreResult<UpdateOutcome> {
        Ok(match self.0.update(scope, id, patch).await? {
            UpdateOutcome::Updated(updated) => UpdateOutcome::Updated(subscription(scope, updated)),
            other => other,
        })
    }

    async fn request_verification(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        vouched_by: Option<&str>,
    ) -> StoreResult<Option<Subscription>> {
        Ok(self.0.request_verification(scope, id, vouched_by).await?.map(|it| subscription(scope, it)))
    }

    async fn delete(&self, scope: &TenantScope, id: SubscriptionId) -> StoreResult<bool> {
        self.0.delete(scope, id).await
    }

    async fn rotate_secret(&self, scope: &TenantScope, rotation: &SecretRotation) -> StoreResult<bool> {
        self.0.rotate_secret(scope, rotation).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.0.secret_key_ids().await
    }
}
