//! What is done for every request: a log record, the metrics, the headers that every response has, and what [`linger`] does.
//! It is one layer because each layer of its own costs every request several allocations.

use crate::{drain_body::linger, problem::FailedInDatabase};
use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use hooksaga_pipeline::Metrics;
use http::{HeaderValue, StatusCode, header};
use std::{sync::Arc, time::Instant};

/// The route of requests that matched none: a path that a client chose must not become a label.
const NO_ROUTE: &str = "none";

pub(crate) async fn observe(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = linger(request, next).await;

    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));

    let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
    let status = response.status();
    let took = started.elapsed();
    if let Some(failure) = response.extensions().get::<FailedInDatabase>() {
        metrics.request_failed_in_database(failure.is_transient);
    }
    metrics.http_request(method.as_str(), route, status.as_u16(), took);
    // Why the database or the queue had no time was said where it was found out.
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        tracing::warn!(%method, route, status = status.as_u16(), ?took, "request failed");
    } else {
        tracing::debug!(%method, route, status = status.as_u16(), ?took, "request");
    }
    response
}
