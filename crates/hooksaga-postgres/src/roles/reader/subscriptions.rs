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
use hooksaga_store::{Page, PageRequest, Subscription, SubscriptionFilter};

const LIST: &str =
    concat!("/* reader.subscriptions */ SELECT ", subscription_columns!(), " FROM subscriptions");
const GET: &str = concat!(
    "/* reader.subscription */ SELECT ",
    subscription_columns!(),
    " FROM subscriptions WHERE id = $1"
);

pub(super) async fn list(
    client: &Client,
    wanted: &SubscriptionFilter,
    request: PageRequest,
) -> DbResult<Page<Subscription>> {
    let mut filter = Filter::new();
    filter.add_some("id < ", request.before);
    filter.add_some("event_type = ", wanted.event_type.clone());
    filter.add_some("active = ", wanted.active);
    filter.add_some("verified = ", wanted.verified);
    page(client, LIST, "id", &filter, request, subscription).await
}

pub(super) async fn get(client: &Client, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    let statement = client.prepare_cached(GET).await?;
    client.query_opt(&statement, &[&id.0]).await?.as_ref().map(subscription).transpose()
}
