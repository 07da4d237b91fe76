//! Dead letters.

use crate::{
    error::DbResult,
    roles::{filter::Filter, rows},
    session::Tx,
};
use hooksaga_saga::{DeadLetterId, EventId, SagaId, SubscriptionId};
use hooksaga_store::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Page, PageRequest, TenantScope};
use rusqlite::{OptionalExtension, Row, params_from_iter};

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

const LIST: &str =
    concat!("/* reader.dead_letters */ SELECT ", columns!(), " FROM dead_letters AS d", joins!());

const ONE: &str = concat!(
    "/* reader.dead_letter */ SELECT ",
    columns!(),
    ", d.payload FROM dead_letters AS d",
    joins!(),
    " WHERE d.id = ?1 AND (?2 IS NULL OR e.tenant = ?2)"
);

/// A page is found by `letter_heads` alone, which has all filter columns: however few letters match, only the letters, events
/// and sagas of the page are read.
pub(super) fn list(
    tx: &Tx<'_>,
    scope: &TenantScope,
    filter: &DeadLetterFilter,
    request: PageRequest,
) -> DbResult<Page<DeadLetterSummary>> {
    let heads = match scope {
        _ if filter.subscription_id.is_some() => "INDEXED BY idx_head_subscription",
        TenantScope::One(_) => "INDEXED BY idx_head_tenant",
        TenantScope::All if filter.event_type.is_some() => "INDEXED BY idx_head_type",
        TenantScope::All if is_alone(filter) => "INDEXED BY idx_head_requeued",
        TenantScope::All => "NOT INDEXED",
    };
    let mut filters = Filter::default();
    filters.add_some("h.letter_id < ?", request.before);
    filters.add_some("h.subscription_id = ?", filter.subscription_id.map(|id| id.0));
    filter.add_to(scope, &mut filters);
    let sql = format!(
        "{LIST} WHERE d.id IN (SELECT h.letter_id FROM letter_heads AS h {heads} WHERE true{}
                                ORDER BY h.letter_id DESC LIMIT {})
          ORDER BY d.id DESC",
        filters.sql(),
        i64::from(request.limit) + 1
    );
    let mut statement = tx.prepare(&sql)?;
    let letters = statement.query_map(params_from_iter(filters.values()), summary)?;
    let letters = letters.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(Page::cut(letters, request.limit, |letter| letter.id.0))
}

/// Whether `requeued` is the only filter. With another one its index would be read row by row.
fn is_alone(wanted: &DeadLetterFilter) -> bool {
    let alone = DeadLetterFilter { requeued: wanted.requeued, ..DeadLetterFilter::default() };
    wanted.requeued.is_some() && *wanted == alone
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
