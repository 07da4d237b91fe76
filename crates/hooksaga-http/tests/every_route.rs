//! Visits every route with a key that is bound to another tenant than the rows: it finds, lists, counts and changes
//! nothing of theirs.
//!
//! It takes its routes from the router and from the OpenAPI document. A route that it does not know fails it: say in
//! [`visit`] what confines that route.

use crate::support::{Response, TestApi};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// No row has this id.
const NOBODY: i64 = 4_000_000_000;

/// Paths that show nobody's rows without a session. They need no key, and are not in the document.
const STATIC: [&str; 6] =
    ["/", "/assets/{name}", "/docs", "/docs/docs.css", "/docs/docs.js", "/openapi.json"];

/// Two tenants with the same events, types and callbacks; a key of each.
struct Neighbours {
    api: TestApi,
    document: Value,
    /// The tenant that the visits must not see. Its rows, by the name of their list.
    ids: BTreeMap<&'static str, i64>,
    own: String,
    foreign: String,
}

const OWNER: &str = "acme";
const STRANGER: &str = "globex";

impl Neighbours {
    async fn new() -> Self {
        let api = TestApi::new().await;
        let document = api.bare("GET", "/openapi.json", &[], "").await.expect(200);
        let own = api.key_of(OWNER).await;
        let foreign = api.key_of(STRANGER).await;
        let mut all = Self { api, document, ids: BTreeMap::new(), own, foreign };
        all.ids = all.fill(&all.own, "secret").await;
        let shared = shared_event("secret");
        all.send(&all.own, "POST", "/v1/events", Some(&shared)).await.expect(201);
        all.send(&all.own, "POST", "/v1/subscriptions", Some(&shared_subscription())).await.expect(201);
        all.api.route().await;
        all.api.verify_all().await;
        all
    }

    /// A dead letter and what belongs to it, and a delivery that is open.
    async fn fill(&self, key: &str, payload: &str) -> BTreeMap<&'static str, i64> {
        let subscription = json!({
            "event_type": "order.created", "callback_url": "https://example.com/hook", "max_retry_limit": 1,
            "description": payload,
        });
        let subscription = self.send(key, "POST", "/v1/subscriptions", Some(&subscription)).await.expect(201);
        self.api.verify_all().await;
        let event = |external_id: &str| json!({"event_type": "order.created", "payload": payload, "external_id": external_id});
        let first = self.send(key, "POST", "/v1/events", Some(&event("order-1"))).await.expect(201);
        self.api.fail_all().await;
        self.send(key, "POST", "/v1/events", Some(&event("order-2"))).await.expect(201);
        self.api.route().await;
        let letter = self.send(key, "GET", "/v1/dead-letters", None).await.expect(200)["items"][0].clone();
        let redrive =
            json!({"kind": "events", "subscription_id": subscription["id"], "since": "2020-01-01T00:00:00Z"});
        let redrive = self.send(key, "POST", "/v1/redrives", Some(&redrive)).await.expect(202);
        let letters = json!({"kind": "dead_letters", "filter": {}});
        self.send(key, "POST", "/v1/redrives", Some(&letters)).await.expect(202);
        let id = |value: &Value| value.as_i64().unwrap();
        BTreeMap::from([
            ("events", id(&first["id"])),
            ("subscriptions", id(&subscription["id"])),
            ("deliveries", id(&letter["saga_id"])),
            ("dead-letters", id(&letter["id"])),
            ("redrives", id(&redrive["id"])),
        ])
    }

    async fn send(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> Response {
        self.api.as_key(key, method, path, body).await
    }

    async fn as_foreign(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        self.send(&self.foreign, method, path, body).await
    }

    /// Everything that the owner can see, but for the clock.
    async fn seen_by_owner(&self) -> Value {
        let mut seen = json!({});
        for (list, id) in &self.ids {
            for path in [format!("/v1/{list}"), format!("/v1/{list}/{id}")] {
                seen[&path] = self.send(&self.own, "GET", &path, None).await.expect(200);
            }
        }
        // Read at most once a second; what they are made of is above.
        let open = self.api.stores.reader.stats(&scope(OWNER)).await.unwrap();
        seen["stats"] = json!(format!("{:?} {:?}", open.minutes, open.subscriptions));
        seen
    }

    fn operation(&self, method: &str, path: &str) -> &Value {
        &self.document["paths"][path][method.to_lowercase()]
    }
}

/// What both tenants have, with other content.
fn shared_event(payload: &str) -> Value {
    json!({"event_type": "shared", "payload": payload, "external_id": "shared"})
}

fn shared_subscription() -> Value {
    json!({"event_types": ["shared", "shared.*"], "callback_url": "https://example.com/shared"})
}

fn scope(tenant: &str) -> hooksaga_store::TenantScope {
    hooksaga_store::TenantScope::One(tenant.parse().unwrap())
}

/// The paths of the router, as it lists them itself.
fn paths_of_the_router(api: &TestApi) -> BTreeSet<String> {
    let shown = format!("{:?}", api.app);
    let (_, paths) = shown.split_once("node: Node { paths: {").expect("the router lists its paths");
    let (paths, _) = paths.split_once("} }").expect("the list ends");
    paths.split('"').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// Every route: what the document lists, which is what the router has.
fn routes(all: &Neighbours) -> Vec<(String, String)> {
    let listed = all.document["paths"].as_object().unwrap();
    let mut documented: BTreeSet<_> = listed.keys().cloned().collect();
    documented.extend(STATIC.map(ToOwned::to_owned));
    // The pages need a session, and are visited with one in `dashboard.rs`.
    for site in ["", "/portal"] {
        let pages = crate::dashboard::PATHS.into_iter().filter(|path| !(site.is_empty() && path.is_empty()));
        documented.extend(pages.map(|path| format!("{site}{path}")));
    }
    documented.extend(crate::dashboard::OPERATORS_PATHS.map(ToOwned::to_owned));
    assert_eq!(paths_of_the_router(&all.api), documented, "every path of the router is documented");
    let methods = |item: &Value| -> Vec<String> {
        item.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect()
    };
    listed
        .iter()
        .flat_map(|(path, item)| methods(item).into_iter().map(move |method| (method, path.clone())))
        .collect()
}

#[tokio::test]
async fn a_foreign_key_finds_lists_counts_and_changes_nothing_on_any_route() {
    let all = Neighbours::new().await;
    visit_all(&all).await;

    // Again, now that the stranger has the same rows.
    all.fill(&all.foreign, "own").await;
    let open = json!({"event_type": "order.created", "payload": "secret", "external_id": "order-3"});
    all.send(&all.own, "POST", "/v1/events", Some(&open)).await.expect(201);
    all.api.route().await;
    // Statistics are read once a second at most.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    visit_all(&all).await;

    // What the owner cannot see itself: its secret is the one it was given, and no round of verification was asked for.
    let checks = all.api.stores.verifier.take_checks(10, std::time::Duration::ZERO).await.unwrap();
    assert!(checks.iter().all(|check| check.tenant != OWNER), "{checks:?}");
    let verify = format!("/v1/subscriptions/{}/verify", all.ids["subscriptions"]);
    all.send(&all.own, "POST", &verify, None).await.expect(202);
    let checks = all.api.stores.verifier.take_checks(10, std::time::Duration::ZERO).await.unwrap();
    let secrets: Vec<_> =
        checks.iter().filter(|check| check.tenant == OWNER).map(|check| check.secrets.len()).collect();
    assert_eq!(secrets, [1]);
}

/// Visits every route; none changes anything that the owner sees.
async fn visit_all(all: &Neighbours) {
    let before = all.seen_by_owner().await;
    let routes = routes(all);
    assert!(routes.len() >= 24, "{routes:?}");
    for (method, path) in routes {
        visit(all, &method, &path).await;
        assert_eq!(all.seen_by_owner().await, before, "{method} {path} changed something");
    }
}

/// Sends what could reach the owner's rows by this route.
async fn visit(all: &Neighbours, method: &str, path: &str) {
    if path.contains('{') {
        return by_id(all, method, path).await;
    }
    match (method, path) {
        (
            "GET",
            "/v1/events" | "/v1/subscriptions" | "/v1/deliveries" | "/v1/dead-letters" | "/v1/redrives",
        ) => {
            list(all, path).await;
        }
        ("POST", "/v1/events") => ingest(all).await,
        ("POST", "/v1/events/batch") => ingest_batch(all).await,
        ("POST", "/v1/subscriptions") => subscribe(all).await,
        ("POST", "/v1/dead-letters/requeue") => requeue_many(all).await,
        ("POST", "/v1/redrives") => start_redrives(all).await,
        ("POST", "/v1/portal-sessions") => {
            let body = json!({"tenant": OWNER});
            let keys = all.api.stores.keys.list().await.unwrap().len();
            refused(&all.as_foreign(method, path, Some(&body)).await);
            assert_eq!(all.api.stores.keys.list().await.unwrap().len(), keys, "no key was created");
        }
        ("GET", "/v1/audit") => {
            for query in ["", "?tenant=globex", "?tenant=acme", "?color=1"] {
                refused(&all.as_foreign(method, &format!("{path}{query}"), None).await);
            }
        }
        ("GET", "/v1/stats") => stats(all).await,
        ("GET", "/v1/me") => {
            assert_eq!(all.as_foreign(method, path, None).await.expect(200)["tenant"], STRANGER);
        }
        ("GET", "/healthz" | "/readyz") => assert_eq!(all.as_foreign(method, path, None).await.status, 200),
        ("GET", "/metrics") => {
            let metrics = all.as_foreign(method, path, None).await;
            assert!(!metrics.text().contains(OWNER), "no label holds a tenant");
        }
        _ => panic!("{method} {path} is new: say here what confines it to the key's tenant"),
    }
}

/// A body or a filter that names another tenant.
fn refused(response: &Response) {
    let problem = response.expect(403);
    assert_eq!(problem["type"], "urn:hooksaga:problem:not-for-this-key");
    assert!(!response.text().contains("secret"));
}

/// A row of the owner is found no better than a row that does not exist: the same response, whatever the body.
async fn by_id(all: &Neighbours, method: &str, path: &str) {
    let list = path.split('/').nth(2).unwrap();
    let id =
        *all.ids.get(list).unwrap_or_else(|| panic!("{path} is of a new kind: add a row of it to `fill`"));
    let (start, end) =
        path.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?.1))).unwrap();
    let at = |id: &str| format!("{start}{id}{end}");
    let reads_body = all.operation(method, path)["requestBody"].is_object();
    let bodies = if path.ends_with("/verify") {
        vec![Some(json!({"trusted": false})), None, Some(json!({"trusted": true})), Some(json!({"color": 1}))]
    } else if reads_body {
        vec![
            Some(json!({"active": false})),
            Some(json!({})),
            Some(json!({"description": null})),
            Some(json!({"color": 1})),
        ]
    } else if method == "GET" {
        vec![None]
    } else {
        vec![None, Some(json!({})), Some(json!({"color": 1}))]
    };
    let prefixes: &[&str] = if list == "events" { &["", "evt_"] } else { &[""] };
    let mut found = Vec::new();
    for (body, prefix) in bodies.iter().flat_map(|body| prefixes.iter().map(move |prefix| (body, prefix))) {
        let there = all.as_foreign(method, &at(&format!("{prefix}{id}")), body.as_ref()).await;
        let nowhere = all.as_foreign(method, &at(&format!("{prefix}{NOBODY}")), body.as_ref()).await;
        assert_eq!(there.status, nowhere.status, "{method} {path} {body:?}");
        let (mut there_headers, mut nowhere_headers) = (there.headers.clone(), nowhere.headers.clone());
        // The ids differ in length.
        there_headers.remove("content-length");
        nowhere_headers.remove("content-length");
        assert_eq!(there_headers, nowhere_headers, "{method} {path} {body:?}");
        let blank = |response: &Response, id: i64| response.text().replace(&format!(" {id}\""), " ID\"");
        assert_eq!(blank(&there, id), blank(&nowhere, NOBODY), "{method} {path} {body:?}");
        found.push(there.status);
    }
    assert_eq!(found[0], 404, "{method} {path}");
    // And the owner does find it: the visit asked for the right row.
    if method == "GET" {
        all.send(&all.own, method, &at(&id.to_string()), None).await.expect(200);
    }
}

/// The ids of a page; every row is the stranger's.
fn own_rows(response: &Response) -> Vec<Value> {
    let page = response.expect(200);
    let items = page["items"].as_array().unwrap().clone();
    assert!(items.iter().all(|item| item["tenant"] == STRANGER), "{page}");
    assert!(!response.text().contains("secret"), "{page}");
    items
}

async fn list(all: &Neighbours, path: &str) {
    own_rows(&all.as_foreign("GET", path, None).await);
    let own = own_rows(&all.as_foreign("GET", &format!("{path}?tenant={STRANGER}"), None).await);
    refused(&all.as_foreign("GET", &format!("{path}?tenant={OWNER}"), None).await);
    refused(&all.as_foreign("GET", &format!("{path}?tenant={OWNER}&limit=0&color=1"), None).await);

    // Every filter with what the owner's rows have. What names the owner's rows alone matches nothing; what both have
    // matches the stranger's.
    let operation = all.operation("GET", path);
    let filters =
        operation["parameters"].as_array().unwrap().iter().map(|param| param["name"].as_str().unwrap());
    let (subscription, event) = (all.ids["subscriptions"], all.ids["events"]);
    let correlation =
        all.send(&all.own, "GET", &format!("/v1/events/{event}"), None).await.expect(200)["correlation_id"]
            .clone();
    for filter in filters {
        let (values, shared) = match filter {
            "tenant" | "limit" | "cursor" => continue,
            "subscription_id" => (vec![subscription.to_string()], false),
            "event_id" => (vec![event.to_string(), format!("evt_{event}")], false),
            "correlation_id" => (vec![correlation.as_str().unwrap().to_owned()], false),
            "event_type" => (vec!["order.created".to_owned()], true),
            "external_id" => (vec!["order-1".to_owned()], true),
            "callback_url" => (vec!["https://example.com/hook".to_owned()], true),
            "final_error_code" => (vec!["HTTP_503".to_owned()], true),
            "active" | "verified" | "disabled" | "requeued" => {
                (vec!["true".to_owned(), "false".to_owned()], true)
            }
            "status" => (vec!["Pending".to_owned(), "DeadLettered&status=Pending".to_owned()], true),
            "created_after" => (vec!["2020-01-01T00:00:00Z".to_owned()], true),
            "created_before" => (vec!["2999-01-01T00:00:00Z".to_owned()], true),
            _ => panic!("{path} has a new filter {filter}: say here what it finds"),
        };
        for value in values {
            let query = format!("{path}?{filter}={value}");
            let found = own_rows(&all.as_foreign("GET", &query, None).await);
            assert!(shared || found.is_empty(), "{query}");
            let seen = all.send(&all.own, "GET", &query, None).await.expect(200);
            let expected = !matches!(value.as_str(), "true" | "false");
            assert!(!expected || seen["items"] != json!([]), "the owner finds its rows with {query}");
        }
    }

    // A cursor of another key, unbound or bound, shows own rows only.
    for (number, cursor) in cursors(all, path).await.into_iter().enumerate() {
        let response = all.as_foreign("GET", &format!("{path}?cursor={cursor}"), None).await;
        if response.status != 400 {
            let found = own_rows(&response);
            assert!(found.iter().all(|item| own.contains(item)), "cursor {number}");
        }
    }
}

/// Cursors between the owner's rows, as the owner and the root key get them.
async fn cursors(all: &Neighbours, path: &str) -> Vec<String> {
    let mut cursors = Vec::new();
    for key in [all.own.as_str(), crate::support::ROOT_KEY] {
        let page = all.send(key, "GET", &format!("{path}?limit=1"), None).await.expect(200);
        cursors.extend(page["next_cursor"].as_str().map(ToOwned::to_owned));
    }
    assert!(!cursors.is_empty() || path == "/v1/dead-letters", "{path} has more than one row");
    cursors
}

async fn ingest(all: &Neighbours) {
    let path = "/v1/events";
    let body = json!({"event_type": "t", "payload": 1, "tenant": OWNER, "external_id": "intruder"});
    refused(&all.as_foreign("POST", path, Some(&body)).await);
    // The owner's external ids are no conflict, and tell nothing.
    let stored = all.as_foreign("POST", path, Some(&shared_event("own"))).await;
    assert!([200, 201].contains(&stored.status), "{}", stored.text());
    assert_eq!(stored.json()["tenant"], STRANGER);
    let own = own_rows(&all.as_foreign("GET", "/v1/events?external_id=shared", None).await);
    assert_eq!(own[0]["id"], stored.json()["id"]);
}

async fn ingest_batch(all: &Neighbours) {
    let stored = |page: Value| page["items"].as_array().unwrap().len();
    let before = stored(all.as_foreign("GET", "/v1/events?limit=500", None).await.expect(200));
    let event = |tenant: Value| match tenant {
        Value::Null => json!({"event_type": "t", "payload": 1}),
        tenant => json!({"event_type": "t", "payload": 1, "tenant": tenant}),
    };
    for foreign_at in 0..3 {
        let mut events = vec![event(json!(null)), event(json!(STRANGER)), event(json!(null))];
        events[foreign_at] = event(json!(OWNER));
        refused(&all.as_foreign("POST", "/v1/events/batch", Some(&json!({"events": events}))).await);
    }
    let after = stored(all.as_foreign("GET", "/v1/events?limit=500", None).await.expect(200));
    assert_eq!(before, after, "nothing of such a batch is stored");
}

async fn subscribe(all: &Neighbours) {
    let path = "/v1/subscriptions";
    let mut body = json!({"event_type": "*", "callback_url": "https://example.com/spy", "tenant": OWNER});
    refused(&all.as_foreign("POST", path, Some(&body)).await);
    body["tenant"] = json!("hooksaga");
    refused(&all.as_foreign("POST", path, Some(&body)).await);
    // The owner's subscription is no conflict, and tells nothing.
    let created = all.as_foreign("POST", path, Some(&shared_subscription())).await;
    let own = own_rows(&all.as_foreign("GET", &format!("{path}?event_type=shared"), None).await);
    match created.status {
        201 => assert_eq!(created.json()["id"], own[0]["id"]),
        _ => assert_eq!(created.expect(409)["existing_id"], own[0]["id"]),
    }
}

async fn requeue_many(all: &Neighbours) {
    let path = "/v1/dead-letters/requeue";
    for filter in [json!({"tenant": OWNER}), json!({"tenant": OWNER, "requeued": false})] {
        refused(&all.as_foreign("POST", path, Some(&json!({"filter": filter}))).await);
    }
    let none = json!({"matched": 0, "requeued": 0, "skipped": 0, "complete": true});
    let letters = own_rows(&all.as_foreign("GET", "/v1/dead-letters?requeued=false", None).await).len();
    for dry_run in [true, false] {
        let body = json!({"filter": {"subscription_id": all.ids["subscriptions"]}, "dry_run": dry_run});
        assert_eq!(all.as_foreign("POST", path, Some(&body)).await.expect(200), none, "{body}");
        let body = json!({"filter": {}, "dry_run": dry_run});
        let done = all.as_foreign("POST", path, Some(&body)).await.expect(200);
        assert_eq!(done["matched"], letters, "its own letters: {done}");
    }
}

/// Its own letters only, and no subscription of the owner's.
async fn start_redrives(all: &Neighbours) {
    let path = "/v1/redrives";
    let foreign = json!({"kind": "dead_letters", "filter": {"tenant": OWNER}});
    refused(&all.as_foreign("POST", path, Some(&foreign)).await);
    for id in [all.ids["subscriptions"], NOBODY] {
        let body = json!({"kind": "events", "subscription_id": id, "since": "2020-01-01T00:00:00Z"});
        all.as_foreign("POST", path, Some(&body)).await.expect(404);
    }
    let own = json!({"kind": "dead_letters", "filter": {}});
    assert_eq!(all.as_foreign("POST", path, Some(&own)).await.expect(202)["tenant"], STRANGER);
}

async fn stats(all: &Neighbours) {
    refused(&all.as_foreign("GET", &format!("/v1/stats?tenant={OWNER}"), None).await);
    let response = all.as_foreign("GET", "/v1/stats", None).await;
    let stats = response.expect(200);
    assert!(stats["queue_depths"].is_null(), "the queues are the server's");
    let subscriptions = own_rows(&all.as_foreign("GET", "/v1/subscriptions", None).await);
    let ids: Vec<_> = subscriptions.iter().map(|subscription| &subscription["id"]).collect();
    for counted in stats["per_subscription"].as_array().unwrap() {
        assert!(ids.contains(&&counted["subscription_id"]), "{counted}");
    }
    let letters = own_rows(&all.as_foreign("GET", "/v1/dead-letters", None).await).len();
    let minutes = stats["per_minute"].as_array().unwrap().iter();
    let dead: u64 = minutes.map(|minute| minute["dead_lettered"].as_u64().unwrap()).sum();
    assert_eq!(dead, letters as u64, "its own dead letters: {stats}");
    let open: u64 =
        stats["open_deliveries"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    let listed = own_rows(
        &all.as_foreign("GET", "/v1/deliveries?status=Pending&status=InProgress&status=PendingRetry", None)
            .await,
    );
    assert_eq!(open, listed.len() as u64, "{stats}");
}
