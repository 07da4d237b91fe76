//! The OpenAPI 3.1 document, made from the handlers and the types of `dto/`.

mod examples;
mod request_schemas;
mod webhooks;

use crate::{api, listener::Unmetered, probes, problem::ProblemBody};
use axum::routing::get;
use examples::Example;
use http::header;
use serde_json::Value;
use std::{collections::BTreeMap, sync::LazyLock};
use utoipa::{
    IntoResponses, Modify, OpenApi,
    openapi::{
        ContentBuilder, Ref, RefOr, Response, ResponseBuilder,
        schema::{AdditionalProperties, Schema},
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "hooksaga",
        description = "Webhook delivery: events in, signed callbacks out, with retries, dead letters and requeue. \
            Every route under /v1 needs a key with the scope that it names; scopes do not imply each other. Errors \
            are application/problem+json (RFC 9457). Unknown fields and query parameters are refused.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "events", description = "Ingest events and look them up"),
        (name = "subscriptions", description = "Who gets which events, and where"),
        (name = "deliveries", description = "Each event's way to each subscription"),
        (name = "dead letters", description = "Deliveries that were given up, and their requeue"),
        (name = "redrives", description = "Large work: many dead letters or old events, in the background"),
        (name = "keys", description = "The key in use, sessions of the customer portal, and who did what"),
        (name = "stats", description = "Statistics"),
        (name = "probes", description = "For machines; no key needed")
    ),
    paths(
        api::events::create, api::batch::create_batch, api::events::list, api::events::show,
        api::subscriptions::create, api::subscriptions::list, api::subscriptions::show,
        api::subscriptions::update, api::subscriptions::verify, api::subscriptions::rotate_secret,
        api::endpoint_care::delete, api::endpoint_care::test,
        api::deliveries::list, api::deliveries::show, api::deliveries::resend,
        api::dead_letters::list, api::dead_letters::show, api::dead_letters::requeue,
        api::dead_letters::requeue_all,
        api::redrives::start, api::redrives::list, api::redrives::show, api::redrives::cancel,
        api::stats::show,
        api::me::show, api::portal_sessions::create, api::audit::list,
        probes::health, probes::ready, probes::metrics_text,
    ),
    components(schemas(ProblemBody)),
    modifiers(&Finish)
)]
struct Document;

/// What the derive cannot say.
struct Finish;

/// Requests: unknown members are refused.
const CLOSED: [&str; 9] = [
    "EventRequest",
    "BatchRequest",
    "NewSubscriptionRequest",
    "SubscriptionChange",
    "VerificationRequest",
    "RequeueAllRequest",
    "RequeueFilter",
    "NewRedriveRequest",
    "PortalSessionRequest",
];

impl Modify for Finish {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        for name in CLOSED {
            if let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(name) {
                object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            }
        }
        request_schemas::fit(document);
    }
}

/// The method and path of every route in the document.
pub(crate) fn operations() -> Vec<(&'static str, String)> {
    let mut operations = Vec::new();
    for (path, item) in Document::openapi().paths.paths {
        for (method, operation) in
            [("GET", item.get), ("POST", item.post), ("PATCH", item.patch), ("DELETE", item.delete)]
        {
            operations.extend(operation.map(|_| (method, path.clone())));
        }
    }
    operations
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let mut document = serde_json::to_value(Document::openapi())
        .expect("the document has only string keys and plain values");
    document["webhooks"] = webhooks::all();
    for example in examples::all() {
        illustrate(&mut document["paths"][example.path][&example.method], &example);
    }
    serde_json::to_string_pretty(&document).expect("it was JSON before")
});

/// Puts an example where the operation describes such a request or response; the first one of each stays.
fn illustrate(operation: &mut Value, example: &Example) {
    const JSON: &str = "application/json";
    let put = |place: &mut Value, example: &Value| {
        if place.is_object() && place["example"].is_null() {
            place["example"] = example.clone();
        }
    };
    let kind = if example.status.starts_with('2') { JSON } else { "application/problem+json" };
    if let Some(response) = operation.pointer_mut(&format!("/responses/{}/content", example.status)) {
        put(&mut response[kind], &example.response);
    }
    if let Some((request, content)) =
        example.request.as_ref().zip(operation.pointer_mut("/requestBody/content"))
        && example.status.starts_with('2')
    {
        put(&mut content[JSON], request);
    }
}

/// `/openapi.json`.
pub(crate) fn routes() -> axum::Router {
    axum::Router::new().route(
        "/openapi.json",
        get(|| async {
            ([(header::CONTENT_TYPE, "application/json")], axum::Extension(Unmetered), DOCUMENT.as_str())
        }),
    )
}

type Responses = BTreeMap<String, RefOr<Response>>;

fn problems(described: &[(u16, &str)]) -> Responses {
    let problem = |description: &str| {
        let content = ContentBuilder::new()
            .schema(Some(RefOr::<Schema>::Ref(Ref::from_schema_name("Problem"))))
            .build();
        ResponseBuilder::new()
            .description(description)
            .content("application/problem+json", content)
            .build()
            .into()
    };
    described.iter().map(|(status, description)| (status.to_string(), problem(description))).collect()
}

/// Groups of errors that routes have in common.
macro_rules! problem_groups {
    ($($(#[$doc:meta])* $name:ident => $described:expr;)+) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> Responses {
                problems(&$described)
            }
        }
    )+};
}

problem_groups! {
    /// Routes that need a key, which is all but the probes.
    KeyProblems => [
        (401, "No key, or one that is unknown, expired or revoked"),
        (403, "The key lacks the scope, or is bound to another tenant"),
        (422, "The request is well-formed but not valid; errors says why, field by field"),
        (429, "Too many requests with this key; try again after the time in retry-after"),
        (503, "Overloaded, or the database is away; try again after the time in retry-after"),
    ];
    /// Routes that read a body.
    BodyProblems => [
        (400, "Not JSON, or a bad id in the path"),
        (408, "The request body arrived too slowly"),
        (413, "Too large"),
        (415, "Not JSON by its content type, or compressed"),
    ];
    /// Lists.
    ListProblems => [(400, "A bad cursor")];
    /// Routes about one row.
    NoSuchRow => [(400, "The id is not a positive integer"), (404, "There is no such row")];
    /// Routes that something stored can be in the way of.
    Conflict => [(409, "Something that is stored is in the way; existing_id says what, where it applies")];
}
