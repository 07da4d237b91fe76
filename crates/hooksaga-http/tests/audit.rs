//! Who did what is recorded, whichever way it was done.

use crate::support::{ROOT_KEY, Response, TestApi};
use async_trait::async_trait;
use hooksaga_http::{generate_key, hash_key};
use hooksaga_saga::KeyId;
use hooksaga_store::{
    ApiKey, KeyCareStore, KeyView, NewAuditRecord, NewPortalKey, Page, PageRequest, PortalKeyStore,
    StoreError, StoreResult,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The records, newest first, without their ids and times.
async fn records(api: &TestApi, query: &str) -> Vec<Value> {
    let page = api.get(&format!("/v1/audit{query}")).await.expect(200);
    let mut items = page["items"].as_array().unwrap().clone();
    for item in &mut items {
        let item = item.as_object_mut().unwrap();
        assert!(item.remove("id").is_some() && item.remove("at").is_some(), "{item:?}");
    }
    items
}

fn by_root(action: &str, target: &str, tenant: Option<&str>) -> Value {
    json!({"key_id": null, "key_name": "root", "action": action, "target": target, "tenant": tenant})
}

#[tokio::test]
async fn what_is_done_is_recorded_and_what_fails_is_not() {
    let api = TestApi::new().await;
    let body = json!({"event_type": "t", "callback_url": "https://example.com/hook", "tenant": "acme"});
    api.post("/v1/subscriptions", &body).await.expect(201);
    api.post("/v1/subscriptions", &body).await.expect(409);
    api.post("/v1/subscriptions", &json!({})).await.expect(422);
    api.patch("/v1/subscriptions/1", &json!({"active": false})).await.expect(200);
    api.patch("/v1/subscriptions/9", &json!({"active": false})).await.expect(404);
    api.post_nothing("/v1/subscriptions/1/rotate-secret").await.expect(200);
    api.bare("POST", "/v1/subscriptions/1/verify", &[], "").await.expect(401);
    api.event("t", &json!(1)).await;
    api.get("/v1/subscriptions").await.expect(200);
    let requeue = |dry_run: bool| json!({"filter": {}, "dry_run": dry_run});
    api.post("/v1/dead-letters/requeue", &requeue(true)).await.expect(200);
    api.post("/v1/dead-letters/requeue", &requeue(false)).await.expect(200);
    let of_acme = json!({"filter": {"tenant": "acme"}});
    api.post("/v1/dead-letters/requeue", &of_acme).await.expect(200);
    let expected = [
        by_root("dead_letters.requeue", "dead-letters", Some("acme")),
        by_root("dead_letters.requeue", "dead-letters", None),
        by_root("subscription.rotate_secret", "subscriptions/1", Some("acme")),
        by_root("subscription.change", "subscriptions/1", Some("acme")),
        by_root("subscription.create", "subscriptions/1", Some("acme")),
    ];
    assert_eq!(records(&api, "").await, expected);
    assert_eq!(records(&api, "?action=subscription.change").await, expected[3..4]);
    let of_acme: Vec<_> = expected.iter().filter(|record| record["tenant"] == "acme").cloned().collect();
    assert_eq!(records(&api, "?tenant=acme").await, of_acme);
    assert_eq!(records(&api, "?created_before=2020-01-01T00:00:00Z").await, [] as [Value; 0]);
    assert_eq!(records(&api, "?created_after=2020-01-01T00:00:00Z&limit=1").await, expected[..1]);
}

#[tokio::test]
async fn a_record_names_the_key_and_its_tenant() {
    let api = TestApi::new().await;
    let key = api.key_of("acme").await;
    let body = json!({"event_type": "t", "callback_url": "https://example.com/hook"});
    api.as_key(&key, "POST", "/v1/subscriptions", Some(&body)).await.expect(201);
    let session = api.post("/v1/portal-sessions", &json!({"tenant": "acme"})).await.expect(201);
    let form = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")];
    let token = format!("key={}", session["token"].as_str().unwrap());
    assert_eq!(api.bare("POST", "/portal/sign-in", &form, token).await.status, 303);
    assert_eq!(api.bare("POST", "/sign-in", &form, "key=hsk_wrong").await.status, 401);
    assert_eq!(
        records(&api, "").await,
        [
            json!({"key_id": 2, "key_name": "portal session", "action": "sign_in", "target": "sign-in", "tenant": "acme"}),
            by_root("portal_session.create", "keys/2", Some("acme")),
            json!({"key_id": 1, "key_name": "a key", "action": "subscription.create", "target": "subscriptions/1",
                "tenant": "acme"}),
        ]
    );
    let refused = api.as_key(&key, "GET", "/v1/audit", None).await.expect(403);
    assert_eq!(refused["type"], "urn:hooksaga:problem:not-for-this-key");
    let reading = api.key("read,operator,ingest").await;
    api.as_key(&reading, "GET", "/v1/audit", None).await.expect(403);
}

/// Posts a form of the dashboard as this session, and returns the status.
async fn post_form(api: &TestApi, cookie: &str, path: &str, fields: &str) -> u16 {
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("sec-fetch-site", "same-origin"),
        ("cookie", cookie),
    ];
    api.bare("POST", path, &headers, fields.to_owned()).await.status
}

#[tokio::test]
async fn forms_are_recorded_for_what_they_did_and_not_for_what_they_could_not_do() {
    let api = TestApi::new().await;
    let form = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")];
    let signed_in = api.bare("POST", "/sign-in", &form, format!("key={ROOT_KEY}")).await;
    let cookie = signed_in.header("set-cookie").split(';').next().unwrap().to_owned();
    let hook = api.verified_subscription("t", "hook").await;
    for number in 0..4 {
        api.event("t", &json!(number)).await;
    }
    api.fail_all().await;
    let open = api.verified_subscription("open", "open").await;
    api.event("open", &json!(1)).await;
    api.route().await;
    let before = records(&api, "?limit=500").await.len();
    let since = async || {
        let all = records(&api, "?limit=500").await;
        let new = all[..all.len() - before].iter().rev();
        let brief = |it: &Value| format!("{} {}", it["action"], it["target"]).replace('"', "");
        new.map(brief).filter(|it| !it.starts_with("subscription.change")).collect::<Vec<_>>()
    };

    // Nothing selected, nothing that is there, a delivery that is open, a redrive of nobody, a count, nothing that matches.
    let many = "/dead-letters/requeue";
    for (path, fields) in [
        (many, "what=selected"),
        (many, "what=selected&id=77"),
        ("/deliveries/5/resend", ""),
        ("/redrives", "kind=events&subscription_id=99&since=2026-01-01T00:00"),
        (many, "what=count"),
        (many, "what=count&filter.event_type=none"),
    ] {
        assert_eq!(post_form(&api, &cookie, path, fields).await, 200, "{path} {fields}");
    }
    for id in [hook, open] {
        api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": false})).await.expect(200);
    }
    for (path, fields, status) in [
        (many, "what=one&id=1", 200),
        (many, "what=selected&id=1&id=2", 200),
        ("/deliveries/1/resend", "", 200),
        ("/subscriptions/1/test", "", 303),
    ] {
        assert_eq!(post_form(&api, &cookie, path, fields).await, status, "{path} {fields}");
    }
    assert_eq!(since().await, [] as [&str; 0]);

    api.patch(&format!("/v1/subscriptions/{hook}"), &json!({"active": true})).await.expect(200);
    for fields in ["what=selected&id=3&id=1&id=77", "what=selected&id=1", "what=one&id=2"] {
        let status = post_form(&api, &cookie, many, fields).await;
        assert!([200, 303].contains(&status), "{fields}: {status}");
    }
    assert_eq!(
        since().await,
        [
            "dead_letters.requeue dead-letters/3",
            "dead_letters.requeue dead-letters/1",
            "dead_letters.requeue dead-letters/2",
        ]
    );
    // So a letter's page says who sent it, also if it was one of many that were selected.
    let page = api.bare("GET", "/dead-letters/3", &[("cookie", &cookie)], "").await;
    assert!(page.text().contains("by <strong>root</strong>"), "{}", page.text());
}

/// A key store that keeps no records.
struct Forgetful;

#[async_trait]
impl PortalKeyStore for Forgetful {
    async fn create(&self, _: &NewPortalKey) -> StoreResult<ApiKey> {
        Err(StoreError::Other("not in this test".to_owned()))
    }

    async fn newest(&self, _: KeyView, _: PageRequest) -> StoreResult<Page<ApiKey>> {
        Ok(Page::empty())
    }
}

#[async_trait]
impl KeyCareStore for Forgetful {
    async fn revoke(&self, _: KeyId) -> StoreResult<Option<ApiKey>> {
        Ok(None)
    }

    async fn record(&self, _: &NewAuditRecord) -> StoreResult<()> {
        Err(StoreError::Unavailable("away".to_owned()))
    }
}

#[tokio::test]
async fn an_action_whose_record_fails_is_done_all_the_same() {
    let api = TestApi::with(|parts| parts.portal_keys = Arc::new(Forgetful)).await;
    let body = json!({"event_type": "t", "callback_url": "https://example.com/hook"});
    api.post("/v1/subscriptions", &body).await.expect(201);
    api.get("/v1/subscriptions/1").await.expect(200);
}

/// Every route of the API that changes something, by the OpenAPI document: one that is new is recorded, too, and by a
/// name.
#[tokio::test]
async fn every_route_that_changes_something_leaves_a_record() {
    let api = TestApi::new().await;
    let document = api.get("/openapi.json").await.expect(200);
    let mut visited = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            if method == "GET" || path.starts_with("/v1/events") {
                continue;
            }
            let before = records(&api, "?limit=500").await.len();
            let done = act(&api, &method, path).await;
            assert!((200..300).contains(&done.status), "{method} {path}: {}", done.text());
            let after = records(&api, "?limit=500").await;
            assert!(after.len() > before, "{method} {path} left no record");
            let action = after[0]["action"].as_str().unwrap();
            assert!(!action.contains(' '), "{method} {path} has no name among the actions: {action}");
            assert_eq!(after[0]["key_name"], "root");
            if path.starts_with("/v1/subscriptions") {
                assert_eq!(after[0]["tenant"], "default", "{method} {path} does not say whose it was");
            }
            if path == "/v1/redrives" {
                assert!(after[0]["target"].as_str().unwrap().starts_with("redrives/"), "{}", after[0]);
            }
            visited += 1;
        }
    }
    assert!(visited >= 8, "{visited}");
}

/// Does what this route is for.
async fn act(api: &TestApi, method: &str, path: &str) -> Response {
    let name = generate_key();
    let hook =
        || json!({"event_type": name, "callback_url": "https://example.com/hook", "max_retry_limit": 1});
    let id = match path {
        "/v1/subscriptions" => return api.post(path, &hook()).await,
        "/v1/dead-letters/requeue" => return api.post(path, &json!({"filter": {}})).await,
        "/v1/redrives" => return api.post(path, &json!({"kind": "dead_letters", "filter": {}})).await,
        "/v1/portal-sessions" => return api.post(path, &json!({"tenant": "acme"})).await,
        _ if path.starts_with("/v1/redrives/") => {
            api.post("/v1/redrives", &json!({"kind": "dead_letters", "filter": {}})).await.expect(202)["id"]
                .clone()
        }
        _ if path.starts_with("/v1/subscriptions/") => {
            // A host of its own: how often one is sent challenges is limited.
            let host = format!("h{}", hash_key(&name)[0]);
            let body = json!({"event_type": name, "callback_url": format!("https://{host}.example/hook")});
            let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].clone();
            if path.ends_with("/test") {
                api.verify_all().await;
            }
            id
        }
        _ if path.starts_with("/v1/dead-letters/") || path.starts_with("/v1/deliveries/") => {
            api.post("/v1/subscriptions", &hook()).await.expect(201);
            api.verify_all().await;
            let letter = api.dead_letter(&name, &json!(1)).await;
            if path.starts_with("/v1/dead-letters/") {
                json!(letter)
            } else {
                api.get(&format!("/v1/dead-letters/{letter}")).await.expect(200)["saga_id"].clone()
            }
        }
        _ => panic!("{method} {path} is new: do here what it is for"),
    };
    let (start, rest) = path.split_once('{').unwrap();
    let at = format!("{start}{id}{}", rest.split_once('}').unwrap().1);
    match method {
        "PATCH" => api.patch(&at, &json!({"active": false})).await,
        _ => api.as_key(ROOT_KEY, method, &at, None).await,
    }
}
