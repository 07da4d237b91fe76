//! The pages of deliveries and dead letters.

use super::*;

#[tokio::test]
async fn a_failing_delivery_is_followed_to_its_dead_letter_and_sent_again() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    assert!(browser.page("").await.contains("Nothing is set up yet"));
    api.verified_subscription("t", "hook").await;
    let event = api.event("t", &json!({"n": 1})).await;
    assert!(browser.page(&format!("/events/evt_{event}")).await.contains("being looked up"));
    api.route().await;
    assert!(browser.page("/deliveries/1").await.contains("is sent as soon as its turn comes"));
    api.attempt_all(&Outcome::Failed(ErrorCode::http(503))).await;
    let page = browser.page("/deliveries/1").await;
    for said in [
        "The only attempt failed with HTTP_503",
        "and it was given up; ",
        "HTTP 503",
        "could not reach it, or it is overloaded",
        "try later",
        "Send again",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    tokio::time::sleep(Duration::from_millis(1600)).await;
    let key = api.key_of("default").await;
    let overview = Browser::portal(&api, &key).await.page("").await;
    assert!(
        overview.contains("1 endpoint failing since") && overview.contains("example.com/hook"),
        "{overview}"
    );

    let list = browser.page("/dead-letters?requeued=false").await;
    assert!(list.contains("name=\"filter.requeued\" value=\"false\""), "the filter goes with the form");
    let count =
        browser.post("/dead-letters/requeue", &[("what", "count"), ("filter.requeued", "false")]).await;
    assert!(count.text().contains("1 dead letter would be sent again"), "{}", count.text());
    assert!(
        api.get("/v1/dead-letters/1").await.expect(200)["requeued_saga_id"].is_null(),
        "a count changes nothing"
    );
    let none = browser.post("/dead-letters/requeue", &[("what", "selected")]).await;
    assert!(none.text().contains("Select at least one"));
    let sent = browser.post("/dead-letters/requeue", &[("what", "one"), ("id", "1")]).await;
    assert_eq!(sent.header("location"), "/deliveries/2?done=requeued");
    let again = browser.post("/dead-letters/requeue", &[("what", "one"), ("id", "1")]).await;
    assert_eq!(again.header("location"), "/deliveries/2?done=requeued-before");
    assert!(browser.page("/deliveries/1").await.contains("sent again as delivery"));

    api.dead_letter("t", &json!(2)).await;
    let selected = browser
        .post("/dead-letters/requeue", &[("what", "selected"), ("id", "1"), ("id", "2"), ("id", "77")])
        .await;
    assert!(selected.text().contains("1 dead letter was sent again."), "{}", selected.text());
    assert!(selected.text().contains("1 had been sent again before. 1 is no longer there."));
    assert!(!selected.text().contains("skipped"), "{}", selected.text());
    // What was delivered can be sent again, too; what is open cannot.
    let event = api.event("t", &json!(4)).await;
    api.route().await;
    let delivery =
        api.get(&format!("/v1/deliveries?event_id={event}")).await.expect(200)["items"][0]["saga_id"].clone();
    let open = browser.post(&format!("/deliveries/{delivery}/resend"), &[]).await;
    assert!(open.text().contains("still under way"), "{}", open.text());
    api.attempt_all(&Outcome::Delivered).await;
    assert!(browser.page(&format!("/deliveries/{delivery}")).await.contains("Send again"));
    let sent = browser.post(&format!("/deliveries/{delivery}/resend"), &[]).await;
    assert!(sent.header("location").ends_with("?done=requeued"), "{}", sent.text());
    let page = browser.page(&format!("/deliveries/{delivery}")).await;
    assert!(page.contains("It was sent again as delivery") && !page.contains("Send again"), "{page}");
    // A paused subscription's letter is not sent, and the page says why.
    api.dead_letter("t", &json!(3)).await;
    api.patch("/v1/subscriptions/1", &json!({"active": false})).await.expect(200);
    let refused = browser.post("/dead-letters/requeue", &[("what", "one"), ("id", "3")]).await;
    assert!(refused.text().contains("must be active and verified first"), "{}", refused.text());
}

/// The text to copy says all that whoever runs the endpoint has to know, and nothing of the server's settings.
#[tokio::test]
async fn the_text_for_the_customer_says_what_happened_what_to_do_and_what_comes_next() {
    let api = TestApi::new().await;
    let body = json!({"event_type": "t", "callback_url": "https://example.com/hook", "max_retry_limit": 2});
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].clone();
    api.verify_all().await;
    send(&api, "default", "order-1", &json!(1)).await;
    api.route().await;
    api.attempt_all(&Outcome::Failed(ErrorCode::TLS_FAILED)).await;
    let (operator, key) = (Browser::dashboard(&api, ROOT_KEY).await, api.key_of("default").await);
    let customer = Browser::portal(&api, &key).await;
    let page = operator.page("/deliveries/1").await;
    for said in [
        "External id order-1\n",
        "\nStatus: retrying, 1 of 2 attempts\nNext attempt: 20",
        "\nWhat to do: Check that the endpoint's certificate is valid, complete and issued for this host name.</pre>",
        "callbacks.ca_file",
        "<h2>For the customer</h2>",
        "<dt>Tenant</dt>",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    // In the portal the reader is the customer.
    let page = customer.page("/deliveries/1").await;
    for said in ["issued for this host name.", "<h2>As text, to pass on</h2>"] {
        assert!(page.contains(said), "{said}: {page}");
    }
    for operators in ["callbacks.", "customer", "<dt>Tenant</dt>"] {
        assert!(!page.contains(operators), "{operators}: {page}");
    }

    // What a customer's own pages do not tell, this text does not tell either.
    send(&api, "default", "order-2", &json!(2)).await;
    api.route().await;
    api.attempt_all(&Outcome::Failed(ErrorCode::BLOCKED_ADDRESS)).await;
    let page = operator.page("/deliveries/2").await;
    let (operators, customers) = page.split_once("<h2>For the customer</h2>").unwrap();
    assert!(
        operators.contains("must not be called") && operators.contains("callbacks.allow_networks"),
        "{page}"
    );
    assert!(!customers.contains("must not be called") && customers.contains("did not resolve"), "{page}");

    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": false})).await.expect(200);
    let page = operator.page("/deliveries/1").await;
    let held = "\nStatus: held, 1 of 2 attempts, because the subscription is paused\nWhat to do: Resume it";
    assert!(page.contains(held) && !page.contains("\nNext attempt"), "{page}");
}

#[tokio::test]
async fn a_dead_letter_says_who_sent_it_again_and_what_became_of_it() {
    let api = TestApi::new().await;
    api.verified_subscription("t", "hook").await;
    for number in 1..=5 {
        api.dead_letter("t", &json!(number)).await;
    }
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    browser.post("/dead-letters/requeue", &[("what", "one"), ("id", "1")]).await;
    api.post_nothing("/v1/dead-letters/2/requeue").await.expect(201);
    let third = api.get("/v1/dead-letters/3").await.expect(200)["saga_id"].clone();
    api.post_nothing(&format!("/v1/deliveries/{third}/resend")).await.expect(201);
    let bulk = json!({"filter": {}, "limit": 1});
    assert_eq!(api.post("/v1/dead-letters/requeue", &bulk).await.expect(200)["requeued"], 1);
    let started = browser.post("/redrives", &[("kind", "dead_letters")]).await;
    assert_eq!(started.header("location"), "/redrives/1?done=redrive");
    api.redrive_all().await;
    // Who asks again changes nothing.
    let late = api.key("operator").await;
    api.as_key(&late, "POST", "/v1/dead-letters/2/requeue", None).await.expect(200);
    api.attempt_all(&Outcome::Delivered).await;

    // Everybody who may see all tenants sees who it was.
    let reader = Browser::dashboard(&api, &api.key("read").await).await;
    for letter in 1..=5 {
        for browser in [&browser, &reader] {
            let page = browser.page(&format!("/dead-letters/{letter}")).await;
            assert!(
                page.contains("It was sent again") && page.contains("by <strong>root</strong>"),
                "{letter}: {page}"
            );
            assert!(page.contains("Delivered</span>"), "{letter}: {page}");
            assert_eq!(
                page.contains("<a href=\"/redrives/1\">redrive 1</a>"),
                letter == 5,
                "{letter}: {page}"
            );
        }
    }
    // A customer learns that it was, not by whom.
    let bound = api.key_of("default").await;
    let page = Browser::portal(&api, &bound).await.page("/dead-letters/1").await;
    assert!(page.contains("It was sent again") && !page.contains("by <strong>"), "{page}");
}

#[tokio::test]
async fn a_count_goes_on_beyond_what_is_sent_at_a_time() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    api.verified_subscription("t", "hook").await;
    for _ in 0..3 {
        let events = vec![json!({"event_type": "t", "payload": 1}); 400];
        api.post("/v1/events/batch", &json!({"events": events})).await.expect(200);
        api.fail_all().await;
    }
    let count = browser.post("/dead-letters/requeue", &[("what", "count")]).await;
    let text = count.text();
    assert!(text.contains("<h2>1,200 dead letters would be sent again</h2>"), "{text}");
    assert!(text.contains("Send 1,200 again") && text.contains("action=\"/redrives\""), "{text}");
    // A redrive has no end but that of what matches.
    browser.post("/redrives", &[("kind", "dead_letters")]).await;
    api.redrive_all().await;
    let page = browser.page("/redrives/1").await;
    assert!(page.contains("1,200") && page.contains("root"), "{page}");
    let count = browser.post("/dead-letters/requeue", &[("what", "count")]).await;
    assert!(count.text().contains("None would be sent again"), "{}", count.text());
}

#[tokio::test]
async fn nobody_is_named_where_two_may_have_sent_a_letter_again() {
    let api = TestApi::new().await;
    api.verified_subscription("t", "hook").await;
    api.dead_letter("t", &json!(1)).await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    for _ in 0..2 {
        browser.post("/redrives", &[("kind", "dead_letters")]).await;
    }
    api.redrive_all().await;
    let page = browser.page("/dead-letters/1").await;
    assert!(page.contains("It was sent again") && !page.contains("by <strong>"), "{page}");
}

#[tokio::test]
async fn the_list_stays_at_its_page_when_some_of_it_are_sent_again() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    api.verified_subscription("t", "hook").await;
    for number in 1..=5 {
        api.dead_letter("t", &json!(number)).await;
    }
    let first = browser.page("/dead-letters?limit=2").await;
    let older = first.split('"').find(|part| part.contains("cursor=")).unwrap().replace("&amp;", "&");
    let page = browser.page(&older).await;
    let carried = |name: &str| {
        let field = format!("name=\"filter.{name}\" value=\"");
        page.split(&field).nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let (cursor, limit) = (carried("cursor"), carried("limit"));
    let fields =
        [("what", "selected"), ("id", "3"), ("filter.cursor", cursor.as_str()), ("filter.limit", &limit)];
    let sent = browser.post("/dead-letters/requeue", &fields).await;
    assert!(sent.text().contains("1 dead letter was sent again."), "{}", sent.text());
    for (letter, shown) in [(5, false), (4, false), (3, true), (2, true), (1, false)] {
        assert_eq!(sent.text().contains(&format!("href=\"/dead-letters/{letter}\"")), shown, "{letter}");
    }
    // The place is no part of what a count counts.
    let fields = [("what", "count"), ("filter.cursor", cursor.as_str()), ("filter.limit", &limit)];
    let count = browser.post("/dead-letters/requeue", &fields).await;
    assert!(count.text().contains("4 dead letters would be sent again"), "{}", count.text());
}

#[tokio::test]
async fn the_page_of_an_open_delivery_is_live_also_while_it_is_held() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let id = api.verified_subscription("t", "hook").await;
    api.event("t", &json!(1)).await;
    api.route().await;
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": false})).await.expect(200);
    let page = browser.page("/deliveries/1").await;
    assert!(
        page.contains("is held because the subscription is paused, and is sent once")
            && page.contains("<div id=\"part\" data-live"),
        "{page}"
    );
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": true})).await.expect(200);
    api.attempt_all(&Outcome::Delivered).await;
    assert!(!browser.page("/deliveries/1").await.contains("data-live"));
}
