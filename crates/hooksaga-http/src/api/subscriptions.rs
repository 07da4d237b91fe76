//! Subscriptions: create, list, show, change, ask for verification, rotate the secret.
//!
//! Configuration only: the verifier is woken, and does the rest.

use crate::{
    audit,
    auth::{Admin, Allowed, Caller, Read},
    body::{SMALL, Unread},
    cursor::ListKind,
    dto::{
        NewSubscriptionRequest, NewSubscriptionView, PageOf, PageQuery, RotatedSecret, SubscriptionChange,
        SubscriptionDetailView, SubscriptionView, SubscriptionsQuery, VerificationRequest,
    },
    errors::{FieldErrors, complete},
    json::Object,
    listing::ListRequest,
    openapi::{BodyProblems, Conflict, KeyProblems, ListProblems, NoSuchRow},
    path::Id,
    problem::{Kind, Problem},
    query::NoParams,
    state::{ApiState, SharedState},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hooksaga_pipeline::{NewSecrets, SigningSecret};
use hooksaga_saga::{CallbackUrl, SubscriptionId};
use hooksaga_store::{
    CreateOutcome, Page, PageRequest, SecretRotation, Stage, StoreResult, Subscription, TenantScope,
    UpdateOutcome,
};
use http::{StatusCode, header};
use std::time::Duration;

/// How long older secrets sign beside a new one.
const SECRET_OVERLAP: Duration = Duration::from_secs(24 * 3600);

/// How many secrets are valid at a time.
const MAX_VALID_SECRETS: u32 = 5;

/// Create a subscription
///
/// The response shows the signing secret, this once. The callback is sent a signed challenge at once; deliveries
/// begin when it has returned that.
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
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    _: NoParams,
    body: Unread,
) -> Result<Response, Problem> {
    let body = body.json(SMALL, &state.bodies).await?;
    let (subscription, secret) = create_from(&state, &caller, &body.bytes).await?;
    let location = [(header::LOCATION, format!("/v1/subscriptions/{}", subscription.id))];
    let view = NewSubscriptionView { subscription: subscription.into(), secret: secret.reveal() };
    Ok((StatusCode::CREATED, location, Json(view)).into_response())
}

/// Creates the subscription that a request's body describes; with its secret.
pub(crate) async fn create_from(
    state: &ApiState,
    caller: &Caller,
    body: &[u8],
) -> Result<(Subscription, SigningSecret), Problem> {
    let mut errors = FieldErrors::default();
    let request = NewSubscriptionRequest::read(Object::from_body(body)?, state.allow_http, &mut errors);
    let (new, secret, headers) = complete(errors, request)?.into_parts(caller)?;
    may_be_called(state, &new.callback_url)?;
    let secrets = NewSecrets::new(&state.secret_key, &secret, headers);
    match state.admin.create(&new, &secrets).await? {
        CreateOutcome::Created(subscription) => {
            state.signals.wake(Stage::Verifier);
            audit::about(format!("subscriptions/{}", subscription.id), &subscription.tenant);
            tracing::info!(
                subscription_id = subscription.id.0,
                tenant = subscription.tenant.as_str(),
                "subscription created"
            );
            Ok((subscription, secret))
        }
        CreateOutcome::Exists(id) => Err(exists(id)),
    }
}

/// Refuses a URL whose host could only ever be blocked. Whether a name may be called shows at each delivery: names change
/// what they point to.
fn may_be_called(state: &ApiState, url: &CallbackUrl) -> Result<(), Problem> {
    if state.egress.refuses_literally(url.host()) {
        let detail = "must not lead to a private, local or otherwise special address";
        return Err(Problem::with_field(Kind::Invalid, "callback_url", detail));
    }
    Ok(())
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
    ListRequest { scope, query, page, .. }: ListRequest<SubscriptionsQuery>,
    State(state): State<SharedState>,
) -> Result<Json<PageOf<SubscriptionView>>, Problem> {
    let subscriptions = page_of(&state, &scope, query, page).await?;
    Ok(Json(PageOf::new(subscriptions, ListKind::Subscriptions)))
}

/// A page of the subscriptions that are asked for.
pub(crate) async fn page_of(
    state: &ApiState,
    scope: &TenantScope,
    query: SubscriptionsQuery,
    page: PageRequest,
) -> StoreResult<Page<Subscription>> {
    match query.filter() {
        Some(filter) => state.reader.subscriptions(page.of(scope, &filter)).await,
        None => Ok(Page::empty()),
    }
}

/// Show a subscription
///
/// With its last 24 hours, what waits, and its last failure.
#[utoipa::path(
    get, path = "/v1/subscriptions/{id}", tag = "subscriptions", operation_id = "get_subscription",
    security(("key" = ["read"])),
    params(("id" = i64, Path, minimum = 1)),
    responses(
        (status = 200, description = "The subscription", body = SubscriptionDetailView), NoSuchRow, KeyProblems
    )
)]
pub(crate) async fn show(
    Allowed { caller, .. }: Allowed<Read>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
) -> Result<Json<SubscriptionDetailView>, Problem> {
    let found = state.reader.subscription_detail(&caller.scope(None)?, SubscriptionId(id)).await?;
    found.map(|found| Json(found.into())).ok_or_else(|| no_such(id))
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
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<Json<SubscriptionView>, Problem> {
    let body = body.json(SMALL, &state.bodies).await?;
    Ok(Json(update_from(&state, &caller, id, &body.bytes).await?.into()))
}

/// Makes the change that a request's body describes.
pub(crate) async fn update_from(
    state: &ApiState,
    caller: &Caller,
    id: i64,
    body: &[u8],
) -> Result<Subscription, Problem> {
    let mut errors = FieldErrors::default();
    let change = SubscriptionChange::read(Object::from_body(body)?, state.allow_http, &mut errors);
    errors.check()?;
    let patch = change.into_patch(SubscriptionId(id), &state.secret_key);
    patch.callback_url.as_ref().map_or(Ok(()), |url| may_be_called(state, url))?;
    match state.admin.update(&caller.scope(None)?, SubscriptionId(id), &patch).await? {
        UpdateOutcome::Updated(subscription) => {
            if patch.callback_url.is_some() {
                state.signals.wake(Stage::Verifier);
            }
            // What was held can go on.
            let may_resume = patch.active.is_some() || patch.callback_url.is_some();
            if may_resume && subscription.active && subscription.verified {
                state.signals.wake_schedule([subscription.id]);
                state.signals.wake(Stage::Resume);
                state.signals.wake(Stage::Redrives);
            }
            audit::about(format!("subscriptions/{id}"), &subscription.tenant);
            let what = match patch.active {
                Some(true) => "subscription resumed",
                Some(false) => "subscription paused",
                None => "subscription changed",
            };
            tracing::info!(subscription_id = id, tenant = %subscription.tenant, "{what}");
            Ok(subscription)
        }
        UpdateOutcome::Exists(existing) => Err(exists(existing)),
        UpdateOutcome::NotFound => Err(no_such(id)),
    }
}

/// Ask for verification again
///
/// The challenge is sent at once, 5 s after that, and 30 s after that, until it comes back. A URL that is
/// verified stays so meanwhile. For one host it can be asked for 5 times per second. With `{"trusted": true}` the
/// endpoint is not asked: the caller vouches for it.
#[utoipa::path(
    post, path = "/v1/subscriptions/{id}/verify", tag = "subscriptions", operation_id = "verify_subscription",
    security(("key" = ["admin"])),
    params(("id" = i64, Path, minimum = 1)),
    request_body = Option<VerificationRequest>,
    responses((status = 202, description = "Verification is requested", body = SubscriptionView),
        NoSuchRow, BodyProblems, KeyProblems)
)]
pub(crate) async fn verify(
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<(StatusCode, Json<SubscriptionView>), Problem> {
    let request = body.optional(&state.bodies, VerificationRequest::read).await?;
    let subscription = request_verification(&state, &caller, id, request.trusted).await?;
    Ok((StatusCode::ACCEPTED, Json(subscription.into())))
}

/// Asks the verifier for a new round. `trusted`: the caller vouches for the endpoint.
pub(crate) async fn request_verification(
    state: &ApiState,
    caller: &Caller,
    id: i64,
    trusted: bool,
) -> Result<Subscription, Problem> {
    if trusted {
        caller.must_be_unbound()?;
        if !state.allow_trusted {
            return Err(Problem::new(
                Kind::NotForThisKey,
                "this server trusts no endpoint that has not returned a challenge: set callbacks.allow_trusted = true",
            ));
        }
    }
    let scope = caller.scope(None)?;
    let found = state.reader.subscription(&scope, SubscriptionId(id)).await?.ok_or_else(|| no_such(id))?;
    // A stored URL is one that was accepted; what is not one any more is not sent to either. Nothing is sent to an endpoint
    // that is vouched for.
    if !trusted && let Ok(url) = CallbackUrl::parse(&found.callback_url, true) {
        state.hosts.count(&url)?;
    }
    let vouched_by = trusted.then_some(caller.name.as_str());
    let requested = state.admin.request_verification(&scope, SubscriptionId(id), vouched_by).await?;
    let subscription = requested.ok_or_else(|| no_such(id))?;
    audit::about(format!("subscriptions/{id}"), &subscription.tenant);
    if let Some(by) = vouched_by {
        tracing::info!(subscription_id = id, tenant = %subscription.tenant, by, "endpoint marked as trusted without a challenge");
    }
    state.signals.wake(Stage::Verifier);
    Ok(subscription)
}

/// Rotate the signing secret
///
/// The response shows the new secret, this once. Older ones sign too for 24 hours; at most 5 are valid at a time,
/// and a sixth drops the oldest.
#[utoipa::path(
    post, path = "/v1/subscriptions/{id}/rotate-secret", tag = "subscriptions", operation_id = "rotate_secret",
    security(("key" = ["admin"])),
    params(("id" = i64, Path, minimum = 1)),
    responses((status = 200, description = "The new secret", body = RotatedSecret),
        NoSuchRow, BodyProblems, KeyProblems)
)]
pub(crate) async fn rotate_secret(
    Allowed { caller, .. }: Allowed<Admin>,
    State(state): State<SharedState>,
    Id(id): Id,
    _: NoParams,
    body: Unread,
) -> Result<Json<RotatedSecret>, Problem> {
    body.nothing(&state.bodies).await?;
    Ok(Json(RotatedSecret { secret: rotate(&state, &caller, id).await?.reveal() }))
}

/// Gives the subscription a new secret.
pub(crate) async fn rotate(state: &ApiState, caller: &Caller, id: i64) -> Result<SigningSecret, Problem> {
    let secret = SigningSecret::generate();
    let rotation = SecretRotation {
        subscription_id: SubscriptionId(id),
        secret: state.secret_key.seal(SubscriptionId(id), &secret),
        overlap: SECRET_OVERLAP,
        max_valid: MAX_VALID_SECRETS,
    };
    let scope = caller.scope(None)?;
    // Its record says whose it was.
    let found = state.reader.subscription(&scope, SubscriptionId(id)).await?.ok_or_else(|| no_such(id))?;
    if !state.admin.rotate_secret(&scope, &rotation).await? {
        return Err(no_such(id));
    }
    audit::about(format!("subscriptions/{id}"), &found.tenant);
    state.signals.wake(Stage::Verifier);
    tracing::info!(subscription_id = id, tenant = %found.tenant, "signing secret rotated");
    Ok(secret)
}

pub(crate) fn no_such(id: i64) -> Problem {
    Problem::no_such("subscription", id)
}

fn exists(id: SubscriptionId) -> Problem {
    let detail = format!("subscription {id} has these topics and this callback_url");
    Problem::new(Kind::SubscriptionExists, detail).with_existing(id.0)
}
