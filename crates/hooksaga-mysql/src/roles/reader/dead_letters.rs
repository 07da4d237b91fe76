//! Dead letters.

use super::page;
use crate::{
    error::{DbError, DbResult},
    roles::{dead_letters::filter_letters, filter::Filter, rows::take, tenant::has_few_letters},
    time::Time,
};
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Listing, Page, TenantScope};
use mysql_async::{Conn, Row, prelude::Queryable as _};
use std::sync::Arc;

/// `successor`: the saga that a requeue made of the letter.
const COLUMNS: &str = "/* reader.dead_letters */
SELECT d.id, d.saga_id, d.event_id, e.event_type, d.subscription_id, d.final_error_code, d.created_at,
       successor.id, e.tenant
FROM ";
const LETTERS: &str = "dead_letters d";
/// For a tenant that has few.
const LETTERS_OF_TENANT: &str = "subscriptions sub FORCE INDEX (idx_sub_tenant)
STRAIGHT_JOIN dead_letters d FORCE INDEX (idx_dead_letter_subscription) ON d.subscription_id = sub.id";
const JOINED: &str = "
JOIN events e ON e.id = d.event_id
JOIN webhook_delivery_sagas s ON s.id = d.saga_id
LEFT JOIN webhook_delivery_sagas successor
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1";

const PAYLOAD: &str = "/* reader.dead_letter_payload */ SELECT payload FROM dead_letters WHERE id = ?";

pub(super) async fn list(
    mut connection: Conn,
    wanted: Listing<'_, DeadLetterFilter>,
) -> DbResult<Page<DeadLetterSummary>> {
    let Listing { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    filter.add_some("d.id < ", request.before);
    filter_letters(&mut filter, scope, wanted);
    match wanted.requeued {
        Some(true) => filter.add_fixed("successor.id IS NOT NULL"),
        Some(false) => filter.add_fixed("successor.id IS NULL"),
        None => {}
    }
    let from = match scope.tenant() {
        Some(tenant)
            if wanted.subscription_id.is_none() && has_few_letters(&mut connection, tenant).await? =>
        {
            filter.add_identifier("sub.tenant = ", Some(tenant));
            LETTERS_OF_TENANT
        }
        _ => LETTERS,
    };
    page(&mut connection, &format!("{COLUMNS}{from}{JOINED}"), "d.id", &filter, request, summary).await
}

pub(super) async fn get(
    mut connection: Conn,
    scope: &TenantScope,
    id: DeadLetterId,
) -> DbResult<Option<DeadLetterDetail>> {
    let sql = format!("{COLUMNS}{LETTERS}{JOINED} WHERE d.id = ?");
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
        created_at: take::<Time>(row, 6)?.0,
        requeued_saga_id: take::<Option<i64>>(row, 7)?.map(SagaId),
    })
}
