//! Subscriptions.

use super::list::{Access, Filters, Source, page};
use crate::{
    error::DbResult,
    roles::rows::{self, subscription_columns},
    session::Tx,
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Page, PageRequest, Subscription, SubscriptionFilter};
use rusqlite::OptionalExtension;

const LIST: Source = Source {
    select: concat!("/* api_reader: subscriptions */ SELECT ", subscription_columns!()),
    from: "subscriptions",
    from_unindexed: "subscriptions NOT INDEXED",
    id: "id",
    newest: "/* api_reader: newest_subscription */ SELECT max(id) FROM subscriptions",
};

const ONE: &str = concat!(
    "/* api_reader: subscription */ SELECT ",
    subscription_columns!(),
    " FROM subscriptions WHERE id = ?1"
);

pub(super) fn list(
    tx: &Tx<'_>,
    filter: SubscriptionFilter,
    request: PageRequest,
) -> DbResult<Page<Subscription>> {
    let mut filters = Filters::default();
    filters.add("event_type = ?", filter.event_type);
    filters.add("+active = ?", filter.active);
    filters.add("verified = ?", filter.verified);
    page(tx, LIST, &filters, Access::RecentFirst, request, rows::subscription, |it| it.id.0)
}

pub(super) fn one(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    Ok(tx.prepare(ONE)?.query_row([id.0], rows::subscription).optional()?)
}
