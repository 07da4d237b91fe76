//! What this server sends to others, as the `webhooks` of the document.

use hooksaga_saga::{DisabledReason, EventType, Tenant};
use hooksaga_store::AnnouncementKind;
use serde_json::{Value, json};

/// What an endpoint receives: events, challenges, and, if it belongs to operators, what the server itself reports.
pub(super) fn all() -> Value {
    let mut all = json!({ "event": event(), "verification": verification() });
    for kind in AnnouncementKind::ALL {
        all[event_type(kind)] = operational(kind);
    }
    all
}

fn event() -> Value {
    json!({
        "post": {
            "operationId": "webhookEvent",
            "summary": "An event",
            "description": "The payload of the event, byte for byte. The status decides: 2xx is success as soon as the headers \
                are there; everything else is tried again later, by default after 30 s, 1 min, 2 min and so on, up to the \
                limit of attempts; a Retry-After of a 429 or 503 is kept to; 410 ends the delivery and disables the \
                subscription. Deduplicate by webhook-id: it is the same on every attempt.",
            "parameters": event_headers("order.created", "checkout-7"),
            "requestBody": { "required": true, "content": { "application/json": {
                "schema": { "description": "Any JSON: what was posted as payload" },
                "example": { "order": 42 },
            } } },
            "responses": {
                "2XX": { "description": "Taken" },
                "410": { "description": "The endpoint is gone: the subscription is disabled" },
                "429": { "description": "Too many requests: tried again, after Retry-After if it is given" },
                "default": { "description": "Tried again later" },
            },
        },
    })
}

fn verification() -> Value {
    json!({
        "post": {
            "operationId": "webhookVerification",
            "summary": "A challenge",
            "description": "Before anything is delivered to a callback URL it has to prove that it wants that: with 2xx and, \
                within 10 s, the challenge. It is tried at once, 5 s after that, and 30 s after that.",
            "parameters": headers(&[], "ver_301_1"),
            "requestBody": { "required": true, "content": { "application/json": {
                "schema": { "type": "object", "required": ["type", "subscription_id", "challenge"], "properties": {
                    "type": { "const": "hooksaga.verification" },
                    "subscription_id": { "type": "integer", "format": "int64" },
                    "challenge": { "type": "string" },
                } },
                "example": { "type": "hooksaga.verification", "subscription_id": 301, "challenge": "d1f5a2c04b7e" },
            } } },
            "responses": {
                "2XX": {
                    "description": "The challenge: as the only member of an object, or as plain text",
                    "content": {
                        "application/json": {
                            "schema": { "type": "object", "required": ["challenge"], "additionalProperties": false,
                                "properties": { "challenge": { "type": "string" } } },
                            "example": { "challenge": "d1f5a2c04b7e" },
                        },
                        "text/plain": { "schema": { "type": "string" } },
                    },
                },
                "default": { "description": "Not verified" },
            },
        },
    })
}

fn event_type(kind: AnnouncementKind) -> String {
    format!("{}subscription.{}", EventType::RESERVED_PREFIX, kind.as_str())
}

/// An operational event.
fn operational(kind: AnnouncementKind) -> Value {
    let (summary, when) = match kind {
        AnnouncementKind::Verified => (
            "A callback URL is verified",
            "A callback URL has proved itself, or somebody has vouched for it.",
        ),
        AnnouncementKind::Failing => (
            "An endpoint keeps failing",
            "Every attempt has failed for half of callbacks.disable_after; the subscription is disabled if this continues.",
        ),
        AnnouncementKind::Disabled => (
            "A subscription is disabled",
            "The server has disabled a subscription: its endpoint returned 410 (GONE), or every attempt has failed for \
             callbacks.disable_after (FAILING).",
        ),
    };
    let (event_type, reserved) = (event_type(kind), Tenant::RESERVED);
    let mut schema = json!({
        "type": "object",
        "required": ["type", "at", "tenant", "subscription_id", "callback_url"],
        "properties": {
            "type": { "const": event_type },
            "at": { "type": "string", "format": "date-time", "description": "When it happened" },
            "tenant": { "type": "string", "description": "The subscription's tenant" },
            "subscription_id": { "type": "integer", "format": "int64" },
            "callback_url": { "type": "string", "format": "uri", "description": "As it was then" },
        },
    });
    let mut example = json!({
        "type": event_type, "at": "2026-01-31T15:46:04.661424Z", "tenant": "acme", "subscription_id": 301,
        "callback_url": "https://shop.example/hooks",
    });
    if kind == AnnouncementKind::Disabled {
        schema["required"].as_array_mut().expect("it is one").push(json!("reason"));
        schema["properties"]["reason"] =
            json!({ "type": "string", "enum": DisabledReason::ALL.map(DisabledReason::as_str) });
        example["reason"] = json!(DisabledReason::Gone.as_str());
    }
    json!({ "post": {
        "operationId": format!("webhookSubscription{}", capitalised(kind.as_str())),
        "summary": summary,
        "description": format!(
            "{when} An event of the reserved tenant {reserved}, at most once per occurrence, for those who subscribe in that \
             tenant with an admin key that is bound to no tenant. There is none about subscriptions of the tenant {reserved} itself."
        ),
        "parameters": event_headers(&event_type, &format!("subscription-{}-301-1769874364661424", kind.as_str())),
        "requestBody": {
            "required": true, "content": { "application/json": { "schema": schema, "example": example } },
        },
        "responses": {
            "2XX": { "description": "Taken" },
            "default": { "description": "As for every event" },
        },
    } })
}

fn capitalised(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

fn event_headers(event_type: &str, correlation_id: &str) -> Vec<Value> {
    let more = [
        ("hooksaga-event-type", "The event's type", json!(event_type)),
        ("hooksaga-correlation-id", "The event's correlation id", json!(correlation_id)),
        ("hooksaga-attempt", "Which attempt this is, from 1", json!("1")),
    ];
    headers(&more, "evt_1001")
}

/// The headers of Standard Webhooks, and `more`.
fn headers(more: &[(&str, &str, Value)], id: &str) -> Vec<Value> {
    let standard = [
        ("webhook-id", "The same on every attempt: deduplicate by it", json!(id)),
        ("webhook-timestamp", "Seconds since 1970, of this attempt", json!("1769860800")),
        (
            "webhook-signature",
            "v1,BASE64(HMAC-SHA256(secret, id.timestamp.body)); one per valid secret, separated by blanks",
            json!("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ),
    ];
    let header = |(name, description, example): &(&str, &str, Value)| {
        json!({ "name": name, "in": "header", "required": true, "description": description,
            "schema": { "type": "string" }, "example": example })
    };
    standard.iter().chain(more).map(header).collect()
}
