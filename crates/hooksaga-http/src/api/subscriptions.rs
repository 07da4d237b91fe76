//! Subscriptions: create, list, show, change, ask for verification, rotate the secret.
//!
//! Configuration only: the verifier is woken, and does the rest.

use crate::{
    auth::{Admin, Allowed, Read},
    body::{SMALL, Unread},
    cursor::List,
    dto::{
        NewSubscriptionRequest, NewSubscriptionView, PageOf, PageQuery, RotatedSecret, SubscriptionChange,
        SubscriptionView, SubscriptionsQuery,
    },
    errors::{FieldErrors, complete},
    json::Object,
    openapi::{BodyProblems, Conflict, KeyProblems, ListProblems, NoSuchRow},
    path::Id,
    problem::{Kind, Problem},
    query::{NoParams, Params},
    state::SharedState,
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hooksaga_pipeline::SigningSecret;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{CreateOutcome, Stage, SubscriptionPatch, UpdateOutcome};
use http::{StatusCode, header};
use std::time::Duration;

/// How long older secrets sign beside a new one.
const SECRET_OVERLAP: Duration = Duration::from_secs(24 * 3600);

/// How many secrets are valid at a time.
const MAX_VALID_SECRETS: u32 = 5;

/// Create a subscription
///
/// The answer shows the signing secret, this once. The callback is sent a signed challenge at once; deliveries
/// begin when it has answered.
#[utoipa::path(
    post, path = "/v1/subscriptions", tag = "subscriptions", operation_id = "create_subscription",
    security(("key" = ["admin"])),
    request_body = NewSubscriptionRequest,
    responses(
        (status = 201, description = "Created; verification is requested", body = NewSubscriptionView,
            headers(("location" = String, description = "The subscription's path"))),
        Conflict, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn create(
    _: Allowed<Admin>,
    State(state): State<SharedState>,
    _: NoParams,
    body: Unread,
) -> Result<Response, Problem> {
    let body = body.json(SMALL, &state.bodies).await?;
    let mut errors = FieldErrors::default();
    let object = Object::from_body(&body.bytes)?;
    let request = NewSubscriptionRequest::read(object, state.allow_http, &mut errors);
    let (new, secret) = complete(errors, request)?.into_parts();
    match state.admin.create(&new, &state.secret_key.seal(&secret)).await? {
        CreateOutcome::Created(subscription) => {
            state.signals.wake(Stage::Verifier);
            tracing::info!(subscription_id = subscription.id.0, "subscription created");
            let location = [(header::LOCATION, format!("/v1/subscriptions/{}", subscription.id))];
            let view = NewSubscriptionView { subscription: subscription.into(), secret: secret.reveal() };
            Ok((StatusCode::CREATED, location, Json(view)).into_response())
        }
        CreateOutcome::Exists(id) => Err(exists(id)),
    }
}

/// List subscriptions
///
/// Newest first.
#[utoipa::path(
    get, path = "/v1/subscriptions", tag = "subscriptions", operation_id = "list_subscriptions",
    security(("key" = ["read"])),
    params(SubscriptionsQuery, PageQuery),
    responses(
        (status = 200, description = "A page of subscriptions", body = PageOf<SubscriptionView>),
        ListProblems, KeyProblems
    )
)]
pub(crate) async fn list(
    _: Allowed<Read>,
    State(state): State<SharedState>,
    mut params: Params,
) -> Result<Json<PageOf<SubscriptionView>>, Problem> {
    let mut errors = FieldErrors::default();
    let query = SubscriptionsQuery::read(&mut params, &mut errors);
    let page = params.page(List::Subscriptions, errors)?;
    let subscriptions = state.reader.subscriptions(&query.into(), page).await?;
    Ok(Json(PageOf::new(subscriptions, List::Subscriptions)))
}

/// Show a subscription
#[utoipa::path(
    get, path = "/v1/subscriptions/{id}", tag = "subscriptions", operation_id = "get_subscription",
    security(("key" = ["read"])),
    params(("id" = i64, Path, minimum = 1)),
    responses((status = 200, description = "The subscription", body = SubscriptionView), NoSuchRow, KeyProblems)
)]
pub(crate) async fn show(
    _: Allowed<Read>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
) -> Result<Json<SubscriptionView>, Problem> {
    let subscription = state.reader.subscription(SubscriptionId(id)).await?;
    subscription.map(|subscription| Json(subscription.into())).ok_or_else(|| no_such(id))
}

/// Change a subscription
///
/// What is absent stays. A new `callback_url` has to be verified before anything is delivered to it; open
/// deliveries wait until then, as they do while the subscription is inactive.
#[utoipa::path(
    patch, path = "/v1/subscriptions/{id}", tag = "subscriptions", operation_id = "update_subscription",
    security(("key" = ["admin"])),
    params(("id" = i64, Path, minimum = 1)),
    request_body = SubscriptionChange,
    responses(
        (status = 200, description = "The subscription as it is now", body = SubscriptionView),
        Conflict, NoSuchRow, BodyProblems, KeyProblems
    )
)]
pub(crate) async fn update(
    _: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<Json<SubscriptionView>, Problem> {
    let body = body.json(SMALL, &state.bodies).await?;
    let mut errors = FieldErrors::default();
    let change = SubscriptionChange::read(Object::from_body(&body.bytes)?, state.allow_http, &mut errors);
    errors.check()?;
    let patch = SubscriptionPatch::from(change);
    match state.admin.update(SubscriptionId(id), &patch).await? {
        UpdateOutcome::Updated(subscription) => {
            if patch.callback_url.is_some() {
                state.signals.wake(Stage::Verifier);
            }
            // What was held can go on.
            if subscription.active && subscription.verified {
                state.signals.wake(Stage::Schedule);
            }
            tracing::info!(subscription_id = id, "subscription changed");
            Ok(Json(subscription.into()))
        }
        UpdateOutcome::Exists(existing) => Err(exists(existing)),
        UpdateOutcome::NotFound => Err(no_such(id)),
    }
}

/// Ask for verification again
///
/// The challenge is sent at once, 5 s after that, and 30 s after that, until it is answered. A URL that is
/// verified stays so meanwhile.
#[utoipa::path(
    post, path = "/v1/subscriptions/{id}/verify", tag = "subscriptions", operation_id = "verify_subscription",
    security(("key" = ["admin"])),
    params(("id" = i64, Path, minimum = 1)),
    responses((status = 202, description = "Verification is requested", body = SubscriptionView),
        NoSuchRow, BodyProblems, KeyProblems)
)]
pub(crate) async fn verify(
    _: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<(StatusCode, Json<SubscriptionView>), Problem> {
    body.nothing(&state.bodies).await?;
    let subscription =
        state.admin.request_verification(SubscriptionId(id)).await?.ok_or_else(|| no_such(id))?;
    state.signals.wake(Stage::Verifier);
    Ok((StatusCode::ACCEPTED, Json(subscription.into())))
}

/// Rotate the signing secret
///
/// The answer shows the new secret, this once. Older ones sign too for 24 hours; at most 5 are valid at a time,
/// and a sixth drops the oldest.
#[utoipa::path(
    post, path = "/v1/subscriptions/{id}/rotate-secret", tag = "subscriptions", operation_id = "rotate_secret",
    security(("key" = ["admin"])),
    params(("id" = i64, Path, minimum = 1)),
    responses((status = 200, description = "The new secret", body = RotatedSecret),
        NoSuchRow, BodyProblems, KeyProblems)
)]
pub(crate) async fn rotate_secret(
    _: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<Json<RotatedSecret>, Problem> {
    body.nothing(&state.bodies).await?;
    let secret = SigningSecret::generate();
    let sealed = state.secret_key.seal(&secret);
    let rotated =
        state.admin.rotate_secret(SubscriptionId(id), &sealed, SECRET_OVERLAP, MAX_VALID_SECRETS).await?;
    if !rotated {
        return Err(no_such(id));
    }
    state.signals.wake(Stage::Verifier);
    tracing::info!(subscription_id = id, "signing secret rotated");
    Ok(Json(RotatedSecret { secret: secret.reveal() }))
}

fn no_such(id: i64) -> Problem {
    Problem::no_such("subscription", id)
}

fn exists(id: SubscriptionId) -> Problem {
    let detail = format!("subscription {id} has this event_type and callback_url");
    Problem::new(Kind::SubscriptionExists, detail).with_existing(id.0)
}
