//! Paging, and ids in paths: the same for every resource.

use crate::support::TestApi;
use serde_json::json;

const LISTS: [&str; 4] = ["/v1/events", "/v1/subscriptions", "/v1/deliveries", "/v1/dead-letters"];

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_overlap() {
    let api = TestApi::new().await;
    for number in 0..7 {
        api.verified_subscription("t", &number.to_string()).await;
    }
    api.event("t", &json!(1)).await;
    api.fail_all().await;
    for list in ["/v1/subscriptions", "/v1/deliveries", "/v1/dead-letters"] {
        let all = api.get(list).await.expect(200);
        assert_eq!(all["items"].as_array().unwrap().len(), 7);
        assert!(all["next_cursor"].is_null());
        for limit in [1, 3, 6, 7, 500] {
            let mut collected = Vec::new();
            let mut path = format!("{list}?limit={limit}");
            loop {
                let page = api.get(&path).await.expect(200);
                let items = page["items"].as_array().unwrap();
                assert!(items.len() <= limit && !items.is_empty());
                collected.extend(items.clone());
                let Some(cursor) = page["next_cursor"].as_str() else { break };
                path = format!("{list}?cursor={cursor}&limit={limit}");
            }
            assert_eq!(json!(collected), all["items"], "{list} by {limit}");
        }
    }
}

#[tokio::test]
async fn what_arrives_meanwhile_shifts_nothing() {
    let api = TestApi::new().await;
    let ids = [api.event("t", &json!(1)).await, api.event("t", &json!(2)).await];
    let page = api.get("/v1/events?limit=1").await.expect(200);
    assert_eq!(page["items"][0]["id"], ids[1]);
    api.event("t", &json!(3)).await;
    let cursor = page["next_cursor"].as_str().unwrap();
    let page = api.get(&format!("/v1/events?limit=1&cursor={cursor}")).await.expect(200);
    assert_eq!(page["items"][0]["id"], ids[0]);
    assert!(page["next_cursor"].is_null());
}

#[tokio::test]
async fn a_page_has_50_items_unless_it_is_told_otherwise() {
    let api = TestApi::new().await;
    let events = vec![json!({"event_type": "t", "payload": 1}); 501];
    api.post("/v1/events/batch", &json!({"events": events})).await.expect(200);
    for (query, count) in [("", 50), ("?limit=1", 1), ("?limit=500", 500)] {
        let page = api.get(&format!("/v1/events{query}")).await.expect(200);
        assert_eq!(page["items"].as_array().unwrap().len(), count);
        assert!(page["next_cursor"].is_string());
    }
}

#[tokio::test]
async fn bad_parameters_are_refused_on_every_list() {
    let api = TestApi::new().await;
    api.event("t", &json!(1)).await;
    api.event("t", &json!(2)).await;
    let foreign = api.get("/v1/events?limit=1").await.expect(200)["next_cursor"].as_str().unwrap().to_owned();
    for list in LISTS {
        api.get(&format!("{list}?limit=1")).await.expect(200);
        api.get(&format!("{list}?")).await.expect(200);
        for query in [
            "limit=0",
            "limit=501",
            "limit=-1",
            "limit=x",
            "limit=",
            "limit=1.0",
            "limit=%2B5",
            "limit=1&limit=1",
        ] {
            assert_eq!(api.get(&format!("{list}?{query}")).await.invalid_fields(), ["limit"], "{query}");
        }
        let response = api.get(&format!("{list}?color=red&limit=0&shape")).await;
        assert_eq!(response.invalid_fields(), ["color", "limit", "shape"]);
        assert_eq!(
            api.get(&format!("{list}?event_type=a&event_type=a")).await.invalid_fields(),
            ["event_type"]
        );
        for cursor in ["", "x", "AAAAAAAAAAAA", "%00", "..", "ZQ%3D%3D"] {
            let response = api.get(&format!("{list}?cursor={cursor}")).await;
            assert_eq!(response.faulty_fields(400), ["cursor"], "{cursor}");
        }
        let response = api.get(&format!("{list}?cursor={foreign}")).await;
        assert_eq!(response.status, if list == "/v1/events" { 200 } else { 400 }, "{list}");
    }
}

#[tokio::test]
async fn ids_in_paths_are_positive_integers() {
    let api = TestApi::new().await;
    for list in LISTS {
        for id in ["0", "-1", "x", "1x", "1.0", "+1", "01", "%31x", "%FF", "%20", "1%2F2"] {
            api.get(&format!("{list}/{id}")).await.expect(400);
        }
        for id in ["1", "999999", "9223372036854775807", "9223372036854775808", "99999999999999999999999"] {
            api.get(&format!("{list}/{id}")).await.expect(404);
        }
        assert_eq!(api.get(&format!("{list}/1?verbose=1")).await.invalid_fields(), ["verbose"]);
    }
}

#[tokio::test]
async fn routes_without_parameters_refuse_them() {
    let api = TestApi::new().await;
    for (method, path, _) in crate::keys::GUARDED {
        let response =
            api.raw(method, &format!("{path}?x=1"), &[("content-type", "application/json")], "{}").await;
        assert_eq!(response.invalid_fields(), ["x"], "{method} {path}");
    }
}
