//! Dead letters.

use super::page;
use crate::{error::DbResult, roles::filter::Filter, time::Time};
use deadpool_postgres::Client;
use hooksaga_saga::{DeadLetterId, ErrorCode, EventId, SagaId, SubscriptionId};
use hooksaga_store::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, Listing, Page, TenantScope};
use std::sync::Arc;
use tokio_postgres::Row;

/// `successor`: the saga that a requeue made of the letter.
macro_rules! select {
    ($letters:literal) => {
        concat!(
            "/* reader.dead_letters */
SELECT d.id, d.saga_id, d.event_id, e.event_type, d.subscription_id, d.final_error_code, d.created_at,
       successor.id, e.tenant
FROM ",
            $letters,
            "
JOIN events e ON e.id = d.event_id
JOIN webhook_delivery_sagas s ON s.id = d.saga_id
LEFT JOIN webhook_delivery_sagas successor
    ON successor.event_id = s.event_id AND successor.subscription_id = s.subscription_id
   AND successor.generation = s.generation + 1"
        )
    };
}

const SELECT: &str = select!("dead_letters d");

const OF_TENANT: &str = "
SELECT d.id, d.saga_id, d.event_id, d.subscription_id, d.final_error_code, d.created_at
FROM dead_letters d JOIN subscriptions sub ON sub.id = d.subscription_id";

/// Not by the join, and not as EXISTS: the planner would join every letter before it looks for the newest.
const SUCCESSOR: &str = "(
    SELECT next.id FROM webhook_delivery_sagas own
    JOIN webhook_delivery_sagas next ON next.event_id = own.event_id AND next.subscription_id = own.subscription_id
                                    AND next.generation = own.generation + 1
    WHERE own.id = d.saga_id)";

const PAYLOAD: &str = "/* reader.dead_letter_payload */ SELECT payload FROM dead_letters WHERE id = $1";

pub(super) async fn list(
    client: &Client,
    wanted: Listing<'_, DeadLetterFilter>,
) -> DbResult<Page<DeadLetterSummary>> {
    let Listing { scope, filter: wanted, page: request } = wanted;
    let mut filter = Filter::new();
    filter.add_some("d.id < ", request.before);
    // By its subscriptions, of whose letters there is an index.
    filter.add_scope("sub.tenant = ", scope);
    filter.add_some("d.subscription_id = ", wanted.subscription_id.map(|id| id.0));
    filter.add_some("d.final_error_code = ", wanted.final_error_code.clone());
    filter.add_period("d.created_at", wanted.created_after, wanted.created_before);
    let select = match scope {
        TenantScope::All => SELECT.to_owned(),
        TenantScope::One(_) if wanted.requeued.is_none() => {
            format!("{SELECT} JOIN subscriptions sub ON sub.id = d.subscription_id")
        }
        // In their order first, and then one by one until the page is full: the planner would look for the successors of all.
        TenantScope::One(_) => {
            let inner = format!("{OF_TENANT} {} ORDER BY d.id DESC OFFSET 0", filter.take_inner());
            select!("(@letters@) d").replace("@letters@", &inner)
        }
    };
    filter.add_some("e.event_type = ", wanted.event_type.clone());
    match wanted.requeued {
        Some(true) => filter.add_fixed(&format!("{SUCCESSOR} IS NOT NULL")),
        Some(false) => filter.add_fixed(&format!("{SUCCESSOR} IS NULL")),
        None => {}
    }
    page(client, &select, "d.id", &filter, request, summary).await
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
        created_at: row.try_get::<_, Time>(6)?.0,
        requeued_saga_id: row.try_get::<_, Option<i64>>(7)?.map(SagaId),
    })
}
