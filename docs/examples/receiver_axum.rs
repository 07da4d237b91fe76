// cargo add axum serde_json standardwebhooks, and
// Router::new().route("/hook", post(hook)).with_state(Arc::new(Webhook::new("whsec_…")?))
use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use std::sync::Arc;

async fn hook(State(webhook): State<Arc<Webhook>>, headers: HeaderMap, body: Bytes) -> Response {
    if webhook.verify(&body, &headers).is_err() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let id = headers["webhook-id"].to_str().unwrap_or_default();
    if id.starts_with("ver_") {
        let event: Value = serde_json::from_slice(&body).unwrap_or_default();
        return Json(json!({ "challenge": event["challenge"] })).into_response();
    }
    store_once(id, &body).await;
    StatusCode::NO_CONTENT.into_response()
}
