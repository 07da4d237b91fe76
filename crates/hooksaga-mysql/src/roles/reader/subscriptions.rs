//! Subscriptions.

use super::page;
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        subscription::{subscription, subscription_columns},
    },
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Page, PageRequest, Subscription, SubscriptionFilter};
use mysql_async::{Conn, Row, prelude::Queryable as _};

const LIST: &str =
    concat!("/* reader.subscriptions */ SELECT ", subscription_columns!(), " FROM subscriptions");
const GET: &str =
    concat!("/* reader.subscription */ SELECT ", subscription_columns!(), " FROM subscriptions WHERE id = ?");

pub(super) async fn list(
    mut connection: Conn,
    wanted: &SubscriptionFilter,
    request: PageRequest,
) -> DbResult<Page<Subscription>> {
    let mut filter = Filter::new();
    filter.add_some("id < ", request.before);
    filter.add_some("event_type = ", wanted.event_type.as_deref());
    filter.add_some("active = ", wanted.active);
    filter.add_some("verified = ", wanted.verified);
    page(&mut connection, LIST, "id", &filter, request, subscription).await
}

pub(super) async fn get(mut connection: Conn, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    let row: Option<Row> = connection.exec_first(GET, (id.0,)).await?;
    row.map(subscription).transpose()
}
