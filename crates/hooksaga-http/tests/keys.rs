//! Who may do what.

use crate::support::{Response, TestApi};
use hooksaga_store::Scope;
use std::time::{Duration, Instant};

/// Every route that needs a key, and the scope it needs; `None` where any key will do.
pub(crate) const GUARDED: [(&str, &str, Option<Scope>); 27] = [
    ("POST", "/v1/events", Some(Scope::Ingest)),
    ("POST", "/v1/events/batch", Some(Scope::Ingest)),
    ("GET", "/v1/events", Some(Scope::Read)),
    ("GET", "/v1/events/1", Some(Scope::Read)),
    ("POST", "/v1/subscriptions", Some(Scope::Admin)),
    ("GET", "/v1/subscriptions", Some(Scope::Read)),
    ("GET", "/v1/subscriptions/1", Some(Scope::Read)),
    ("PATCH", "/v1/subscriptions/1", Some(Scope::Admin)),
    ("POST", "/v1/subscriptions/1/verify", Some(Scope::Admin)),
    ("POST", "/v1/subscriptions/1/rotate-secret", Some(Scope::Admin)),
    ("DELETE", "/v1/subscriptions/1", Some(Scope::Admin)),
    ("POST", "/v1/subscriptions/1/test", Some(Scope::Admin)),
    ("GET", "/v1/deliveries", Some(Scope::Read)),
    ("GET", "/v1/deliveries/1", Some(Scope::Read)),
    ("POST", "/v1/deliveries/1/resend", Some(Scope::Operator)),
    ("GET", "/v1/dead-letters", Some(Scope::Read)),
    ("GET", "/v1/dead-letters/1", Some(Scope::Read)),
    ("POST", "/v1/dead-letters/1/requeue", Some(Scope::Operator)),
    ("POST", "/v1/dead-letters/requeue", Some(Scope::Operator)),
    ("POST", "/v1/redrives", Some(Scope::Operator)),
    ("GET", "/v1/redrives", Some(Scope::Read)),
    ("GET", "/v1/redrives/1", Some(Scope::Read)),
    ("POST", "/v1/redrives/1/cancel", Some(Scope::Operator)),
    ("GET", "/v1/stats", Some(Scope::Read)),
    ("GET", "/v1/me", None),
    ("POST", "/v1/portal-sessions", Some(Scope::Admin)),
    ("GET", "/v1/audit", Some(Scope::Admin)),
];

async fn with_key(api: &TestApi, method: &str, path: &str, key: &str) -> Response {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    api.bare(method, path, &headers, "{}").await
}

#[tokio::test]
async fn each_route_needs_exactly_its_scope() {
    let api = TestApi::new().await;
    let all_but = |scope: Scope| {
        let others: Vec<_> = Scope::ALL.iter().filter(|other| **other != scope).map(|s| s.as_str()).collect();
        others.join(",")
    };
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        keys.push((*scope, api.key(scope.as_str()).await, api.key(&all_but(*scope)).await));
    }
    for (method, path, needed) in GUARDED {
        let Some(needed) = needed else { continue };
        let (_, only, without) = keys.iter().find(|(scope, ..)| *scope == needed).unwrap();
        let response = with_key(&api, method, path, only).await;
        assert!([200, 404, 422].contains(&response.status), "{method} {path}: {}", response.status);
        let response = with_key(&api, method, path, without).await;
        let problem = response.expect(403);
        assert!(problem["detail"].as_str().unwrap().contains(needed.as_str()), "{problem}");
        assert!(response.header("www-authenticate").contains(&format!("scope=\"{needed}\"")));
        assert_ne!(with_key(&api, method, path, crate::support::ROOT_KEY).await.status, 403);
    }
}

#[tokio::test]
async fn without_a_known_key_nothing_is_done() {
    let api = TestApi::new().await;
    let revoked = api.key("ingest,admin,operator,read").await;
    let id = api.stores.keys.list().await.unwrap()[0].id;
    api.stores.keys.revoke(id).await.unwrap();
    for (method, path, _) in GUARDED {
        let response = api.bare(method, path, &[("content-type", "application/json")], "{}").await;
        response.expect(401);
        assert!(response.header("www-authenticate").starts_with("Bearer"));
        for key in ["hsk_unknown", revoked.as_str()] {
            let response = with_key(&api, method, path, key).await;
            response.expect(401);
            assert!(response.header("www-authenticate").contains("invalid_token"));
        }
    }
}

#[tokio::test]
async fn the_header_is_read_as_it_should_be() {
    let api = TestApi::new().await;
    let root = crate::support::ROOT_KEY;
    for (value, status) in [
        (format!("Bearer {root}"), 200),
        (format!("bearer {root}"), 200),
        (format!("BEARER  {root}"), 200),
        (format!("Basic {root}"), 401),
        (root.to_owned(), 401),
        ("Bearer".to_owned(), 401),
        ("Bearer ".to_owned(), 401),
        (String::new(), 401),
        (format!("Bearer {root}x"), 401),
        (format!("Bearer {}", "x".repeat(5000)), 401),
    ] {
        let response = api.bare("GET", "/v1/events", &[("authorization", &value)], "").await;
        assert_eq!(response.status, status, "{value:.40}");
    }
    let bearer = format!("Bearer {root}");
    let twice = [("authorization", bearer.as_str()), ("authorization", bearer.as_str())];
    api.bare("GET", "/v1/events", &twice, "").await.expect(401);

    let api = TestApi::with(|parts| parts.root_key = None).await;
    api.get("/v1/events").await.expect(401);
}

#[tokio::test]
async fn a_revoked_key_stops_within_5_seconds_and_a_known_one_is_not_asked_for_each_time() {
    let api = TestApi::new().await;
    let key = api.key("read").await;
    with_key(&api, "GET", "/v1/events", &key).await.expect(200);
    let id = api.stores.keys.list().await.unwrap()[0].id;
    api.stores.keys.revoke(id).await.unwrap();
    let revoked = Instant::now();
    with_key(&api, "GET", "/v1/events", &key).await.expect(200);
    while with_key(&api, "GET", "/v1/events", &key).await.status == 200 {
        assert!(revoked.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    with_key(&api, "GET", "/v1/events", &key).await.expect(401);
}

#[tokio::test]
async fn an_expired_key_stops_within_5_seconds() {
    let api = TestApi::new().await;
    let key = api.key_with("read", Some("acme"), Some(Duration::from_secs(2))).await;
    let created = Instant::now();
    with_key(&api, "GET", "/v1/events", &key).await.expect(200);
    while with_key(&api, "GET", "/v1/me", &key).await.status == 200 {
        assert!(created.elapsed() < Duration::from_secs(7));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(created.elapsed() >= Duration::from_secs(2), "not before its time");
    let response = with_key(&api, "GET", "/v1/events", &key).await;
    response.expect(401);
    assert!(response.header("www-authenticate").contains("invalid_token"));
    for (method, path, _) in GUARDED {
        with_key(&api, method, path, &key).await.expect(401);
    }
}

#[tokio::test]
async fn the_use_of_a_key_is_noted_once_a_minute() {
    let api = TestApi::new().await;
    let key = api.key("read").await;
    assert!(api.stores.keys.list().await.unwrap()[0].last_used_at.is_none());
    with_key(&api, "GET", "/v1/me", &key).await.expect(200);
    let began = Instant::now();
    let noted = loop {
        if let Some(at) = api.stores.keys.list().await.unwrap()[0].last_used_at {
            break at;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "it is noted beside the request");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // Looked up again, and not noted again.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    with_key(&api, "GET", "/v1/me", &key).await.expect(200);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(api.stores.keys.list().await.unwrap()[0].last_used_at, Some(noted));
}

#[tokio::test]
async fn each_key_has_its_requests_per_second() {
    let api = TestApi::with(|parts| parts.requests_per_second = std::num::NonZeroU32::new(5)).await;
    let (first, second) = (api.key("read").await, api.key("read").await);
    let mut refused = None;
    for sent in 0..200 {
        let response = with_key(&api, "GET", "/v1/events", &first).await;
        if response.status != 200 {
            assert!(sent >= 5, "{sent}");
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("the sixth within a second, if not a later one");
    refused.expect(429);
    assert_eq!(refused.header("retry-after"), "1");
    with_key(&api, "GET", "/v1/events", &second).await.expect(200);
    // Unknown keys and probes are not counted.
    for _ in 0..20 {
        with_key(&api, "GET", "/v1/events", "hsk_unknown").await.expect(401);
        assert_eq!(api.bare("GET", "/healthz", &[], "").await.status, 200);
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    with_key(&api, "GET", "/v1/events", &first).await.expect(200);
}
