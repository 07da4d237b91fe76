//! Tenants: what belongs to whom, and the names that nobody may take.

use crate::support::TestApi;
use serde_json::{Value, json};

fn event(external_id: &str, tenant: &str) -> Value {
    json!({"event_type": "t", "payload": tenant, "external_id": external_id, "tenant": tenant})
}

fn ids(page: &Value) -> Vec<i64> {
    let id = |item: &Value| item["id"].as_i64().or_else(|| item["saga_id"].as_i64()).unwrap();
    page["items"].as_array().unwrap().iter().map(id).collect()
}

#[tokio::test]
async fn an_external_id_is_unique_per_tenant() {
    let api = TestApi::new().await;
    let first = api.post("/v1/events", &event("x", "acme")).await.expect(201);
    let second = api.post("/v1/events", &event("x", "globex")).await.expect(201);
    let third = api
        .post("/v1/events", &json!({"event_type": "t", "payload": 1, "external_id": "x"}))
        .await
        .expect(201);
    assert_eq!(
        [&first["tenant"], &second["tenant"], &third["tenant"]],
        [&json!("acme"), &json!("globex"), &json!("default")]
    );
    assert_eq!(api.post("/v1/events", &event("x", "acme")).await.expect(200)["id"], first["id"]);
    let mut other = event("x", "globex");
    other["payload"] = json!("other");
    assert_eq!(api.post("/v1/events", &other).await.expect(409)["existing_id"], second["id"]);

    // In one batch, too.
    let batch = json!({"events": [event("y", "acme"), event("y", "globex"), event("y", "acme")]});
    let results = api.post("/v1/events/batch", &batch).await.expect(200)["results"].clone();
    let told: Vec<_> =
        results.as_array().unwrap().iter().map(|one| (&one["tenant"], &one["duplicate"])).collect();
    let (acme, globex) = (json!("acme"), json!("globex"));
    assert_eq!(told, [(&acme, &json!(false)), (&globex, &json!(false)), (&acme, &json!(true))]);
}

#[tokio::test]
async fn a_subscription_is_unique_per_tenant() {
    let api = TestApi::new().await;
    let body =
        |tenant: &str| json!({"event_type": "t", "callback_url": "https://example.com/", "tenant": tenant});
    let first = api.post("/v1/subscriptions", &body("acme")).await.expect(201);
    let second = api.post("/v1/subscriptions", &body("globex")).await.expect(201);
    assert_eq!((&first["tenant"], &second["tenant"]), (&json!("acme"), &json!("globex")));
    assert_eq!(api.post("/v1/subscriptions", &body("globex")).await.expect(409)["existing_id"], second["id"]);
}

#[tokio::test]
async fn an_event_is_routed_within_its_tenant() {
    let api = TestApi::new().await;
    let mut subscriptions = Vec::new();
    for tenant in ["acme", "globex", "default"] {
        let body = json!({"event_type": "*", "callback_url": "https://example.com/", "tenant": tenant});
        subscriptions.push(api.post("/v1/subscriptions", &body).await.expect(201)["id"].clone());
    }
    api.verify_all().await;
    for (tenant, subscription) in ["acme", "globex", "default"].into_iter().zip(subscriptions) {
        let id = api.post("/v1/events", &event("x", tenant)).await.expect(201)["id"].clone();
        api.route().await;
        let shown = api.get(&format!("/v1/events/{id}")).await.expect(200);
        let deliveries = shown["deliveries"].as_array().unwrap();
        assert_eq!(deliveries.len(), 1, "{shown}");
        assert_eq!(
            (&deliveries[0]["subscription_id"], &deliveries[0]["tenant"]),
            (&subscription, &json!(tenant))
        );
    }
}

#[tokio::test]
async fn an_unbound_key_chooses_a_tenant_by_the_filter() {
    let api = TestApi::new().await;
    for tenant in ["acme", "globex"] {
        let subscription = json!({"event_type": "t", "callback_url": "https://example.com/", "tenant": tenant, "max_retry_limit": 1});
        api.post("/v1/subscriptions", &subscription).await.expect(201);
        api.verify_all().await;
        api.post("/v1/events", &event("x", tenant)).await.expect(201);
    }
    api.fail_all().await;
    for list in ["/v1/events", "/v1/subscriptions", "/v1/deliveries", "/v1/dead-letters"] {
        let all = api.get(list).await.expect(200);
        assert_eq!(all["items"].as_array().unwrap().len(), 2, "{list}");
        let mut together = Vec::new();
        for tenant in ["globex", "acme"] {
            let page = api.get(&format!("{list}?tenant={tenant}")).await.expect(200);
            assert_eq!(page["items"].as_array().unwrap().len(), 1, "{list}");
            assert_eq!(page["items"][0]["tenant"], tenant);
            together.extend(ids(&page));
        }
        assert_eq!(together, ids(&all), "{list}");
        assert_eq!(api.get(&format!("{list}?tenant=nobody")).await.expect(200)["items"], json!([]));
        for bad in ["", "a%20b", "%C3%A9"] {
            assert_eq!(api.get(&format!("{list}?tenant={bad}")).await.invalid_fields(), ["tenant"]);
        }
        let twice = api.get(&format!("{list}?tenant=acme&tenant=acme")).await;
        assert_eq!(twice.invalid_fields(), ["tenant"]);
    }
    let requeue = |filter: Value| json!({"filter": filter, "dry_run": true});
    for (filter, matched) in
        [(json!({}), 2), (json!({"tenant": "acme"}), 1), (json!({"tenant": "nobody"}), 0)]
    {
        let done = api.post("/v1/dead-letters/requeue", &requeue(filter)).await.expect(200);
        assert_eq!(done["matched"], matched);
    }
    let bad = api.post("/v1/dead-letters/requeue", &requeue(json!({"tenant": "a b"}))).await;
    assert_eq!(bad.invalid_fields(), ["filter.tenant"]);
}

#[tokio::test]
async fn statistics_are_confined_to_a_tenant() {
    let api = TestApi::new().await;
    let mut subscriptions = Vec::new();
    for tenant in ["acme", "globex"] {
        let body = json!({"event_type": "t", "callback_url": "https://example.com/", "tenant": tenant, "max_retry_limit": 1});
        subscriptions.push(api.post("/v1/subscriptions", &body).await.expect(201)["id"].clone());
    }
    api.verify_all().await;
    for external_id in ["1", "2"] {
        api.post("/v1/events", &event(external_id, "acme")).await.expect(201);
    }
    api.fail_all().await;
    api.post("/v1/events", &event("3", "globex")).await.expect(201);
    api.route().await;
    let key = api.key_of("globex").await;
    let bound = api.as_key(&key, "GET", "/v1/stats", None).await.expect(200);
    let chosen = api.get("/v1/stats?tenant=globex").await.expect(200);
    assert_eq!(bound, chosen);
    assert_eq!(bound["open_deliveries"], json!({"Pending": 1, "InProgress": 0, "PendingRetry": 0}));
    assert_eq!((&bound["per_minute"], &bound["per_subscription"]), (&json!([]), &json!([])));
    assert!(bound["queue_depths"].is_null());

    let acme = api.get("/v1/stats?tenant=acme").await.expect(200);
    assert_eq!(acme["open_deliveries"], json!({"Pending": 0, "InProgress": 0, "PendingRetry": 0}));
    assert_eq!(
        acme["per_subscription"],
        json!([{"subscription_id": subscriptions[0], "delivered": 0, "failed": 2, "dead_lettered": 2}])
    );
    let everybody = api.get("/v1/stats").await.expect(200);
    assert!(everybody["queue_depths"].is_object());
    assert_eq!(everybody["open_deliveries"]["Pending"], 1);
    assert_eq!(api.get("/v1/stats?tenant=a%20b").await.invalid_fields(), ["tenant"]);
}

#[tokio::test]
async fn a_bad_tenant_is_refused_with_the_rule() {
    let api = TestApi::new().await;
    for tenant in [
        json!(""),
        json!("a b"),
        json!("a/b"),
        json!("é"),
        json!("*"),
        json!("x".repeat(101)),
        json!(7),
        json!(["a"]),
    ] {
        let event = json!({"event_type": "t", "payload": 1, "tenant": tenant});
        assert_eq!(api.post("/v1/events", &event).await.invalid_fields(), ["tenant"], "{tenant}");
        let batch = json!({"events": [{"event_type": "t", "payload": 1}, event]});
        assert_eq!(api.post("/v1/events/batch", &batch).await.invalid_fields(), ["events[1].tenant"]);
        let subscription =
            json!({"event_type": "t", "callback_url": "https://example.com/", "tenant": tenant});
        let response = api.post("/v1/subscriptions", &subscription).await;
        assert_eq!(response.invalid_fields(), ["tenant"], "{tenant}");
    }
    let problem =
        api.post("/v1/events", &json!({"event_type": "t", "payload": 1, "tenant": "a b"})).await.expect(422);
    assert!(problem["detail"].as_str().unwrap().contains("1 to 100 characters"), "{problem}");
    assert_eq!(api.get("/v1/events").await.expect(200)["items"], json!([]));
    for tenant in ["x".repeat(100), "AZaz09_.:-".to_owned()] {
        api.post("/v1/events", &event("x", &tenant)).await.expect(201);
    }
    let none = json!({"event_type": "t", "payload": 1, "tenant": null});
    assert_eq!(api.post("/v1/events", &none).await.expect(201)["tenant"], "default");
    let none = json!({
        "event_type": "t", "callback_url": "https://example.com/", "tenant": null, "active": null, "headers": null,
    });
    let created = api.post("/v1/subscriptions", &none).await.expect(201);
    assert_eq!((&created["tenant"], &created["active"]), (&json!("default"), &json!(true)));
    let verify = format!("/v1/subscriptions/{}/verify", created["id"]);
    api.post(&verify, &json!({"trusted": null})).await.expect(202);
}

#[tokio::test]
async fn nobody_writes_events_of_the_server_itself() {
    let api = TestApi::new().await;
    let bound = api.key_of("hooksaga").await;
    for (body, field) in [
        (json!({"event_type": "t", "payload": 1, "tenant": "hooksaga"}), "tenant"),
        (json!({"event_type": "hooksaga.test", "payload": 1}), "event_type"),
        (json!({"event_type": "hooksaga.", "payload": 1}), "event_type"),
    ] {
        let response = api.post("/v1/events", &body).await;
        assert_eq!(response.invalid_fields(), [field], "{body}");
        assert!(response.json()["detail"].as_str().unwrap().contains("server's own"));
        let batch = json!({"events": [{"event_type": "t", "payload": 1}, body]});
        let response = api.post("/v1/events/batch", &batch).await;
        assert_eq!(response.invalid_fields(), [format!("events[1].{field}")], "{body}");
    }
    // A key that is bound to it writes there by default, and may not either.
    let plain = json!({"event_type": "t", "payload": 1});
    assert_eq!(api.as_key(&bound, "POST", "/v1/events", Some(&plain)).await.invalid_fields(), ["tenant"]);
    let batch = json!({"events": [plain]});
    api.as_key(&bound, "POST", "/v1/events/batch", Some(&batch)).await.expect(422);
    assert_eq!(api.get("/v1/events").await.expect(200)["items"], json!([]));
    for near in ["hooksaga", "hooksagas.x", "Hooksaga.x", "a.hooksaga.b"] {
        api.post("/v1/events", &json!({"event_type": near, "payload": 1, "tenant": "Hooksaga"}))
            .await
            .expect(201);
    }
}

#[tokio::test]
async fn only_an_unbound_admin_key_subscribes_to_events_of_the_server_itself() {
    let api = TestApi::new().await;
    let body = |tenant: Option<&str>| {
        let mut body = json!({"event_type": "hooksaga.*", "callback_url": "https://example.com/ops"});
        if let Some(tenant) = tenant {
            body["tenant"] = json!(tenant);
        }
        body
    };
    for (bound_to, named) in [("acme", Some("hooksaga")), ("hooksaga", None), ("hooksaga", Some("hooksaga"))]
    {
        let key = api.key_of(bound_to).await;
        api.as_key(&key, "POST", "/v1/subscriptions", Some(&body(named))).await.expect(403);
    }
    let unbound = api.key("admin").await;
    let created =
        api.as_key(&unbound, "POST", "/v1/subscriptions", Some(&body(Some("hooksaga")))).await.expect(201);
    assert_eq!(created["tenant"], "hooksaga");
}

#[tokio::test]
async fn a_bound_key_writes_for_its_tenant_without_naming_it() {
    let api = TestApi::new().await;
    let key = api.key_of("acme").await;
    let event = json!({"event_type": "t", "payload": 1});
    assert_eq!(api.as_key(&key, "POST", "/v1/events", Some(&event)).await.expect(201)["tenant"], "acme");
    let batch = json!({"events": [event, {"event_type": "t", "payload": 1, "tenant": "acme"}]});
    let results = api.as_key(&key, "POST", "/v1/events/batch", Some(&batch)).await.expect(200);
    assert!(results["results"].as_array().unwrap().iter().all(|one| one["tenant"] == "acme"), "{results}");
    let subscription = json!({"event_type": "t", "callback_url": "https://example.com/"});
    let created = api.as_key(&key, "POST", "/v1/subscriptions", Some(&subscription)).await.expect(201);
    assert_eq!(created["tenant"], "acme");
    assert_eq!(api.get("/v1/events?tenant=default").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_tenant_does_not_change() {
    let api = TestApi::new().await;
    let id = api.subscription("t", "hook").await;
    let path = format!("/v1/subscriptions/{id}");
    for tenant in ["acme", "default"] {
        let response = api.patch(&path, &json!({"tenant": tenant})).await;
        assert_eq!(response.invalid_fields(), ["tenant"]);
        assert!(response.json()["detail"].as_str().unwrap().contains("read-only"));
    }
    assert_eq!(api.get(&path).await.expect(200)["tenant"], "default");
}

#[tokio::test]
async fn an_event_is_found_by_the_id_that_receivers_see() {
    let api = TestApi::new().await;
    api.verified_subscription("t", "hook").await;
    let id = api.event("t", &json!(1)).await;
    api.route().await;
    let plain = api.get(&format!("/v1/events/{id}")).await.expect(200);
    assert_eq!(api.get(&format!("/v1/events/evt_{id}")).await.expect(200), plain);
    let by_filter = api.get(&format!("/v1/deliveries?event_id=evt_{id}")).await.expect(200);
    assert_eq!(by_filter, api.get(&format!("/v1/deliveries?event_id={id}")).await.expect(200));
    assert_eq!(by_filter["items"].as_array().unwrap().len(), 1);
    for bad in ["evt_", "evt_0", "evt_-1", "evt_evt_1", "EVT_1", "evt_x", "evt1", "evt_01"] {
        api.get(&format!("/v1/events/{bad}")).await.expect(400);
        assert_eq!(api.get(&format!("/v1/deliveries?event_id={bad}")).await.invalid_fields(), ["event_id"]);
    }
    api.get(&format!("/v1/events/evt_{}", id + 1)).await.expect(404);
    for list in ["subscriptions", "deliveries", "dead-letters"] {
        api.get(&format!("/v1/{list}/evt_1")).await.expect(400);
    }
}
