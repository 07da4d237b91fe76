//! Dead letters.

use super::cut;
use crate::{
    error::{DbError, DbResult},
    roles::filter::Filter,
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{
    Conditions as _, DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, ListQuery, Page, TenantScope,
};
use std::sync::Arc;
use tokio_postgres::Row;

/// `successor`: the saga that a requeue of the letter created.
const SELECT: &str = "/* reader.dead_letters */
SELECT d.id, d.saga_id, d.event_id, e.event_type, d.subscription_id, d.final_error_code, d.created_at,
       successor.id, e.tenant
FROM dead_letters d
JOIN events e ON e.id = d.event_id
JOIN webhook_delivery_sagas s ON s.id = d.saga_id
LEFT JOIN webhook_delivery_sagas successor
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1";

const PAYLOAD: &str = "/* reader.dead_letter_payload */ SELECT payload FROM dead_letters WHERE id = $1";

/// A page is found by `letter_heads` alone, which has all filter columns: however few letters match, only the letters, events
/// and sagas of the page are read.
pub(super) async fn list(
    client: &Client,
    wanted: ListQuery<'_, DeadLetterFilter>,
) -> DbResult<Page<DeadLetterSummary>> {
    let limit = usize::try_from(wanted.page.limit).map_err(DbError::unreadable)?;
    let (sql, filter) = page_of(wanted);
    let statement = client.prepare_cached(&sql).await?;
    cut(&client.query(&statement, &filter.parameters()).await?, limit, summary)
}

pub(crate) fn page_of(wanted: ListQuery<'_, DeadLetterFilter>) -> (String, Filter) {
    let ListQuery { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    let leading = leading(&mut filter, scope, wanted);
    let (condition, order) = filter.range("h.letter_id", leading.as_ref(), 0..request.top());
    filter.add_fixed(&condition);
    let leads = |column: &str| leading.as_ref().is_some_and(|(leads, _)| *leads == column);
    filter.add_text("h.tenant", scope.tenant().filter(|_| !leads("h.tenant")));
    filter.add_text("h.event_type", wanted.event_type.as_ref().filter(|_| !leads("h.event_type")));
    filter.add_text("h.final_error_code", wanted.final_error_code.as_ref());
    filter.add_period("h.created_at", wanted.created_after, wanted.created_before);
    filter.add_some("h.requeued = ", wanted.requeued.filter(|_| !leads("h.requeued")));
    let most = filter.number(i64::from(request.limit) + 1);
    let ids = format!(
        "SELECT h.letter_id FROM letter_heads h {} ORDER BY {order} LIMIT {most}",
        filter.where_clause()
    );
    (format!("{SELECT} WHERE d.id = ANY (ARRAY({ids})) ORDER BY d.id DESC"), filter)
}

/// The column whose index leads to the fewest heads, and its value.
fn leading(
    filter: &mut Filter,
    scope: &TenantScope,
    wanted: &DeadLetterFilter,
) -> Option<(&'static str, String)> {
    match (wanted.subscription_id, scope.tenant(), &wanted.event_type, wanted.requeued) {
        (Some(id), ..) => Some(("h.subscription_id", filter.number(id.0))),
        (None, Some(tenant), ..) => Some(("h.tenant", filter.number(tenant.to_owned()))),
        (None, None, Some(event_type), _) => Some(("h.event_type", filter.number(event_type.to_string()))),
        (None, None, None, Some(requeued)) if is_alone(wanted) => {
            Some(("h.requeued", filter.number(requeued)))
        }
        _ => None,
    }
}

/// Whether `requeued` is the only filter. With another one its index would be read row by row.
fn is_alone(wanted: &DeadLetterFilter) -> bool {
    *wanted == DeadLetterFilter { requeued: wanted.requeued, ..DeadLetterFilter::default() }
}

pub(super) async fn get(
    client: &Client,
    scope: &TenantScope,
    id: DeadLetterId,
) -> DbResult<Option<DeadLetterDetail>> {
    let sql = format!("{SELECT} WHERE d.id = $1 AND ($2::text IS NULL OR e.tenant = $2)");
    let statement = client.prepare_cached(&sql).await?;
    let row = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await?;
    let Some(row) = row else { return Ok(None) };
    let statement = client.prepare_cached(PAYLOAD).await?;
    let payload = client.query_one(&statement, &[&id.0]).await?;
    let payload = Arc::from(payload.try_get::<_, &str>(0)?);
    Ok(Some(DeadLetterDetail { summary: summary(&row)?, payload }))
}

fn summary(row: &Row) -> DbResult<DeadLetterSummary> {
    Ok(DeadLetterSummary {
        id: DeadLetterId(row.try_get(0)?),
        tenant: row.try_get(8)?,
        saga_id: SagaId(row.try_get(1)?),
        event_id: EventId(row.try_get(2)?),
        event_type: row.try_get(3)?,
        subscription_id: SubscriptionId(row.try_get(4)?),
        final_error_code: ErrorCode::from_stored(row.try_get(5)?),
        created_at: row.try_get::<_, SqlTime>(6)?.0,
        requeued_saga_id: row.try_get::<_, Option<i64>>(7)?.map(SagaId),
    })
}
