//! The pages of redrives: started from a count or from a time, watched, cancelled, and by whom.

use super::*;

async fn letters(api: &TestApi, count: usize) {
    for number in 0..count {
        api.event("t", &json!(number)).await;
    }
    api.fail_all().await;
}

#[tokio::test]
async fn dead_letters_are_counted_first_and_then_sent_in_the_background() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    assert!(browser.page("/redrives").await.contains("There is none yet."));
    api.verified_subscription("t", "hook").await;
    letters(&api, 3).await;
    let filter = [
        ("filter.event_type", "t"),
        ("filter.requeued", "false"),
        ("filter.created_after", "2020-01-01T00:00"),
    ];
    let count = browser.post("/dead-letters/requeue", &[&[("what", "count")], &filter[..]].concat()).await;
    assert!(count.text().contains("3 dead letters would be sent again"), "{}", count.text());
    assert!(count.text().contains("action=\"/redrives\""));
    assert_eq!(api.get("/v1/redrives").await.expect(200)["items"], json!([]), "a count starts nothing");

    let started = browser.post("/redrives", &[&[("kind", "dead_letters")], &filter[..]].concat()).await;
    assert_eq!(started.header("location"), "/redrives/1?done=redrive", "{}", started.text());
    let redrive = api.get("/v1/redrives/1").await.expect(200);
    assert_eq!((&redrive["kind"], &redrive["started_by"]), (&json!("dead_letters"), &json!("root")));
    let page = browser.page("/redrives/1").await;
    for said in
        ["Running", "type <code>t</code>", "2020-01-01 00:00:00.000 UTC", "root", "Cancel", "data-live"]
    {
        assert!(page.contains(said), "{said}: {page}");
    }
    // What became of them is one step away, with the same filter.
    let link = page.split('"').find(|part| part.starts_with("/dead-letters?requeued=true")).unwrap();
    assert!(browser.page(&link.replace("&amp;", "&")).await.contains("No dead letter matches."));
    let list = browser.page("/redrives").await;
    assert!(list.contains("href=\"/redrives/1\"") && list.contains("data-live"), "{list}");

    let cancelled = browser.post("/redrives/1/cancel", &[]).await;
    assert_eq!(cancelled.header("location"), "/redrives/1?done=redrive-cancelled");
    let page = browser.page("/redrives/1").await;
    assert!(
        page.contains("Cancelled") && !page.contains("data-live") && !page.contains("/redrives/1/cancel")
    );
    let again = browser.post("/redrives/1/cancel", &[]).await;
    assert_eq!(again.status, 409);
    assert!(
        again.text().contains("There is nothing to cancel") || again.text().contains("nothing to cancel")
    );
    assert_eq!(browser.get("/redrives/99").await.status, 404);
    let audit = api.get("/v1/audit").await.expect(200);
    let done: Vec<_> =
        audit["items"].as_array().unwrap().iter().map(|item| (&item["action"], &item["target"])).collect();
    assert_eq!(
        done[..2],
        [(&json!("redrive.cancel"), &json!("redrives/1")), (&json!("redrive.start"), &json!("redrives/1"))]
    );
}

#[tokio::test]
async fn what_a_subscription_missed_is_sent_from_a_time_on() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let id = api.subscription("t", "hook").await.to_string();
    let fields = [
        ("kind", "events"),
        ("subscription_id", id.as_str()),
        ("since", "2020-01-01T00:00"),
        ("until", "2021-01-01T00:00:30"),
    ];
    let refused = browser.post("/redrives", &fields).await;
    assert_eq!(refused.status, 200);
    assert!(
        refused.text().contains("verified") && refused.text().contains("role=\"alert\""),
        "{}",
        refused.text()
    );
    for kept in ["name=\"since\" value=\"2020-01-01T00:00\"", "name=\"until\" value=\"2021-01-01T00:00:30\""]
    {
        assert!(refused.text().contains(kept), "nobody has to write it again: {}", refused.text());
    }
    api.verify_all().await;
    for (fields, said) in [
        (
            vec![("kind", "events"), ("subscription_id", "x"), ("since", "2020-01-01T00:00")],
            "subscription_id",
        ),
        (vec![("kind", "events"), ("subscription_id", id.as_str())], "since"),
        (
            vec![("kind", "events"), ("subscription_id", "77"), ("since", "2020-01-01T00:00")],
            "subscription 77",
        ),
        (vec![("kind", "dead_letters"), ("filter.nonsense", "1")], "nonsense"),
    ] {
        let refused = browser.post("/redrives", &fields).await;
        assert!(
            refused.text().contains(said) && refused.text().contains("role=\"alert\""),
            "{said}: {}",
            refused.text()
        );
    }
    assert_eq!(api.get("/v1/redrives").await.expect(200)["items"], json!([]));
    assert_eq!(browser.post("/redrives", &fields).await.header("location"), "/redrives/1?done=redrive");
    let redrive = api.get("/v1/redrives/1").await.expect(200);
    assert_eq!(redrive["since"], "2020-01-01T00:00:00.000000Z");
    assert_eq!(redrive["until"], "2021-01-01T00:00:30.000000Z");
    let times = "2020-01-01 00:00:00.000 UTC, before 2021-01-01 00:00:30.000 UTC";
    for path in ["/redrives", "/redrives/1"] {
        let text = text_of(&browser.page(path).await);
        assert!(
            text.contains(&format!("Events that example.com/hook missed since {times}")),
            "{path}: {text}"
        );
    }
    // The subscription's page leads to the form, which is filled in.
    assert!(browser.page(&format!("/subscriptions/{id}")).await.contains("href=\"/redrives?for=1#missed\""));
    let form = browser.page("/redrives?for=1").await;
    assert!(
        form.contains("name=\"subscription_id\" value=\"1\"") && form.contains("data-at=\"/redrives?for=1\"")
    );
}

#[tokio::test]
async fn who_may_not_operate_watches_only() {
    let api = TestApi::new().await;
    api.verified_subscription("t", "hook").await;
    letters(&api, 1).await;
    let started = json!({"kind": "dead_letters", "filter": {}});
    api.post("/v1/redrives", &started).await.expect(202);
    let key = api.key("read").await;
    let reader = Browser::dashboard(&api, &key).await;
    for path in ["/redrives", "/redrives/1"] {
        let page = reader.page(path).await;
        assert_eq!(page.matches("method=\"post\"").count(), 1, "{path}: sign-out only");
    }
    for path in ["/redrives", "/redrives/1/cancel"] {
        assert_eq!(reader.post(path, &[("kind", "dead_letters")]).await.status, 403, "{path}");
    }
    assert_eq!(api.get("/v1/redrives/1").await.expect(200)["status"], "running");
}

#[tokio::test]
async fn a_form_that_does_not_say_what_to_send_starts_nothing() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    for fields in [vec![], vec![("kind", "all")], vec![("filter.event_type", "t")]] {
        let refused = browser.post("/redrives", &fields).await;
        assert_eq!(refused.status, 422, "{fields:?}");
        assert!(refused.text().contains("must be dead_letters or events"), "{}", refused.text());
    }
    assert_eq!(api.get("/v1/redrives").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_tenant_does_not_see_who_started_a_redrive() {
    let api = TestApi::new().await;
    let started = json!({"kind": "dead_letters", "filter": {"tenant": "acme"}});
    api.post("/v1/redrives", &started).await.expect(202);
    let key = api.key_of("acme").await;
    let operator = Browser::dashboard(&api, ROOT_KEY).await;
    for (path, title) in [("/redrives", "<th>By</th>"), ("/redrives/1", "Started by")] {
        assert!(operator.page(path).await.contains(title), "{path}");
        for bound in [Browser::portal(&api, &key).await, Browser::dashboard(&api, &key).await] {
            let page = bound.page(path).await;
            assert!(page.contains("Running") && !page.contains(title), "{path}: {page}");
        }
    }
}
