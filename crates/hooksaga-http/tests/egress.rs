//! What callbacks may lead to, as clients see it.

use crate::support::{ROOT_KEY, TestApi};
use hooksaga_pipeline::EgressPolicy;
use hooksaga_saga::{ErrorCode, Outcome};
use hooksaga_store::{CheckOutcome, StepLimits};
use serde_json::{Value, json};
use std::time::Duration;

const BLOCKED: [&str; 9] = [
    "https://127.0.0.1/hook",
    "https://10.1.2.3:8443/hook",
    "https://169.254.169.254/latest/meta-data",
    "https://[::1]/hook",
    "https://[::ffff:127.0.0.1]/hook",
    "https://[fd00:ec2::254]",
    "https://localhost/hook",
    "https://LocalHost.:9000/hook?x=1",
    "https://api.localhost",
];

fn new(url: &str) -> Value {
    json!({"event_type": "t", "callback_url": url})
}

#[tokio::test]
async fn addresses_that_can_only_be_blocked_are_refused_at_once() {
    let api = TestApi::new().await;
    let id = api.subscription("t", "hook").await;
    for url in BLOCKED {
        for response in [
            api.post("/v1/subscriptions", &new(url)).await,
            api.patch(&format!("/v1/subscriptions/{id}"), &json!({"callback_url": url})).await,
        ] {
            let problem = response.expect(422);
            assert_eq!(problem["errors"][0]["field"], "callback_url", "{url}: {problem}");
        }
    }
    // What a name leads to shows later.
    api.post("/v1/subscriptions", &new("https://internal.example/hook")).await.expect(201);
    api.post("/v1/subscriptions", &new("https://93.184.215.14/hook")).await.expect(201);
}

#[tokio::test]
async fn what_the_operator_has_opened_is_accepted_but_no_metadata_service() {
    let networks = ["127.0.0.0/8", "169.254.0.0/16"].map(|net| net.parse().unwrap());
    let egress = EgressPolicy { allow_networks: networks.to_vec(), ..EgressPolicy::default() };
    let api = TestApi::with(|parts| parts.egress = egress).await;
    for url in ["https://127.0.0.1/hook", "https://localhost/hook"] {
        api.post("/v1/subscriptions", &new(url)).await.expect(201);
    }
    api.post("/v1/subscriptions", &new("https://169.254.169.254/hook")).await.expect(422);
}

/// Everything about failures that a key sees.
async fn seen(api: &TestApi, key: &str) -> String {
    let mut seen = String::new();
    for path in [
        "/v1/subscriptions",
        "/v1/subscriptions/1",
        "/v1/deliveries",
        "/v1/deliveries/1",
        "/v1/deliveries/2",
        "/v1/events/1",
        "/v1/dead-letters",
        "/v1/dead-letters/1",
        "/v1/dead-letters?final_error_code=BLOCKED_ADDRESS",
    ] {
        let response = api.as_key(key, "GET", path, None).await;
        response.expect(200);
        seen.push_str(response.text());
    }
    seen
}

#[tokio::test]
async fn a_blocked_name_and_an_unknown_one_look_the_same_to_a_customer() {
    let api = TestApi::new().await;
    let (customer, operator) = (api.key_of("acme").await, ROOT_KEY);
    let body = json!({
        "event_type": "t", "callback_url": "https://db.internal.example/hook", "max_retry_limit": 1, "tenant": "acme",
    });
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].clone();
    api.verify_all().await;
    for (number, code) in [ErrorCode::BLOCKED_ADDRESS, ErrorCode::DNS_FAILED].into_iter().enumerate() {
        let event = json!({"event_type": "t", "payload": number, "tenant": "acme"});
        api.post("/v1/events", &event).await.expect(201);
        api.route().await;
        api.attempt_all(&Outcome::Failed(code)).await;
    }
    let verify = format!("/v1/subscriptions/{id}/verify");
    api.post_nothing(&verify).await.expect(202);
    let patience = Duration::from_secs(10);
    for check in api.stores.verifier.take_checks(10, patience).await.unwrap() {
        let failed = CheckOutcome::GivenUp(ErrorCode::BLOCKED_ADDRESS);
        assert!(api.stores.verifier.record(&check, &failed).await.unwrap());
    }

    assert!(seen(&api, operator).await.contains("BLOCKED_ADDRESS"));
    let customers = seen(&api, &customer).await;
    assert!(!customers.contains("BLOCKED_ADDRESS"), "{customers}");
    // Filters tell nothing either.
    let matching = async |code: &str| {
        let path = format!("/v1/dead-letters?limit=1&final_error_code={code}");
        let page = api.as_key(&customer, "GET", &path, None).await.expect(200);
        let filter = json!({"filter": {"final_error_code": code}, "dry_run": true});
        let tally =
            api.as_key(&customer, "POST", "/v1/dead-letters/requeue", Some(&filter)).await.expect(200);
        let more = page["next_cursor"].is_string();
        (page["items"].as_array().unwrap().len(), more, tally["matched"].as_u64().unwrap())
    };
    assert_eq!(matching("DNS_FAILED").await, (1, true, 2));
    assert_eq!(matching("BLOCKED_ADDRESS").await, (0, false, 0));
    // Nor does what a redrive counts.
    let limits = StepLimits { examine: 100, create: 100, default_limit: 5 };
    let examined = async |key: &str, code: &str| {
        let body = json!({"kind": "dead_letters", "filter": {"final_error_code": code}});
        let started = api.as_key(key, "POST", "/v1/redrives", Some(&body)).await.expect(202);
        while api.stores.redrives.advance(limits).await.unwrap().is_some() {}
        let path = format!("/v1/redrives/{}", started["id"]);
        api.as_key(key, "GET", &path, None).await.expect(200)["examined"].as_u64().unwrap()
    };
    assert_eq!(examined(&customer, "BLOCKED_ADDRESS").await, 0);
    assert_eq!(examined(&customer, "DNS_FAILED").await, 2);
    assert_eq!(examined(operator, "BLOCKED_ADDRESS").await, 1);
    let response = api.as_key(&customer, "POST", &verify, None).await;
    assert_eq!(response.expect(202)["verification"]["last_error"], "DNS_FAILED");
}

#[tokio::test]
async fn one_host_is_sent_only_so_many_challenges_on_request() {
    let api = TestApi::new().await;
    let (first, second) = (api.subscription("a", "hook").await, api.subscription("b", "other").await);
    let elsewhere =
        api.post("/v1/subscriptions", &new("https://example.org/hook")).await.expect(201)["id"].clone();
    let mut refused = None;
    for round in 0..20 {
        // Whichever subscription of the host it is.
        let id = if round % 2 == 0 { first } else { second };
        let response = api.post_nothing(&format!("/v1/subscriptions/{id}/verify")).await;
        if response.status != 202 {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("20 at once are too many");
    assert_eq!(refused.expect(429)["type"], "urn:hooksaga:problem:too-many-requests");
    assert_eq!(refused.header("retry-after"), "1");
    api.post_nothing(&format!("/v1/subscriptions/{elsewhere}/verify")).await.expect(202);
    api.post_nothing("/v1/subscriptions/999/verify").await.expect(404);
}

#[tokio::test]
async fn one_host_is_sent_only_so_many_test_events_on_request() {
    let api = TestApi::new().await;
    let (first, second) = (api.subscription("a", "hook").await, api.subscription("b", "other").await);
    let elsewhere =
        api.post("/v1/subscriptions", &new("https://example.org/hook")).await.expect(201)["id"].clone();
    api.verify_all().await;
    let (mut sent, mut refused) = (0, None);
    for round in 0..40 {
        let id = if round % 2 == 0 { first } else { second };
        let response = api.post_nothing(&format!("/v1/subscriptions/{id}/test")).await;
        if response.status != 201 {
            refused = Some(response);
            break;
        }
        sent += 1;
    }
    let refused = refused.expect("40 at once are too many");
    assert_eq!(refused.expect(429)["type"], "urn:hooksaga:problem:too-many-requests");
    assert_eq!(refused.header("retry-after"), "1");
    let events = api.get("/v1/events?event_type=hooksaga.test&limit=50").await.expect(200);
    assert_eq!(events["items"].as_array().unwrap().len(), sent, "nothing is stored of what was refused");
    api.post_nothing(&format!("/v1/subscriptions/{elsewhere}/test")).await.expect(201);
}
