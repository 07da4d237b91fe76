//! Dead letters.

use super::cut;
use crate::{
    error::{DbError, DbResult},
    roles::{filter::Filter, rows::take},
    time::SqlTime,
};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, ListQuery, Page, TenantScope};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::sync::Arc;

/// `successor`: the saga that a requeue of the letter created.
const COLUMNS: &str = "/* reader.dead_letters */
SELECT d.id, d.saga_id, d.event_id, e.event_type, d.subscription_id, d.final_error_code, d.created_at,
       successor.id, e.tenant
FROM ";
const JOINED: &str = "
STRAIGHT_JOIN events e FORCE INDEX (PRIMARY) ON e.id = d.event_id
STRAIGHT_JOIN webhook_delivery_sagas s FORCE INDEX (PRIMARY) ON s.id = d.saga_id
LEFT JOIN webhook_delivery_sagas successor FORCE INDEX (uniq_saga_event_subscription)
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1";

const PAYLOAD: &str = "/* reader.dead_letter_payload */ SELECT payload FROM dead_letters WHERE id = ?";

/// A page is found by `letter_heads` alone, which has all filter columns: however few letters match, only the letters, events
/// and sagas of the page are read.
pub(super) async fn list(
    mut connection: Conn,
    wanted: ListQuery<'_, DeadLetterFilter>,
) -> DbResult<Page<DeadLetterSummary>> {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let index = match scope {
        _ if wanted.subscription_id.is_some() => "idx_head_subscription",
        TenantScope::One(_) => "idx_head_tenant",
        TenantScope::All if wanted.event_type.is_some() => "idx_head_type",
        TenantScope::All if is_alone(wanted) => "idx_head_requeued",
        TenantScope::All => "PRIMARY",
    };
    let mut filter = Filter::new();
    filter.add_some("h.letter_id < ", request.before);
    filter.add_some("h.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    wanted.add_to(scope, &mut filter);
    let limit = usize::try_from(request.limit).map_err(DbError::unreadable)?;
    let sql = format!(
        "{COLUMNS}(SELECT h.letter_id FROM letter_heads h FORCE INDEX ({index}) {} ORDER BY h.letter_id DESC LIMIT {}) p
STRAIGHT_JOIN dead_letters d FORCE INDEX (PRIMARY) ON d.id = p.letter_id{JOINED}
ORDER BY d.id DESC",
        filter.where_clause(),
        limit + 1
    );
    cut(connection.exec(sql, filter.parameters()).await?, limit, summary)
}

/// Whether `requeued` is the only filter. With another one its index would be read row by row.
fn is_alone(wanted: &DeadLetterFilter) -> bool {
    let alone = DeadLetterFilter { requeued: wanted.requeued, ..DeadLetterFilter::default() };
    wanted.requeued.is_some() && *wanted == alone
}

pub(super) async fn get(
    mut connection: Conn,
    scope: &TenantScope,
    id: DeadLetterId,
) -> DbResult<Option<DeadLetterDetail>> {
    let sql = format!("{COLUMNS}dead_letters d{JOINED} WHERE d.id = ?");
    let row: Option<Row> = connection.exec_first(sql, (id.0,)).await?;
    let found = row.map(summary).transpose()?.filter(|letter| scope.includes(&letter.tenant));
    let Some(summary) = found else { return Ok(None) };
    let payload: Option<String> = connection.exec_first(PAYLOAD, (id.0,)).await?;
    let payload = Arc::from(payload.ok_or_else(|| DbError::unreadable("a letter without its payload"))?);
    Ok(Some(DeadLetterDetail { summary, payload }))
}

fn summary(mut row: Row) -> DbResult<DeadLetterSummary> {
    let row = &mut row;
    Ok(DeadLetterSummary {
        id: DeadLetterId(take(row, 0)?),
        tenant: take(row, 8)?,
        saga_id: SagaId(take(row, 1)?),
        event_id: EventId(take(row, 2)?),
        event_type: take(row, 3)?,
        subscription_id: SubscriptionId(take(row, 4)?),
        final_error_code: ErrorCode::from_stored(take(row, 5)?),
        created_at: take::<SqlTime>(row, 6)?.0,
        requeued_saga_id: take::<Option<i64>>(row, 7)?.map(SagaId),
    })
}
