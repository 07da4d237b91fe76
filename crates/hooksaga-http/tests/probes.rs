//! `/healthz`, `/readyz`, `/metrics`.

use crate::support::{Response, TestApi};
use axum::body::Body;
use hooksaga_pipeline::Metrics;
use http::Request;
use serde_json::json;
use std::sync::Arc;
use tower::ServiceExt;

#[tokio::test]
async fn probes_need_no_key() {
    let api = TestApi::new().await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(api.bare("GET", path, &[], "").await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn failures_of_every_route_are_there_before_the_first() {
    let api = TestApi::new().await;
    let response = api.bare("GET", "/metrics", &[], "").await;
    for (method, path, _) in crate::keys::GUARDED {
        // As the router names it.
        let route = match path {
            _ if path.starts_with("/v1/deliveries/1") => path.replace("/1", "/{saga_id}"),
            _ => path.replace("/1", "/{id}"),
        };
        for status in [500, 503] {
            let line = format!(
                r#"hooksaga_http_requests_total{{method="{method}",route="{route}",status="{status}"}} 0"#
            );
            assert!(response.text().contains(&line), "{line} is not in\n{}", response.text());
        }
    }
}

#[tokio::test]
async fn metrics_count_requests_by_route_and_show_the_queues() {
    let api = TestApi::new().await;
    api.event("t", &json!(1)).await;
    api.get("/v1/events/1").await.expect(200);
    api.get("/v1/events/2").await.expect(404);
    api.get("/some/where").await.expect(404);
    let open =
        api.bare("GET", "/metrics", &[("accept", "application/openmetrics-text;version=1.0.0")], "").await;
    assert!(open.header("content-type").starts_with("application/openmetrics-text"));
    assert!(open.text().ends_with("# EOF\n"));
    let response = api.bare("GET", "/metrics", &[], "").await;
    assert!(response.header("content-type").starts_with("text/plain; version=0.0.4"));
    let text = response.text();
    assert!(
        text.contains("# TYPE hooksaga_http_requests_total counter\n") && !text.contains("# EOF"),
        "{text}"
    );
    for line in [
        r#"hooksaga_http_requests_total{method="POST",route="/v1/events",status="201"} 1"#,
        r#"hooksaga_http_requests_total{method="GET",route="/v1/events/{id}",status="200"} 1"#,
        r#"hooksaga_http_requests_total{method="GET",route="/v1/events/{id}",status="404"} 1"#,
        r#"hooksaga_http_requests_total{method="GET",route="none",status="404"} 1"#,
        r#"hooksaga_queue_depth{queue="unrouted_events"} 1"#,
        r#"hooksaga_subscriptions{state="active"} 0"#,
        r#"hooksaga_dead_letters_open 0"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("/some/where"));
}

#[tokio::test]
async fn a_process_without_the_api_has_probes_only() {
    let api = TestApi::new().await;
    let probes = hooksaga_http::Probes::new(Arc::clone(&api.stores.reader), Metrics::new()).router();
    for (path, status) in
        [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/events", 404), ("/docs", 404)]
    {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = Response::of(probes.clone().oneshot(request).await.unwrap()).await;
        assert_eq!(response.status, status, "{path}");
    }
}

#[tokio::test]
async fn metrics_may_be_apart_and_the_probes_are_on_both() {
    let mut apart = None;
    let api = TestApi::with(|parts| {
        apart = Some(parts.probes.clone());
        parts.probes = parts.probes.without_metrics();
    })
    .await;
    let apart = apart.unwrap();
    api.bare("GET", "/metrics", &[], "").await.expect(404);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(api.bare("GET", path, &[], "").await.status, 200, "{path}");
    }
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/events", 404)] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = Response::of(apart.router().oneshot(request).await.unwrap()).await;
        assert_eq!(response.status, status, "{path}");
        if path == "/metrics" {
            // What the API counts is there, too.
            assert!(response.text().contains(r#"route="/readyz""#), "{}", response.text());
        }
    }
    // Readiness is the process's, on whichever listener it is asked for.
    apart.stop();
    let problem = api.bare("GET", "/readyz", &[], "").await.expect(503);
    assert!(problem["detail"].as_str().unwrap().contains("stop"), "{problem}");
    assert_eq!(api.bare("GET", "/healthz", &[], "").await.status, 200);
    api.event("t", &json!(1)).await;
}
