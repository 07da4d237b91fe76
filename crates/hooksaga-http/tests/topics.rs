//! The topics of subscriptions.

use crate::support::TestApi;
use serde_json::{Value, json};

const URL: &str = "https://example.com/hook";

fn with_topics(topics: &Value) -> Value {
    json!({"event_types": topics, "callback_url": URL})
}

#[tokio::test]
async fn topics_are_shown_sorted_and_as_their_canonical_text() {
    let api = TestApi::new().await;
    for (given, canonical) in [
        (json!(["b", "a.*", "b", "*", "a", "B"]), "*,B,a,a.*,b"),
        (json!(["order.created"]), "order.created"),
        (json!(["a.b.*"]), "a.b.*"),
        // Any legal type, and any legal prefix.
        (json!(["a..b", ".", "..*", "-"]), "-,.,..*,a..b"),
    ] {
        let created = api.post("/v1/subscriptions", &with_topics(&given)).await.expect(201);
        assert_eq!(created["event_type"], canonical);
        assert_eq!(created["event_types"], json!(canonical.split(',').collect::<Vec<_>>()));
        let shown = api.get(&format!("/v1/subscriptions/{}", created["id"])).await.expect(200);
        assert_eq!(
            (&shown["event_type"], &shown["event_types"]),
            (&created["event_type"], &created["event_types"])
        );
    }
    let one = json!({"event_type": "x.*", "callback_url": URL});
    let created = api.post("/v1/subscriptions", &one).await.expect(201);
    assert_eq!((&created["event_type"], &created["event_types"]), (&json!("x.*"), &json!(["x.*"])));
}

#[tokio::test]
async fn the_same_topics_in_any_order_are_the_same_subscription() {
    let api = TestApi::new().await;
    let first = api.post("/v1/subscriptions", &with_topics(&json!(["a", "b.*"]))).await.expect(201);
    for again in [json!(["b.*", "a"]), json!(["a", "b.*", "a"])] {
        let problem = api.post("/v1/subscriptions", &with_topics(&again)).await.expect(409);
        assert_eq!(problem["existing_id"], first["id"]);
    }
    let other = api.post("/v1/subscriptions", &with_topics(&json!(["a"]))).await.expect(201);
    let path = format!("/v1/subscriptions/{}", other["id"]);
    let problem = api.patch(&path, &json!({"event_types": ["b.*", "a"]})).await.expect(409);
    assert_eq!(problem["existing_id"], first["id"]);
}

#[tokio::test]
async fn a_bad_topic_is_refused_with_the_field_and_the_rule() {
    let api = TestApi::new().await;
    let existing = api.subscription("t", "patched").await;
    let path = format!("/v1/subscriptions/{existing}");
    for bad in [
        "a.*.b",
        "a*",
        ".*",
        "*.",
        "**",
        "*.a",
        "",
        "a b",
        "a,b",
        "é",
        &"x".repeat(101),
        &format!("{}.*", "x".repeat(99)),
    ] {
        let one = json!({"event_type": bad, "callback_url": URL});
        let list = with_topics(&json!(["good", bad]));
        for (body, field) in [(one, "event_type"), (list, "event_types")] {
            let response = api.post("/v1/subscriptions", &body).await;
            assert_eq!(response.invalid_fields(), [field], "{bad}");
            let problem = response.json();
            let detail = problem["errors"][0]["detail"].as_str().unwrap();
            assert!(detail.contains("prefix of one followed by .*"), "{bad}: {detail}");
            let change = json!({field: body[field]});
            assert_eq!(api.patch(&path, &change).await.invalid_fields(), [field], "{bad}");
        }
    }
    let longest = format!("{}.*", "x".repeat(98));
    api.post("/v1/subscriptions", &json!({"event_type": longest, "callback_url": URL})).await.expect(201);
    assert_eq!(api.get(&path).await.expect(200)["event_type"], "t");
}

#[tokio::test]
async fn a_subscription_has_1_to_50_topics_with_1000_characters_together() {
    let api = TestApi::new().await;
    let numbered = |count: usize| -> Value { (0..count).map(|n| json!(format!("t{n}"))).collect() };
    // With the commas between them.
    let long = |last: usize| -> Value {
        (0..10).map(|n| json!(format!("{n}{}", "x".repeat(if n == 9 { last } else { 98 })))).collect()
    };
    let mut repeated = numbered(50);
    repeated.as_array_mut().unwrap().extend(numbered(50).as_array().unwrap().clone());
    for (topics, status) in [
        (numbered(0), 422),
        (numbered(50), 201),
        (numbered(51), 422),
        (repeated, 409),
        (json!(vec!["t"; 1001]), 422),
        (long(99), 201),
        (long(100), 422),
        (json!("t"), 422),
        (json!({}), 422),
        (json!([1]), 422),
        (json!([["t"]]), 422),
    ] {
        let response = api.post("/v1/subscriptions", &with_topics(&topics)).await;
        if status == 422 {
            assert_eq!(response.invalid_fields(), ["event_types"], "{topics}");
        }
        response.expect(status);
    }
    let problem = api.post("/v1/subscriptions", &with_topics(&numbered(51))).await.expect(422);
    assert!(problem["detail"].as_str().unwrap().contains("1 to 50"), "{problem}");
}

#[tokio::test]
async fn exactly_one_of_event_type_and_event_types_is_given() {
    let api = TestApi::new().await;
    let both = json!({"event_type": "a", "event_types": ["a"], "callback_url": URL});
    let response = api.post("/v1/subscriptions", &both).await;
    assert_eq!(response.invalid_fields(), ["event_types"]);
    assert!(response.json()["detail"].as_str().unwrap().contains("together with event_type"));
    for neither in [json!({"callback_url": URL}), json!({"callback_url": URL, "event_types": null})] {
        let neither = api.post("/v1/subscriptions", &neither).await;
        assert_eq!(neither.invalid_fields(), ["event_type"]);
        assert!(neither.json()["detail"].as_str().unwrap().contains("event_types"));
    }

    let id = api.subscription("t", "hook").await;
    let path = format!("/v1/subscriptions/{id}");
    let both = json!({"event_type": "a", "event_types": ["a"]});
    assert_eq!(api.patch(&path, &both).await.invalid_fields(), ["event_types"]);
    let changed = api.patch(&path, &json!({"event_types": ["b", "a.*"]})).await.expect(200);
    assert_eq!((&changed["event_type"], &changed["event_types"]), (&json!("a.*,b"), &json!(["a.*", "b"])));
    let changed = api.patch(&path, &json!({"active": true})).await.expect(200);
    assert_eq!(changed["event_type"], "a.*,b", "what is absent stays");
}

#[tokio::test]
async fn the_filter_finds_subscriptions_that_have_exactly_the_topic() {
    let api = TestApi::new().await;
    let several =
        api.post("/v1/subscriptions", &with_topics(&json!(["a", "b.*"]))).await.expect(201)["id"].clone();
    let all = api.subscription("*", "all").await;
    for (topic, expected) in [
        ("a", vec![several.clone()]),
        ("b.*", vec![several]),
        ("*", vec![json!(all)]),
        ("b.c", vec![]),
        ("A", vec![]),
        ("a,b.*", vec![]),
    ] {
        let response = api.get(&format!("/v1/subscriptions?event_type={topic}")).await;
        if topic.contains(',') {
            assert_eq!(response.invalid_fields(), ["event_type"]);
            continue;
        }
        let page = response.expect(200);
        let found: Vec<_> = page["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
        assert_eq!(found, expected, "{topic}");
    }
}

#[tokio::test]
async fn an_event_is_routed_by_every_form_of_topic_and_once() {
    let api = TestApi::new().await;
    let mut expected = Vec::new();
    for (topics, matches) in [
        (json!(["a.b.c"]), true),
        (json!(["a.*"]), true),
        (json!(["a.b.*", "a.b.c", "*"]), true),
        (json!(["*"]), true),
        (json!(["a.b.c.*"]), false),
        (json!(["a.b", "b.*", "A.*", "a.b.cc"]), false),
    ] {
        let created = api.post("/v1/subscriptions", &with_topics(&topics)).await.expect(201);
        expected.extend(matches.then(|| created["id"].clone()));
    }
    api.verify_all().await;
    let event = api.event("a.b.c", &json!(1)).await;
    api.route().await;
    let shown = api.get(&format!("/v1/events/{event}")).await.expect(200);
    let found: Vec<_> =
        shown["deliveries"].as_array().unwrap().iter().map(|item| item["subscription_id"].clone()).collect();
    assert_eq!(found, expected);
}
