//! Dead letters.

use super::list::{Access, Listed, Source, page};
use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::{DeadLetterId, EventId, SagaId, SubscriptionId, Timestamp};
use hooksaga_store::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Page, PageRequest, TenantScope};
use rusqlite::{OptionalExtension, Row};

/// What [`summary`] reads, in its order.
macro_rules! columns {
    () => {
        "d.id, d.saga_id, d.event_id, e.event_type, d.subscription_id, d.final_error_code, d.created_at, n.id, e.tenant"
    };
}

/// `n` is the saga that a requeue has made: the one of the next generation.
macro_rules! joins {
    () => {
        " CROSS JOIN events AS e ON e.id = d.event_id
          CROSS JOIN webhook_delivery_sagas AS g ON g.id = d.saga_id
           LEFT JOIN webhook_delivery_sagas AS n
             ON n.event_id = g.event_id AND n.subscription_id = g.subscription_id
            AND n.generation = g.generation + 1"
    };
}

const LIST: Source = Source {
    select: concat!("/* api_reader: dead_letters */ SELECT ", columns!()),
    from: concat!("dead_letters AS d", joins!()),
    from_unindexed: concat!("dead_letters AS d NOT INDEXED", joins!()),
    id: "d.id",
    newest: "/* api_reader: newest_dead_letter */ SELECT max(id) FROM dead_letters",
};

/// For one tenant's: from its subscriptions to their letters.
const OF_TENANT: Source = Source {
    from: concat!(
        "subscriptions AS s INDEXED BY idx_sub_tenant CROSS JOIN dead_letters AS d ON d.subscription_id = s.id",
        joins!()
    ),
    from_unindexed: concat!(
        "dead_letters AS d NOT INDEXED CROSS JOIN subscriptions AS s ON s.id = d.subscription_id",
        joins!()
    ),
    ..LIST
};

const ONE: &str = concat!(
    "/* api_reader: dead_letter */ SELECT ",
    columns!(),
    ", d.payload FROM dead_letters AS d",
    joins!(),
    " WHERE d.id = ?1 AND (?2 IS NULL OR e.tenant = ?2)"
);

pub(super) fn list(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: DeadLetterFilter,
    request: PageRequest,
) -> DbResult<Page<DeadLetterSummary>> {
    let (source, access) = match scope {
        TenantScope::One(_) if filter.subscription_id.is_none() => (OF_TENANT, Access::RecentFirst),
        TenantScope::One(_) | TenantScope::All => (LIST, Access::Direct),
    };
    let mut filters = Filter::default();
    filters.add_some("+e.tenant = ?", scope.tenant().map(str::to_owned));
    if source.from == OF_TENANT.from {
        filters.add_some("s.tenant = ?", scope.tenant().map(str::to_owned));
    }
    // Its index has the ids in order too.
    filters.add_some("d.subscription_id = ?", filter.subscription_id.map(|id| id.0));
    filters.add_some("+e.event_type = ?", filter.event_type);
    filters.add_some("d.final_error_code = ?", filter.final_error_code);
    filters.add_some("d.created_at >= ?", filter.created_after.map(Timestamp::as_micros));
    filters.add_some("d.created_at < ?", filter.created_before.map(Timestamp::as_micros));
    filters.add_some("(n.id IS NOT NULL) = ?", filter.requeued);
    page(
        tx,
        &Listed { source, access, filter: &filters, read: summary, id: |letter| letter.id.0 },
        None,
        request,
    )
}

pub(super) fn detail(
    tx: &Tx<'_>,
    scope: &TenantScope,
    id: DeadLetterId,
) -> DbResult<Option<DeadLetterDetail>> {
    let read =
        |row: &Row<'_>| Ok(DeadLetterDetail { summary: summary(row)?, payload: rows::shared_text(row, 9)? });
    Ok(tx.prepare(ONE)?.query_row((id.0, scope.tenant()), read).optional()?)
}

fn summary(row: &Row<'_>) -> rusqlite::Result<DeadLetterSummary> {
    Ok(DeadLetterSummary {
        id: DeadLetterId(row.get(0)?),
        saga_id: SagaId(row.get(1)?),
        event_id: EventId(row.get(2)?),
        event_type: row.get(3)?,
        subscription_id: SubscriptionId(row.get(4)?),
        final_error_code: rows::error_code(row, 5)?,
        created_at: rows::time(row, 6)?,
        requeued_saga_id: row.get::<_, Option<i64>>(7)?.map(SagaId),
        tenant: row.get(8)?,
    })
}
