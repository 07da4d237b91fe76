//! The pages of subscriptions.

use super::*;

#[tokio::test]
async fn a_subscription_is_created_edited_paused_verified_and_given_a_new_secret() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let refused = browser
        .post(
            "/subscriptions/new",
            &[("callback_url", "ftp://x"), ("topics", "a b*"), ("max_retry_limit", "many")],
        )
        .await;
    assert_eq!(refused.status, 422);
    for said in [
        "Must begin with https://",
        "1 (&quot;b*&quot;) must be an event type",
        "value=\"ftp://x\"",
        "value=\"many\"",
        "value=\"many\" min=\"1\" max=\"100\" placeholder=\"The server's setting\" aria-invalid=\"true\"",
        "aria-describedby=\"topics-hint\" aria-invalid=\"true\"",
    ] {
        assert!(refused.text().contains(said), "{said}: {}", refused.text());
    }
    assert_eq!(refused.text().matches("aria-invalid").count(), 3, "the other fields are right");
    let fields = [
        ("callback_url", "https://example.com/hook"),
        ("topics", "order.*\r\ninvoice.sent"),
        ("description", "Orders"),
        ("max_retry_limit", "7"),
        ("tenant", "acme"),
    ];
    let created = browser.post("/subscriptions/new", &fields).await;
    assert_eq!(created.status, 200, "{}", created.text());
    assert!(created.text().contains("whsec_"));
    let again = browser.post("/subscriptions/new", &fields).await;
    assert_eq!(again.status, 409);
    assert!(again.text().contains("href=\"/subscriptions/1\"") && !again.text().contains("whsec_"));

    let stored = api.get("/v1/subscriptions/1").await.expect(200);
    assert_eq!(stored["event_type"], "invoice.sent,order.*");
    assert_eq!((&stored["tenant"], &stored["max_retry_limit"]), (&json!("acme"), &json!(7)));
    assert!(browser.page("/subscriptions/1/edit").await.contains("rows=\"4\""));
    let page = browser.page("/subscriptions/1").await;
    assert!(page.contains("What the endpoint must return") && page.contains("data-live"), "{page}");
    assert!(!page.contains("whsec_"), "a secret is shown once");

    api.verify_all().await;
    let edited = browser
        .post("/subscriptions/1/edit", &[("callback_url", "https://example.com/new"), ("topics", "order.*")])
        .await;
    assert_eq!(edited.header("location"), "/subscriptions/1?done=saved-url");
    let stored = api.get("/v1/subscriptions/1").await.expect(200);
    assert_eq!(
        (&stored["verified"], &stored["description"], &stored["max_retry_limit"]),
        (&json!(false), &json!(null), &json!(null))
    );

    let paused = browser.post("/subscriptions/1/active", &[("active", "false")]).await;
    assert!(browser.page(paused.header("location")).await.contains("Paused. Its deliveries wait"));
    assert!(browser.page("/subscriptions/1?done=%3Cscript%3E").await.contains("Paused"));
    let verify = browser.post("/subscriptions/1/verify", &[]).await;
    assert_eq!(verify.header("location"), "/subscriptions/1?done=verify");
    let rotated = browser.post("/subscriptions/1/rotate-secret", &[]).await;
    assert!(rotated.status == 200 && rotated.text().contains("whsec_"));
    assert_eq!(browser.post("/subscriptions/99/active", &[("active", "true")]).await.status, 404);
}

#[tokio::test]
async fn headers_are_neither_lost_nor_doubled_without_a_word() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let sent = |url, headers| [("callback_url", url), ("topics", "t"), ("headers", headers)];
    let doubled = browser.post("/subscriptions/new", &sent("https://example.com/a", "x-a: 1\nX-A: 2")).await;
    assert_eq!(doubled.status, 422);
    assert!(doubled.text().contains("X-A stands twice"), "{}", doubled.text());
    let created = browser.post("/subscriptions/new", &sent("https://example.com/a", "x-a: 1\nx-b: 2")).await;
    assert_eq!(created.status, 200, "{}", created.text());
    assert!(browser.page("/subscriptions/1/edit").await.contains("do not go to another server"));

    // Removing the stored ones and writing new ones is one and the same.
    let both = [&sent("https://example.com/a", "x-c: 3")[..], &[("drop_headers", "true")]].concat();
    let replaced = browser.post("/subscriptions/1/edit", &both).await;
    assert_eq!(replaced.header("location"), "/subscriptions/1?done=saved");
    assert_eq!(api.get("/v1/subscriptions/1").await.expect(200)["headers"], json!(["x-c"]));

    let same = browser.post("/subscriptions/1/edit", &sent("https://example.com/b", "")).await;
    assert_eq!(same.header("location"), "/subscriptions/1?done=saved-url");
    let elsewhere = browser.post("/subscriptions/1/edit", &sent("https://example.org/b", "")).await;
    let page = browser.page(elsewhere.header("location")).await;
    assert!(page.contains("The headers were removed"), "{page}");
    assert_eq!(api.get("/v1/subscriptions/1").await.expect(200)["headers"], json!([]));

    browser.post("/subscriptions/1/edit", &sent("https://example.org/b", "x-d: 4")).await;
    let ticked = [&sent("https://example.org/b", "")[..], &[("drop_headers", "true")]].concat();
    browser.post("/subscriptions/1/edit", &ticked).await;
    assert_eq!(api.get("/v1/subscriptions/1").await.expect(200)["headers"], json!([]));
}

#[tokio::test]
async fn a_subscription_shows_its_last_day_and_its_last_failure() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let id = api.verified_subscription("t", "hook").await;
    let path = format!("/subscriptions/{id}");
    let page = browser.page(&path).await;
    assert!(page.contains("95 % took at most") && !page.contains("How long attempts took"), "{page}");
    assert!(!page.contains("Last failure"));
    api.dead_letter("t", &json!(1)).await;
    api.event("t", &json!(2)).await;
    api.route().await;
    let page = browser.page(&path).await;
    for said in [
        "<span class=\"value\">1</span><span class=\"name\">Failed attempts</span>",
        "<span class=\"value\">1</span><span class=\"name\">Given up</span>",
        "<span class=\"value\">12 ms</span><span class=\"name\">95 % took at most</span>",
        "<span class=\"value\">1</span><span class=\"name\">Waiting</span>",
        "10 ms – 20 ms",
        "Last failure",
        "could not reach it, or it is overloaded (HTTP 503). Check that the endpoint runs",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
}

#[tokio::test]
async fn an_endpoint_is_vouched_for_where_that_is_allowed() {
    let api = TestApi::with(|parts| parts.allow_trusted = true).await;
    let id = api.subscription("t", "hook").await;
    let (path, verify) = (format!("/subscriptions/{id}"), format!("/subscriptions/{id}/verify"));
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    assert!(browser.page(&path).await.contains("Vouch for example.com/hook"));
    // Neither a customer nor a reader may.
    let (bound, reader) = (api.key_of("default").await, api.key("read").await);
    for other in [Browser::portal(&api, &bound).await, Browser::dashboard(&api, &reader).await] {
        assert!(!other.page(&path).await.contains("Vouch for"));
        assert_eq!(other.post(&verify, &[("trusted", "true")]).await.status, 403);
    }
    let vouched = browser.post(&verify, &[("trusted", "true")]).await;
    assert_eq!(vouched.header("location"), format!("{path}?done=vouched"));
    let check = api.stores.verifier.take_checks(10, Duration::from_secs(10)).await.unwrap().remove(0);
    assert_eq!(check.vouched_by.as_deref(), Some("root"), "nobody is asked");

    let api = TestApi::new().await;
    let id = api.subscription("t", "hook").await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    assert!(!browser.page(&format!("/subscriptions/{id}")).await.contains("Vouch for"), "it is not allowed");
    let refused = browser.post(&format!("/subscriptions/{id}/verify"), &[("trusted", "true")]).await;
    assert!(
        refused.status == 403 && refused.text().contains("callbacks.allow_trusted"),
        "{}",
        refused.text()
    );
}
