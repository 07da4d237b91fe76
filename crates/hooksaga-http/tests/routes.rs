//! What is true of all routes together.

use crate::support::TestApi;
use serde_json::json;

#[tokio::test]
async fn unknown_routes_are_problems() {
    let api = TestApi::new().await;
    for path in
        ["/v1", "/v1/", "/v1/nothing", "/v2/events", "/v1/events/", "/v1/events/1/2", "//", "/docs/x", "/%FF"]
    {
        api.get(path).await.expect(404);
        api.bare("DELETE", path, &[], "").await.expect(404);
    }
}

#[tokio::test]
async fn wrong_methods_name_the_right_ones() {
    let api = TestApi::new().await;
    for (path, allowed) in [
        ("/v1/events", "GET,HEAD,POST"),
        ("/v1/events/batch", "POST"),
        ("/v1/events/1", "GET,HEAD"),
        ("/v1/subscriptions", "GET,HEAD,POST"),
        ("/v1/subscriptions/1", "DELETE,GET,HEAD,PATCH"),
        ("/v1/subscriptions/1/test", "POST"),
        ("/v1/subscriptions/1/verify", "POST"),
        ("/v1/subscriptions/1/rotate-secret", "POST"),
        ("/v1/deliveries", "GET,HEAD"),
        ("/v1/deliveries/1", "GET,HEAD"),
        ("/v1/dead-letters", "GET,HEAD"),
        ("/v1/dead-letters/1", "GET,HEAD"),
        ("/v1/dead-letters/1/requeue", "POST"),
        ("/v1/dead-letters/requeue", "POST"),
        ("/v1/stats", "GET,HEAD"),
        ("/v1/me", "GET,HEAD"),
        ("/v1/portal-sessions", "POST"),
        ("/healthz", "GET,HEAD"),
        ("/readyz", "GET,HEAD"),
        ("/metrics", "GET,HEAD"),
        ("/openapi.json", "GET,HEAD"),
        ("/docs", "GET,HEAD"),
    ] {
        let others =
            ["DELETE", "PUT", "OPTIONS", "BREW"].into_iter().filter(|method| !allowed.contains(method));
        for method in others {
            let response = api.bare(method, path, &[], "").await;
            response.expect(405);
            let mut methods: Vec<_> = response.header("allow").split(',').collect();
            methods.sort_unstable();
            assert_eq!(methods.join(","), allowed, "{path}");
        }
    }
}

#[tokio::test]
async fn head_returns_the_same_as_get_without_the_body() {
    let api = TestApi::new().await;
    api.event("t", &json!(1)).await;
    for path in ["/v1/events", "/v1/events/1", "/v1/stats", "/healthz", "/readyz", "/openapi.json", "/docs"] {
        let (get, head) = (api.get(path).await, api.raw("HEAD", path, &[], "").await);
        assert_eq!(head.status, 200, "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"));
        assert!(head.body.is_empty());
    }
    let response = api.raw("HEAD", "/v1/events/99", &[], "").await;
    assert_eq!(response.status, 404);
    assert!(response.body.is_empty());
}

#[tokio::test]
async fn responses_are_not_stored_by_caches() {
    let api = TestApi::new().await;
    for path in ["/v1/events", "/v1/stats", "/v1/events/1", "/nowhere"] {
        assert_eq!(api.get(path).await.header("cache-control"), "no-store");
    }
}
