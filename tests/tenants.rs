//! Tenants as a product with several customers uses them: keys, events and portals of each, through the binary.

use crate::support::*;
use std::process::Output;

on_every_back_end! {
    two_customers_receive_and_see_their_own,
    a_key_that_expires_or_is_revoked_stops_within_5_seconds,
    keys_made_and_revoked_on_the_command_line_leave_records,
    a_portal_link_opens_one_tenant_for_a_while,
    events_are_sent_for_the_tenant_that_is_named,
}

fn text(output: &Output) -> String {
    let stream = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", stream(&output.stdout), stream(&output.stderr))
}

/// What a command prints; it must succeed.
async fn printed(installation: &Installation, arguments: &[&str]) -> String {
    let output = run(installation, arguments).await;
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a key with every scope.
async fn new_key(installation: &Installation, more: &[&str]) -> Value {
    let arguments =
        ["keys", "create", "--json", "--name", "a customer", "--scopes", "ingest,admin,operator,read"];
    let arguments: Vec<_> = arguments.iter().chain(more).copied().collect();
    serde_json::from_str(&printed(installation, &arguments).await).unwrap()
}

fn ids(page: &Value, name: &str) -> Vec<i64> {
    page["items"].as_array().unwrap().iter().map(|item| item[name].as_i64().unwrap()).collect()
}

/// Two customers, two keys, the same event type and the same external id.
async fn two_customers_receive_and_see_their_own(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let mut customers = Vec::new();
    for name in ["acme", "globex"] {
        let key = new_key(&installation, &["--tenant", name]).await;
        assert_eq!(key["tenant"], name);
        let api = server.api_with(key["key"].as_str());
        // One by its exact type, one by a prefix.
        let topic = if name == "acme" { "order.created" } else { "order.*" };
        let (subscription, secret) =
            api.verified_subscription(topic, &receiver.url(&format!("/{name}"))).await;
        customers.push((name, api, subscription, secret));
    }
    let mut events = Vec::new();
    for (name, api, ..) in &customers {
        let event = json!({"event_type": "order.created", "payload": {"of": name}, "external_id": "order-1"});
        let created = api.post("/v1/events", &event).await.expect(201);
        assert_eq!(created["tenant"], *name);
        let id = created["id"].as_i64().unwrap();
        events.push((id, api.delivery_with_status(id, "Completed").await));
    }
    for (index, (name, api, subscription, secret)) in customers.iter().enumerate() {
        let arrived = receiver.wait_for(&format!("/{name}"), 1, PATIENCE).await;
        assert_eq!(arrived.len(), 1, "its own and nothing else");
        assert_eq!(arrived[0].text(), json!({"of": name}).to_string());
        assert!(signed_by(&arrived[0], secret));

        let (event, delivery) = &events[index];
        assert_eq!(ids(&api.get("/v1/events").await.expect(200), "id"), [*event]);
        assert_eq!(ids(&api.get("/v1/subscriptions").await.expect(200), "id"), [*subscription]);
        let saga = delivery["saga_id"].as_i64().unwrap();
        assert_eq!(ids(&api.get("/v1/deliveries").await.expect(200), "saga_id"), [saga]);
        assert_eq!((&delivery["tenant"], &delivery["subscription_id"]), (&json!(name), &json!(subscription)));
        eventually("the statistics count its own delivery", || async {
            let stats = api.get("/v1/stats").await.expect(200);
            let own =
                json!([{"subscription_id": subscription, "delivered": 1, "failed": 0, "dead_lettered": 0}]);
            assert!(stats["queue_depths"].is_null());
            (stats["per_subscription"] == own).then_some(())
        })
        .await;

        // The other's rows are not there.
        let (other_event, other_delivery) = &events[1 - index];
        let (other_name, _, other_subscription, _) = &customers[1 - index];
        for path in [
            format!("/v1/events/{other_event}"),
            format!("/v1/events/evt_{other_event}"),
            format!("/v1/subscriptions/{other_subscription}"),
            format!("/v1/deliveries/{}", other_delivery["saga_id"]),
        ] {
            api.get(&path).await.expect(404);
        }
        let path = format!("/v1/subscriptions/{other_subscription}");
        api.patch(&path, &json!({"active": false})).await.expect(404);
        api.get(&format!("/v1/events?tenant={other_name}")).await.expect(403);
        let foreign = json!({"event_type": "order.created", "payload": 1, "tenant": other_name});
        api.post("/v1/events", &foreign).await.expect(403);
    }
    let all = server.api().get("/v1/events?event_type=order.created").await.expect(200);
    assert_eq!(ids(&all, "id").len(), 2, "an unbound key sees both, and nothing else was stored");
}

async fn a_key_that_expires_or_is_revoked_stops_within_5_seconds(installation: Installation) {
    let server = installation.serve().await;
    let expiring = new_key(&installation, &["--tenant", "acme", "--expires", "2s"]).await;
    let revoked = new_key(&installation, &[]).await;
    assert!(expiring["expires_at"].is_string() && revoked["expires_at"].is_null());
    let apis = [&expiring, &revoked].map(|key| server.api_with(key["key"].as_str()));
    let me = apis[0].get("/v1/me").await.expect(200);
    assert_eq!((&me["tenant"], &me["name"]), (&json!("acme"), &json!("a customer")));
    apis[1].get("/v1/me").await.expect(200);
    let said = printed(&installation, &["keys", "revoke", &revoked["id"].to_string(), "--json"]).await;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(said["revoked_at"].is_string() && said["id"] == revoked["id"], "{said}");
    // Both are past their end in two seconds from here, and have five more.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(7);
    for api in &apis {
        while api.get("/v1/me").await.status != 401 {
            assert!(tokio::time::Instant::now() < deadline, "the key still works");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    eventually("the use of the keys is noted", || async {
        let listed: Value =
            serde_json::from_str(&printed(&installation, &["keys", "list", "--json"]).await).unwrap();
        let listed = listed.as_array().unwrap().clone();
        let of = |key: &Value| listed.iter().find(|one| one["id"] == key["id"]).unwrap().clone();
        assert_eq!(of(&expiring)["tenant"], "acme");
        assert!(of(&revoked)["revoked_at"].is_string());
        [&expiring, &revoked].iter().all(|key| of(key)["last_used_at"].is_string()).then_some(())
    })
    .await;
    assert!(printed(&installation, &["keys", "list"]).await.contains("acme"));
    for bad in [["--tenant", "a b"], ["--expires", "0s"], ["--expires", "soon"]] {
        let arguments = ["keys", "create", "--name", "n", "--scopes", "read", bad[0], bad[1]];
        assert_eq!(run(&installation, &arguments).await.status.code(), Some(2), "{bad:?}");
    }
}

async fn keys_made_and_revoked_on_the_command_line_leave_records(installation: Installation) {
    let server = installation.serve().await;
    let bound = new_key(&installation, &["--tenant", "acme"]).await["id"].to_string();
    let free = new_key(&installation, &[]).await["id"].to_string();
    printed(&installation, &["keys", "revoke", &bound]).await;
    // Nothing happens, so nothing is recorded.
    assert_eq!(run(&installation, &["keys", "revoke", "987654"]).await.status.code(), Some(1));
    printed(&installation, &["keys", "list"]).await;
    let mut records = server.api().get("/v1/audit").await.expect(200)["items"].as_array().unwrap().clone();
    for record in &mut records {
        let record = record.as_object_mut().unwrap();
        assert!(record.remove("id").is_some() && record.remove("at").unwrap().is_string(), "{record:?}");
    }
    let record = |action: &str, key: &str, tenant: Option<&str>| {
        json!({
            "key_id": null, "key_name": "command line", "action": action, "target": format!("keys/{key}"),
            "tenant": tenant,
        })
    };
    let expected = [
        record("key.revoke", &bound, Some("acme")),
        record("key.create", &free, None),
        record("key.create", &bound, Some("acme")),
    ];
    assert_eq!(records, expected);
}

async fn a_portal_link_opens_one_tenant_for_a_while(installation: Installation) {
    let installation = installation.with("HOOKSAGA_PUBLIC_URL", "https://hooks.example.com/base");
    let server = installation.serve().await;
    let installation = installation.with("HOOKSAGA_URL", &server.url()).with("HOOKSAGA_API_KEY", ROOT_KEY);
    let link = printed(&installation, &["portal", "acme"]).await;
    let token = link.trim_end().strip_prefix("https://hooks.example.com/base/portal#token=");
    let customer = server.api_with(token);
    let me = customer.get("/v1/me").await.expect(200);
    assert_eq!((&me["tenant"], &me["scopes"]), (&json!("acme"), &json!(["admin", "operator", "read"])));
    assert!(me["expires_at"].is_string());
    customer.post("/v1/portal-sessions", &json!({"tenant": "acme"})).await.expect(403);

    let session = printed(&installation, &["portal", "acme", "--ttl", "5m", "--json"]).await;
    let session: Value = serde_json::from_str(&session).unwrap();
    let url = format!("https://hooks.example.com/base/portal#token={}", session["token"].as_str().unwrap());
    assert_eq!(session["url"], url);
    for (arguments, code, says) in [
        (vec!["portal", "a b"], 2, "1 to 100 characters"),
        (vec!["portal", "hooksaga"], 1, "server's own"),
        (vec!["portal", "acme", "--ttl", "10s"], 1, "1m to 24h"),
        (vec!["portal"], 2, "TENANT"),
    ] {
        let output = run(&installation, &arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(text(&output).contains(says), "{arguments:?}: {}", text(&output));
    }
}

async fn events_are_sent_for_the_tenant_that_is_named(installation: Installation) {
    let server = installation.serve().await;
    let installation = installation.with("HOOKSAGA_URL", &server.url()).with("HOOKSAGA_API_KEY", ROOT_KEY);
    printed(&installation, &["send", "t", "1", "--tenant", "acme"]).await;
    printed(&installation, &["send", "t", "2"]).await;
    let lines =
        "{\"event_type\":\"t\",\"payload\":3,\"tenant\":\"globex\"}\n{\"event_type\":\"t\",\"payload\":4}\n";
    std::fs::write(installation.folder.path().join("events.ndjson"), lines).unwrap();
    printed(&installation, &["send", "--file", "events.ndjson"]).await;
    printed(&installation, &["send", "--file", "events.ndjson", "--tenant", "acme"]).await;
    printed(&installation, &["send", "typed", "--file", "events.ndjson", "--tenant", "initech"]).await;
    let api = server.api();
    for (tenant, events) in [("acme", 2), ("default", 2), ("globex", 2), ("initech", 2)] {
        let page = api.get(&format!("/v1/events?tenant={tenant}")).await.expect(200);
        assert_eq!(page["items"].as_array().unwrap().len(), events, "{tenant}");
    }

    let output = run(&installation, &["send", "t", "--tenant", "hooksaga"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("server's own"), "{}", text(&output));
    assert_eq!(run(&installation, &["send", "t", "--tenant", "a b"]).await.status.code(), Some(2));

    // With a key that is bound to a tenant: its own by default, and no other.
    let key = new_key(&installation, &["--tenant", "acme"]).await;
    let installation = installation.with("HOOKSAGA_API_KEY", key["key"].as_str().unwrap());
    printed(&installation, &["send", "t", "5"]).await;
    for arguments in [vec!["send", "t", "--tenant", "globex"], vec!["send", "--file", "events.ndjson"]] {
        let output = run(&installation, &arguments).await;
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains("bound to the tenant acme"), "{}", text(&output));
    }
    assert_eq!(api.get("/v1/events").await.expect(200)["items"].as_array().unwrap().len(), 9);
}
