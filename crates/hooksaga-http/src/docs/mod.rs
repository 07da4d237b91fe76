//! The pages for people: `/docs` shows the OpenAPI document and lets one try the routes out. It works offline:
//! everything comes from this server, and the content security policy allows nothing else.
//!
//! It is written for this server: the usual viewers of OpenAPI documents are large bundles of JavaScript, most of which
//! set styles inline, which the policy forbids, and they would have to be kept up to date. This one is three small files.

use crate::listener::Unmetered;
use axum::{
    response::{IntoResponse, Response},
    routing::get,
};
use http::header;

const HTML: &str = include_str!("docs.html");
const CSS: &str = include_str!("docs.css");
const JS: &str = include_str!("docs.js");

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn routes() -> axum::Router {
    axum::Router::new()
        .route("/docs", get(|| async { asset(HTML, "text/html; charset=utf-8") }))
        .route("/docs/docs.css", get(|| async { asset(CSS, "text/css; charset=utf-8") }))
        .route("/docs/docs.js", get(|| async { asset(JS, "text/javascript; charset=utf-8") }))
}

fn asset(text: &'static str, content_type: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new version's page must not run with an old version's script.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, axum::Extension(Unmetered), text).into_response()
}
