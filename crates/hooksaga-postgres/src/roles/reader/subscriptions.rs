//! Subscriptions.

use super::page;
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        subscription::{subscription, subscription_columns},
    },
};
use deadpool_postgres::Client;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Conditions as _, ListQuery, Page, Subscription, SubscriptionFilter, TenantScope};

const LIST: &str =
    concat!("/* reader.subscriptions */ SELECT ", subscription_columns!(), " FROM subscriptions");
const GET: &str = concat!(
    "/* reader.subscription */ SELECT ",
    subscription_columns!(),
    " FROM subscriptions WHERE id = $1 AND ($2::text IS NULL OR tenant = $2) AND deleted_at IS NULL"
);

const URLS: &str = "/* reader.callback_urls */
SELECT id, callback_url FROM subscriptions
WHERE id = ANY($1) AND ($2::text IS NULL OR tenant = $2) AND deleted_at IS NULL";

pub(super) async fn list(
    client: &Client,
    wanted: ListQuery<'_, SubscriptionFilter>,
) -> DbResult<Page<Subscription>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::of_page(scope, request);
    if let Some(topic) = &wanted.event_type {
        filter.add_around(
            "EXISTS (SELECT FROM subscription_topics t WHERE t.tenant = subscriptions.tenant \
             AND t.subscription_id = subscriptions.id AND t.topic = ",
            topic.to_string(),
            ")",
        );
    }
    filter.add_flag("active", wanted.active);
    wanted.add_to(&mut filter);
    page(client, LIST, "id", &filter, request, subscription).await
}

pub(super) async fn get(
    client: &Client,
    scope: &TenantScope,
    id: SubscriptionId,
) -> DbResult<Option<Subscription>> {
    let statement = client.prepare_cached(GET).await?;
    let row = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await?;
    row.as_ref().map(subscription).transpose()
}

pub(super) async fn callback_urls(
    client: &Client,
    scope: &TenantScope,
    ids: &[SubscriptionId],
) -> DbResult<Vec<(SubscriptionId, String)>> {
    let statement = client.prepare_cached(URLS).await?;
    let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    let rows = client.query(&statement, &[&ids, &scope.tenant()]).await?;
    rows.iter().map(|row| Ok((SubscriptionId(row.try_get(0)?), row.try_get(1)?))).collect()
}
