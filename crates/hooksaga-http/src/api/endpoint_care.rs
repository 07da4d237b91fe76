//! More actions on a subscription: deleting it, and sending it a test event.

use crate::{
    api::{events::new_correlation_id, subscriptions::no_such},
    audit,
    auth::{Admin, Allowed, Caller},
    body::Unread,
    dto::TestDelivery,
    openapi::{BodyProblems, Conflict, KeyProblems, NoSuchRow},
    path::Id,
    problem::{Kind, Problem},
    query::NoParams,
    state::{ApiState, SharedState},
};
use axum::{Json, extract::State};
use hooksaga_saga::{CallbackUrl, EventType, SubscriptionId, Tenant};
use hooksaga_store::{Appended, NewEvent, Stage, Subscription, TenantScope, TestOutcome};
use http::{StatusCode, header};
use serde_json::json;

/// Delete a subscription
///
/// It disappears from lists and routing for good, and its secrets and headers are removed. Its open deliveries end as dead
/// letters with the error `SUBSCRIPTION_DELETED`, each when it is due. Its history stays.
#[utoipa::path(
    delete, path = "/v1/subscriptions/{id}", tag = "subscriptions", operation_id = "delete_subscription",
    security(("key" = ["admin"])),
    params(("id" = i64, Path, minimum = 1)),
    responses((status = 204, description = "Deleted"), NoSuchRow, BodyProblems, KeyProblems)
)]
pub(crate) async fn delete(
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<StatusCode, Problem> {
    body.nothing(&state.bodies).await?;
    delete_from(&state, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes it, and wakes what ends its open deliveries.
pub(crate) async fn delete_from(state: &ApiState, caller: &Caller, id: i64) -> Result<(), Problem> {
    let scope = caller.scope(None)?;
    // Its record says whose it was.
    let found = state.reader.subscription(&scope, SubscriptionId(id)).await?.ok_or_else(|| no_such(id))?;
    if !state.admin.delete(&scope, SubscriptionId(id)).await? {
        return Err(no_such(id));
    }
    audit::about(format!("subscriptions/{id}"), &found.tenant);
    // What waited for it ends now: sagas that are due, and jobs that were parked.
    state.signals.wake_schedule([SubscriptionId(id)]);
    state.signals.wake(Stage::Resume);
    tracing::info!(subscription_id = id, tenant = %found.tenant, "subscription deleted");
    Ok(())
}

/// Send a test event
///
/// An event of the type `hooksaga.test` goes to this subscription alone, whatever its topics, on the way that every event
/// takes. The response leads to its delivery.
#[utoipa::path(
    post, path = "/v1/subscriptions/{id}/test", tag = "subscriptions", operation_id = "test_subscription",
    security(("key" = ["admin"])),
    params(("id" = i64, Path, minimum = 1)),
    responses(
        (status = 201, description = "The test event and its delivery", body = TestDelivery,
            headers(("location" = String, description = "The delivery's path"))),
        Conflict, NoSuchRow, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn test(
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<(StatusCode, [(header::HeaderName, String); 1], Json<TestDelivery>), Problem> {
    body.nothing(&state.bodies).await?;
    let sent = send_test(&state, &caller, id).await?;
    let location = [(header::LOCATION, format!("/v1/deliveries/{}", sent.saga_id))];
    Ok((StatusCode::CREATED, location, Json(sent)))
}

/// Stores a test event and its delivery. A crash in between leaves an event that goes nowhere.
pub(crate) async fn send_test(state: &ApiState, caller: &Caller, id: i64) -> Result<TestDelivery, Problem> {
    let scope = caller.scope(None)?;
    let subscription = state.reader.subscription(&scope, SubscriptionId(id)).await?;
    let subscription = subscription.ok_or_else(|| no_such(id))?;
    if !(subscription.active && subscription.verified) {
        return Err(not_ready(id));
    }
    // A stored URL is one that was accepted; what is not one any more is not sent to either.
    if let Ok(url) = CallbackUrl::parse(&subscription.callback_url, true) {
        state.hosts.count(&url)?;
    }
    audit::about(format!("subscriptions/{id}"), &subscription.tenant);
    let event = test_event(&subscription)?;
    let appended = state.ingest.submit(vec![event]).await?.pop();
    let Some(Appended::Created(head)) = appended else {
        return Err(Problem::new(Kind::Internal, "the test event was not stored"));
    };
    match state.requeue.test(&scope, head.id, subscription.id).await? {
        TestOutcome::Delivery(saga) => Ok(TestDelivery { event_id: head.id.0, saga_id: saga.0 }),
        TestOutcome::NotDeliverable => Err(not_ready(id)),
        TestOutcome::NotFound => Err(no_such(id)),
    }
}

fn test_event(subscription: &Subscription) -> Result<NewEvent, Problem> {
    let tenant: Tenant = subscription
        .tenant
        .parse()
        .map_err(|_| Problem::new(Kind::Internal, "the subscription's tenant is not valid"))?;
    let payload = json!({
        "type": EventType::TEST, "tenant": tenant.as_str(), "subscription_id": subscription.id.0,
        "message": "This is a test event. It was sent to this subscription only.",
    });
    Ok(NewEvent {
        tenant,
        event_type: EventType::test(),
        payload: payload.to_string().into(),
        external_id: None,
        correlation_id: new_correlation_id(),
    })
}

fn not_ready(id: i64) -> Problem {
    Problem::new(
        Kind::NotDeliverable,
        format!("subscription {id} must be active and verified before a test event can be sent to it"),
    )
}

/// Why a delivery to this subscription cannot be sent again.
pub(crate) async fn cannot_send_again(state: &ApiState, subscription: SubscriptionId) -> Problem {
    let detail = match state.reader.subscription(&TenantScope::All, subscription).await {
        Ok(None) => format!("subscription {subscription} was deleted: nothing can be sent to it again"),
        Ok(Some(_)) => {
            format!("subscription {subscription} must be active and verified before this can be sent again")
        }
        Err(error) => return error.into(),
    };
    Problem::new(Kind::NotDeliverable, detail)
}
