//! Subscriptions.

use super::page;
use crate::{
    error::DbResult,
    roles::{
        batch::Batch,
        filter::Filter,
        subscription::{subscription, subscription_columns},
    },
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Conditions as _, ListQuery, Page, Subscription, SubscriptionFilter, TenantScope};
use mysql_async::{Conn, Row, prelude::Queryable as _};

const SELECT: &str = concat!("/* reader.subscriptions */ SELECT ", subscription_columns!(), " FROM ");
const GET: &str = concat!(
    "/* reader.subscription */ SELECT ",
    subscription_columns!(),
    " FROM subscriptions WHERE id = ? AND deleted_at IS NULL"
);

const URLS: &str = "/* reader.callback_urls */
SELECT s.id, s.tenant, s.callback_url
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
WHERE s.deleted_at IS NULL";

/// Subscriptions with a topic; those of one tenant are in the order of their ids.
const WITH_TOPIC: &str = "(SELECT subscription_id, topic, tenant AS topic_tenant FROM subscription_topics) i
JOIN subscriptions ON id = i.subscription_id";

pub(super) async fn list(
    mut connection: Conn,
    wanted: ListQuery<'_, SubscriptionFilter>,
) -> DbResult<Page<Subscription>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::of_page(scope, request);
    let from = match &wanted.event_type {
        Some(topic) => {
            filter.add_text("i.topic", Some(topic));
            filter.add_text("i.topic_tenant", scope.tenant());
            WITH_TOPIC
        }
        None => "subscriptions",
    };
    filter.add_flag("active", wanted.active);
    wanted.add_to(&mut filter);
    page(&mut connection, &format!("{SELECT}{from}"), "id", &filter, request, subscription).await
}

pub(super) async fn get(
    connection: &mut Conn,
    scope: &TenantScope,
    id: SubscriptionId,
) -> DbResult<Option<Subscription>> {
    let row: Option<Row> = connection.exec_first(GET, (id.0,)).await?;
    let found = row.map(subscription).transpose()?;
    Ok(found.filter(|found| scope.includes(&found.tenant)))
}

pub(super) async fn callback_urls(
    mut connection: Conn,
    scope: &TenantScope,
    ids: &[SubscriptionId],
) -> DbResult<Vec<(SubscriptionId, String)>> {
    let mut found = Vec::with_capacity(ids.len());
    for document in Batch::ids(ids.iter().map(|id| id.0)) {
        let rows: Vec<(i64, String, String)> = connection.exec(URLS, (document,)).await?;
        let own = rows.into_iter().filter(|(_, tenant, _)| scope.includes(tenant));
        found.extend(own.map(|(id, _, url)| (SubscriptionId(id), url)));
    }
    Ok(found)
}
