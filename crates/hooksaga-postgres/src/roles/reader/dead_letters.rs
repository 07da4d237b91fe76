//! Dead letters.

use super::cut;
use crate::{
    error::{DbError, DbResult},
    roles::filter::Filter,
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, ListQuery, Page, TenantScope};
use std::sync::Arc;
use tokio_postgres::Row;

/// `successor`: the saga that a requeue made of the letter.
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

/// A page is found among the heads alone, which say all that lists are filtered by: however few match, no letter, event or
/// saga is looked at but those of the page. (Whichever index the planner takes, or none: a head is narrow.)
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
    filter.add_some("h.letter_id < ", request.before);
    filter.add_scope("h.tenant = ", scope);
    filter.add_some("h.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("h.event_type = ", wanted.event_type.clone());
    filter.add_some("h.final_error_code = ", wanted.final_error_code.clone());
    filter.add_period("h.created_at", wanted.created_after, wanted.created_before);
    filter.add_some("h.requeued = ", wanted.requeued);
    let most = filter.number(i64::from(request.limit) + 1);
    let ids = format!(
        "SELECT h.letter_id FROM letter_heads h {} ORDER BY h.letter_id DESC LIMIT {most}",
        filter.where_clause()
    );
    (format!("{SELECT} WHERE d.id = ANY (ARRAY({ids})) ORDER BY d.id DESC"), filter)
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
