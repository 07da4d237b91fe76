//! Subscriptions.

use super::blocks::{Access, Listed, Source, page};
use crate::{
    error::DbResult,
    roles::{
        filter::Filter,
        subscription::{subscription, subscription_columns},
    },
    session::Tx,
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Conditions as _, Page, PageRequest, Subscription, SubscriptionFilter, TenantScope};
use rusqlite::OptionalExtension;

const LIST: Source = Source {
    select: concat!("/* reader.subscriptions */ SELECT ", subscription_columns!()),
    from: "subscriptions",
    from_unindexed: "subscriptions NOT INDEXED",
    id: "subscriptions.id",
    newest: "/* reader.newest_subscription */ SELECT max(id) FROM subscriptions",
};

/// For one tenant's: its index has the ids in order, too.
const OF_TENANT: Source = Source { from: "subscriptions INDEXED BY idx_sub_tenant", ..LIST };

/// For a callback URL: it has few.
const BY_URL: Source = Source { from: "subscriptions INDEXED BY idx_sub_url", ..LIST };

/// For one tenant's of one topic: the routing index has their ids in order, too.
const BY_TOPIC: Source = Source {
    from: "subscription_topics CROSS JOIN subscriptions ON subscriptions.id = subscription_topics.subscription_id",
    id: "subscription_topics.subscription_id",
    ..LIST
};

const ONE: &str = concat!(
    "/* reader.subscription */ SELECT ",
    subscription_columns!(),
    " FROM subscriptions WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2) AND deleted_at IS NULL"
);

const URL: &str = "/* reader.callback_url */
SELECT callback_url FROM subscriptions WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2) AND deleted_at IS NULL";

pub(super) fn list(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: &SubscriptionFilter,
    request: PageRequest,
) -> DbResult<Page<Subscription>> {
    let topic = filter.event_type.as_ref();
    let mut filters = Filter::default();
    let source = match (scope, topic, &filter.callback_url) {
        (_, _, Some(_)) => BY_URL,
        (TenantScope::One(_), Some(_), None) => BY_TOPIC,
        (TenantScope::One(_), None, None) => OF_TENANT,
        (TenantScope::All, _, None) => LIST,
    };
    if source.id == BY_TOPIC.id {
        filters.add_text("subscription_topics.tenant", scope.tenant());
        filters.add_text("subscription_topics.topic", topic);
    } else {
        filters.add_text("subscriptions.tenant", scope.tenant());
        filters.add_some(
            "EXISTS (SELECT 1 FROM subscription_topics AS t
                      WHERE t.subscription_id = subscriptions.id AND t.topic = ?)",
            topic.map(ToString::to_string),
        );
    }
    filters.add_flag("+active", filter.active);
    filter.add_to(&mut filters);
    page(
        tx,
        &Listed { source, access: Access::Direct, filter: &filters, read: subscription, id: |it| it.id.0 },
        None,
        request,
    )
}

pub(super) fn one(tx: &Tx<'_>, scope: &TenantScope, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    Ok(tx.prepare(ONE)?.query_row((id.0, scope.tenant()), subscription).optional()?)
}

pub(super) fn callback_urls(
    tx: &Tx<'_>,
    scope: &TenantScope,
    ids: &[SubscriptionId],
) -> DbResult<Vec<(SubscriptionId, String)>> {
    let mut url = tx.prepare(URL)?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let text: Option<String> = url.query_row((id.0, scope.tenant()), |row| row.get(0)).optional()?;
        found.extend(text.map(|text| (*id, text)));
    }
    Ok(found)
}
