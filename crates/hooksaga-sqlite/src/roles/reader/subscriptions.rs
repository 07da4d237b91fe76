//! Subscriptions.

use super::list::{Access, Source, page};
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        subscription::{subscription, subscription_columns},
    },
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
    let mut filters = Filter::default();
    filters.add_some("event_type = ?", filter.event_type);
    filters.add_some("+active = ?", filter.active);
    filters.add_some("verified = ?", filter.verified);
    page(tx, LIST, &filters, Access::RecentFirst, request, subscription, |it| it.id.0)
}

pub(super) fn one(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    Ok(tx.prepare(ONE)?.query_row([id.0], subscription).optional()?)
}
