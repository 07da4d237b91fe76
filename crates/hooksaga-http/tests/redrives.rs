//! `/v1/redrives`, and what an event says about whom it missed.

use crate::support::{Response, TestApi};
use hooksaga_store::{Stage, StepLimits};
use serde_json::{Value, json};

const LIMITS: StepLimits = StepLimits { examine: 100, create: 100, default_limit: 5 };
const SINCE: &str = "2020-01-01T00:00:00Z";

impl TestApi {
    /// Takes redrives to their end, as the component would.
    pub(crate) async fn redrive_all(&self) {
        while self.stores.redrives.advance(LIMITS).await.unwrap().is_some() {}
    }

    async fn start(&self, body: &Value) -> Response {
        self.post("/v1/redrives", body).await
    }
}

#[tokio::test]
async fn dead_letters_are_redriven() {
    let api = TestApi::new().await;
    let subscription = api.verified_subscription("t", "hook").await;
    api.dead_letter("t", &json!(1)).await;
    api.dead_letter("t", &json!(2)).await;
    while api.was_woken(Stage::Redrives).await {}
    let body = json!({"kind": "dead_letters", "filter": {"subscription_id": subscription}});
    let response = api.start(&body).await;
    let started = response.expect(202);
    assert_eq!(response.header("location"), format!("/v1/redrives/{}", started["id"]));
    assert!(api.was_woken(Stage::Redrives).await);
    assert_eq!(
        (&started["kind"], &started["status"], &started["tenant"], &started["started_by"]),
        (&json!("dead_letters"), &json!("running"), &Value::Null, &json!("root"))
    );
    assert_eq!(started["filter"]["subscription_id"], subscription);
    // What is shown can be sent as it is.
    let mut same = json!({});
    for name in ["kind", "filter", "subscription_id", "since", "until"] {
        same[name] = started[name].clone();
    }
    let again = api.start(&same).await.expect(202);
    assert_eq!(again["filter"], started["filter"]);
    api.post_nothing(&format!("/v1/redrives/{}/cancel", again["id"])).await.expect(200);
    api.redrive_all().await;
    let done = api.get(response.header("location")).await.expect(200);
    assert_eq!(
        (&done["status"], &done["examined"], &done["created"], &done["skipped"]),
        (&json!("done"), &json!(2), &json!(2), &json!(0))
    );
    assert_eq!(api.get("/v1/redrives").await.expect(200)["items"][1], done);
    let letters = api.get("/v1/dead-letters?requeued=false").await.expect(200);
    assert_eq!(letters["items"], json!([]));
}

#[tokio::test]
async fn events_are_redriven_to_a_subscription() {
    let api = TestApi::new().await;
    let old = api.event("t", &json!(1)).await;
    api.event("other", &json!(1)).await;
    api.route().await;
    let subscription = api.verified_subscription("t", "hook").await;
    let body = json!({"kind": "events", "subscription_id": subscription, "since": SINCE});
    let started = api.start(&body).await.expect(202);
    assert_eq!((&started["subscription_id"], &started["tenant"]), (&json!(subscription), &json!("default")));
    assert!(started["until"].is_string() && started["filter"].is_null());
    assert_eq!(started["percent"], json!(0));
    let no_filter = json!({"kind": "events", "subscription_id": subscription, "since": SINCE, "filter": null, "until": null});
    let same = api.start(&no_filter).await.expect(202);
    api.post_nothing(&format!("/v1/redrives/{}/cancel", same["id"])).await.expect(200);
    api.redrive_all().await;
    let done = api.get(&format!("/v1/redrives/{}", started["id"])).await.expect(200);
    assert_eq!(
        (&done["status"], &done["created"], &done["percent"]),
        (&json!("done"), &json!(1), &json!(100))
    );
    let deliveries = api.get(&format!("/v1/deliveries?subscription_id={subscription}")).await.expect(200);
    assert_eq!(deliveries["items"][0]["event_id"], old);

    let paused = api.subscription("t", "paused").await;
    api.start(&json!({"kind": "events", "subscription_id": paused, "since": SINCE})).await.expect(409);
    api.start(&json!({"kind": "events", "subscription_id": 4711, "since": SINCE})).await.expect(404);
}

#[tokio::test]
async fn a_redrive_is_cancelled_once_and_only_so_many_run() {
    let api = TestApi::new().await;
    let all = json!({"kind": "dead_letters", "filter": {"tenant": "acme"}});
    let first = api.start(&all).await.expect(202);
    assert_eq!(first["tenant"], "acme");
    for _ in 0..4 {
        api.start(&all).await.expect(202);
    }
    let refused = api.start(&all).await;
    assert!(refused.header("retry-after").parse::<u32>().is_ok());
    let problem = refused.expect(429);
    assert!(problem["detail"].as_str().unwrap().contains("cancel one"), "{problem}");
    let cancel = format!("/v1/redrives/{}/cancel", first["id"]);
    assert_eq!(api.post_nothing(&cancel).await.expect(200)["status"], "cancelled");
    let problem = api.post_nothing(&cancel).await.expect(409);
    assert_eq!(problem["type"], "urn:hooksaga:problem:not-running");
    api.start(&all).await.expect(202);
    api.post_nothing("/v1/redrives/4711/cancel").await.expect(404);
    api.get("/v1/redrives/4711").await.expect(404);
}

#[tokio::test]
async fn a_tenant_does_not_learn_which_operator_started_a_redrive() {
    let api = TestApi::new().await;
    let (operator, customer) = (api.key("operator,read").await, api.key_of("acme").await);
    let body = json!({"kind": "dead_letters", "filter": {"tenant": "acme"}});
    let by_root = api.start(&body).await.expect(202);
    assert_eq!((&by_root["started_by"], &by_root["started_by_key_id"]), (&json!("root"), &Value::Null));
    let by_operator = api.as_key(&operator, "POST", "/v1/redrives", Some(&body)).await.expect(202);
    assert!(by_operator["started_by"].is_string() && by_operator["started_by_key_id"].is_i64());
    let own = api.as_key(&customer, "POST", "/v1/redrives", Some(&body)).await.expect(202);
    assert!(own["started_by"].is_string() && own["started_by_key_id"].is_i64(), "its own name is no secret");

    let starters = async |key: &str| {
        let list = api.as_key(key, "GET", "/v1/redrives", None).await.expect(200);
        let items = list["items"].as_array().unwrap();
        items
            .iter()
            .map(|item| (item["started_by"].clone(), item["started_by_key_id"].clone()))
            .collect::<Vec<_>>()
    };
    let of = |redrive: &Value| (redrive["started_by"].clone(), redrive["started_by_key_id"].clone());
    let hidden = (Value::Null, Value::Null);
    assert_eq!(starters(&customer).await, [of(&own), hidden.clone(), hidden.clone()]);
    assert_eq!(starters(&operator).await, [of(&own), of(&by_operator), of(&by_root)]);
    let path = format!("/v1/redrives/{}", by_operator["id"]);
    assert_eq!(of(&api.as_key(&customer, "GET", &path, None).await.expect(200)), hidden);
    let cancelled = api.as_key(&customer, "POST", &format!("{path}/cancel"), None).await.expect(200);
    assert_eq!(of(&cancelled), hidden);
}

#[tokio::test]
async fn a_request_that_is_not_clear_is_refused_field_by_field() {
    let api = TestApi::new().await;
    for (body, field) in [
        (json!({}), "kind"),
        (json!({"kind": "all"}), "kind"),
        (json!({"kind": "dead_letters"}), "filter"),
        (json!({"kind": "dead_letters", "filter": {"requeued": true}}), "filter.requeued"),
        (json!({"kind": "dead_letters", "filter": {"color": 1}}), "filter.color"),
        (json!({"kind": "dead_letters", "filter": {}, "since": SINCE}), "since"),
        (json!({"kind": "events", "since": SINCE}), "subscription_id"),
        (json!({"kind": "events", "subscription_id": 1}), "since"),
        (json!({"kind": "events", "subscription_id": 1, "since": "yesterday"}), "since"),
        (json!({"kind": "events", "subscription_id": 1, "since": SINCE, "until": SINCE}), "until"),
        (json!({"kind": "events", "subscription_id": 1, "since": SINCE, "filter": {}}), "filter"),
        (json!({"kind": "events", "subscription_id": 1, "since": SINCE, "color": 1}), "color"),
    ] {
        let problem = api.start(&body).await.expect(422);
        let fields: Vec<_> = problem["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|error| error["field"].as_str().unwrap())
            .collect();
        assert_eq!(fields, [field], "{body}");
    }
}

#[tokio::test]
async fn an_event_says_whom_it_missed() {
    let api = TestApi::new().await;
    api.subscription("t", "unverified").await;
    let paused = api.subscription("t", "paused").await;
    api.patch(&format!("/v1/subscriptions/{paused}"), &json!({"active": false})).await.expect(200);
    let event = api.event("t", &json!(1)).await;
    let none = json!({"paused": 0, "disabled": 0, "unverified": 0});
    assert_eq!(api.get(&format!("/v1/events/{event}")).await.expect(200)["unmatched"], none);
    api.route().await;
    let missed = json!({"paused": 1, "disabled": 0, "unverified": 1});
    assert_eq!(api.get(&format!("/v1/events/{event}")).await.expect(200)["unmatched"], missed);
}
