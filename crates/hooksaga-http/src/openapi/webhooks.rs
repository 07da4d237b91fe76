//! What this server sends to others, as the `webhooks` of the document.

use serde_json::{Value, json};

/// The two kinds of requests that an endpoint receives.
pub(super) fn all() -> Value {
    json!({
        "event": { "post": {
            "operationId": "webhookEvent",
            "summary": "An event",
            "description": "The payload of the event, byte for byte. The status decides: 2xx is success as soon as the headers \
                are there; everything else is tried again later, by default after 30 s, 1 min, 2 min and so on, up to the \
                limit of attempts; a Retry-After of a 429 or 503 is kept to; 410 ends the delivery and disables the \
                subscription. Deduplicate by webhook-id: it is the same on every attempt.",
            "parameters": headers(&[
                ("hooksaga-event-type", "The event's type", json!("order.created")),
                ("hooksaga-correlation-id", "The event's correlation id", json!("checkout-7")),
                ("hooksaga-attempt", "Which attempt this is, from 1", json!("1")),
            ], "evt_1001"),
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
        } },
        "verification": { "post": {
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
        } },
    })
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
