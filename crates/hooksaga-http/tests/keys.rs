//! Who may do what.

use crate::support::{Answer, TestApi};
use hooksaga_store::Scope;
use std::time::{Duration, Instant};

/// Every route that needs a key, and the scope it needs.
pub(crate) const GUARDED: [(&str, &str, Scope); 17] = [
    ("POST", "/v1/events", Scope::Ingest),
    ("POST", "/v1/events/batch", Scope::Ingest),
    ("GET", "/v1/events", Scope::Read),
    ("GET", "/v1/events/1", Scope::Read),
    ("POST", "/v1/subscriptions", Scope::Admin),
    ("GET", "/v1/subscriptions", Scope::Read),
    ("GET", "/v1/subscriptions/1", Scope::Read),
    ("PATCH", "/v1/subscriptions/1", Scope::Admin),
    ("POST", "/v1/subscriptions/1/verify", Scope::Admin),
    ("POST", "/v1/subscriptions/1/rotate-secret", Scope::Admin),
    ("GET", "/v1/deliveries", Scope::Read),
    ("GET", "/v1/deliveries/1", Scope::Read),
    ("GET", "/v1/dead-letters", Scope::Read),
    ("GET", "/v1/dead-letters/1", Scope::Read),
    ("POST", "/v1/dead-letters/1/requeue", Scope::Operator),
    ("POST", "/v1/dead-letters/requeue", Scope::Operator),
    ("GET", "/v1/stats", Scope::Read),
];

async fn with_key(api: &TestApi, method: &str, path: &str, key: &str) -> Answer {
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
        let (_, only, without) = keys.iter().find(|(scope, ..)| *scope == needed).unwrap();
        let answer = with_key(&api, method, path, only).await;
        assert!([200, 404, 422].contains(&answer.status), "{method} {path}: {}", answer.status);
        let answer = with_key(&api, method, path, without).await;
        let problem = answer.expect(403);
        assert!(problem["detail"].as_str().unwrap().contains(needed.as_str()), "{problem}");
        assert!(answer.header("www-authenticate").contains(&format!("scope=\"{needed}\"")));
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
        let answer = api.bare(method, path, &[("content-type", "application/json")], "{}").await;
        answer.expect(401);
        assert!(answer.header("www-authenticate").starts_with("Bearer"));
        for key in ["hsk_unknown", revoked.as_str()] {
            let answer = with_key(&api, method, path, key).await;
            answer.expect(401);
            assert!(answer.header("www-authenticate").contains("invalid_token"));
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
        let answer = api.bare("GET", "/v1/events", &[("authorization", &value)], "").await;
        assert_eq!(answer.status, status, "{value:.40}");
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
