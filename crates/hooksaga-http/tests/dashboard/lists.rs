//! Lists, search, and an event that went nowhere.

use super::*;

#[tokio::test]
async fn an_event_that_went_nowhere_says_why() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let lost = api.event("order.created", &json!(1)).await;
    api.route().await;
    api.subscription("order.*", "late").await;
    let unverified = api.event("order.created", &json!(2)).await;
    api.route().await;
    let page = browser.page(&format!("/events/{lost}")).await;
    assert!(
        page.contains("had a topic that matches") && page.contains("order.created, order.*, *"),
        "{page}"
    );
    let page = browser.page(&format!("/events/{unverified}")).await;
    assert!(page.contains("was active and verified") && page.contains("example.com/late"), "{page}");
    assert!(page.contains("1 subscription with a matching topic: 1 not verified."), "{page}");
    assert!(page.contains("gets it once it is verified"), "{page}");
}

/// What is said is what was recorded, not what follows from how the subscriptions stand now.
#[tokio::test]
async fn an_event_says_whom_it_missed_whatever_became_of_them() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let before = api.event("t", &json!(1)).await;
    let paused = api.verified_subscription("t", "paused").await;
    let deleted = api.verified_subscription("*", "deleted").await;
    let active = |id: i64, active: bool| {
        let api = &api;
        async move { api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": active})).await.expect(200) }
    };
    api.route().await;
    active(paused, false).await;
    active(deleted, false).await;
    let nowhere = api.event("t", &json!(2)).await;
    api.route().await;
    active(paused, true).await;
    api.as_key(ROOT_KEY, "DELETE", &format!("/v1/subscriptions/{deleted}"), None).await;
    let page = browser.page(&format!("/events/{nowhere}")).await;
    assert!(page.contains("2 subscriptions with a matching topic: 2 paused."), "{page}");
    assert!(page.contains("stand now:") && page.contains(">Active</span>"), "{page}");
    assert!(!page.contains("had a topic that matches") && !page.contains("once it is verified"), "{page}");

    // One that went somewhere says so, too.
    let other = api.verified_subscription("t", "other").await;
    active(paused, false).await;
    let some = api.event("t", &json!(3)).await;
    api.route().await;
    let page = browser.page(&format!("/events/{some}")).await;
    assert!(page.contains(&format!("href=\"/subscriptions/{other}\"")), "{page}");
    assert!(page.contains("1 subscription with a matching topic: 1 paused."), "{page}");
    let page = browser.page(&format!("/events/{before}")).await;
    assert!(!page.contains("could not go to"), "{page}");
}

#[tokio::test]
async fn search_finds_what_people_have_at_hand() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let subscription = subscribe(&api, "default", "hook").await;
    for number in 0..3 {
        send(&api, "default", &format!("order-{number}"), &json!(1)).await;
    }
    api.route().await;
    let correlation =
        api.get("/v1/events/2").await.expect(200)["correlation_id"].as_str().unwrap().to_owned();
    for (text, to) in [
        ("evt_2", "/events/2"),
        ("EVT_2", "/events/2"),
        ("order-2", "/events/3"),
        (&correlation, "/events/2"),
        ("https%3A%2F%2Fexample.com%2Fhook", "/subscriptions/1"),
        ("example.com%2Fhook", "/subscriptions/1"),
        ("3", ""),
        ("%20evt_1%20", "/events/1"),
    ] {
        let response = browser.get(&format!("/search?q={text}")).await;
        assert_eq!(response.header("location"), to, "{text}");
    }
    let both = browser.page("/search?q=3").await;
    assert!(both.contains("href=\"/events/3\"") && both.contains("href=\"/deliveries/3\""));
    let nothing = browser.page("/search?q=%3Cscript%3E").await;
    assert!(nothing.contains("Nothing was found for <strong>&lt;script&gt;"), "{nothing}");
    assert!(nothing.contains("name=\"q\" value=\"&lt;script&gt;\""), "it can be corrected: {nothing}");
    // What no database takes as text, or nobody can have stored, is not found.
    for text in
        ["%00://", "https%3A%2F%2F%C3%A4.example%2F", "%00", "evt_%00", &format!("x://{}", "y".repeat(500))]
    {
        assert!(browser.page(&format!("/search?q={text}")).await.contains("Nothing was found for"), "{text}");
    }
    assert_eq!(subscription, 1);
}

#[tokio::test]
async fn search_finds_dead_letters_and_external_ids_that_look_like_ours() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    subscribe(&api, "default", "hook").await;
    for number in 0..3 {
        send(&api, "default", &format!("e{number}"), &json!(1)).await;
    }
    api.fail_all().await;
    let many = browser.page("/search?q=2").await;
    assert!(many.contains("href=\"/dead-letters/2\"") && many.contains("of delivery "), "{many}");
    assert_eq!(browser.get("/search?q=evt_2").await.header("location"), "/events/2");

    let like_ours = send(&api, "default", "evt_2", &json!(1)).await;
    let both = browser.page("/search?q=evt_2").await;
    assert!(both.contains("href=\"/events/2\"") && both.contains(&format!("href=\"/events/{like_ours}\"")));
    let far = send(&api, "default", "evt_987654", &json!(1)).await;
    let found = browser.get("/search?q=evt_987654").await;
    assert_eq!(found.header("location"), format!("/events/{far}"));
}

#[tokio::test]
async fn search_leads_to_the_rest_and_pages_keep_their_length() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    for number in 0..21 {
        let body = json!({"event_type": format!("t{number}"), "callback_url": "https://example.com/hook"});
        api.post("/v1/subscriptions", &body).await.expect(201);
    }
    let found = browser.page("/search?q=example.com/hook").await;
    let all = "/subscriptions?callback_url=https%3A%2F%2Fexample.com%2Fhook";
    assert!(found.contains(&format!("href=\"{all}\"")), "{found}");
    assert!(browser.page(all).await.contains("href=\"/subscriptions/1\""), "the oldest, too");
    // By an external id too, which each tenant may have once.
    for tenant in 0..21 {
        send(&api, &format!("tenant{tenant}"), "order-1", &json!(1)).await;
    }
    let found = browser.page("/search?q=order-1").await;
    assert!(found.contains("href=\"/events?external_id=order-1\""), "{found}");
    assert!(
        browser.page("/events?external_id=order-1").await.contains("href=\"/events/1\""),
        "the oldest, too"
    );
    let older = browser.page("/subscriptions?limit=5").await;
    assert!(older.contains("href=\"/subscriptions?limit=5&amp;cursor="), "{older}");
}

#[tokio::test]
async fn lists_are_filtered_and_paged_and_say_what_is_wrong() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    for number in 0..60 {
        send(&api, "default", &format!("e{number}"), &json!(1)).await;
    }
    let first = browser.page("/events").await;
    assert!(first.contains("evt_60") && !first.contains("evt_10<"));
    let older = first.split('"').find(|part| part.starts_with("/events?cursor=")).unwrap();
    let second = browser.page(older).await;
    assert!(second.contains("evt_10<") && second.contains("← Newest") && !second.contains("Older →"));
    // Empty fields of a form are no filters; a browser's times have no zone.
    let page = browser.page("/events?event_type=&external_id=e7&created_after=2020-01-01T00:00&created_before=2199-01-01T00:00:01").await;
    assert!(page.contains("evt_8<") && !page.contains("evt_9<"));
    for (query, said) in [
        ("/events?event_type=a%20b", "<p>Type: must be"),
        ("/deliveries?subscription_id=x&event_id=evt_0", "<p>Subscription: must be"),
        ("/deliveries?subscription_id=x&event_id=evt_0", "<p>Event: must be"),
        ("/dead-letters?unknown=1", "<p>Unknown: is not a known"),
        ("/subscriptions?active=maybe", "<p>Active: must be"),
        ("/events?cursor=x", "<p>Cursor: "),
    ] {
        assert!(browser.page(query).await.contains(said), "{query}");
    }
}

#[tokio::test]
async fn a_list_has_views_and_says_what_narrows_it() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    for path in ["/deliveries", "/subscriptions", "/dead-letters"] {
        let page = browser.page(path).await;
        assert!(page.contains(&format!("<a href=\"{path}\" aria-current=\"true\">All</a>")), "{page}");
        assert!(!page.contains("class=\"chips\""), "{page}");
    }
    let page = browser.page("/deliveries?status=DeadLettered&external_id=%3Cb%3E&event_type=a").await;
    let again = "href=\"/deliveries?external_id=%3Cb%3E&amp;event_type=a&amp;status=DeadLettered\" aria-current=\"true\"";
    assert!(page.contains(again), "{page}");
    assert!(
        page.contains("<span>Type a</span>") && page.contains("<span>External id &lt;b&gt;</span>"),
        "{page}"
    );
    assert!(!page.contains("<span>Given up</span>"), "the view says so: {page}");
    assert!(page.contains("href=\"/deliveries?status=DeadLettered&amp;event_type=a\" title="), "{page}");
    // The form is closed unless something in it is wrong.
    assert!(page.contains("<details class=\"filter\"><summary>"), "{page}");
    let wrong = browser.page("/deliveries?subscription_id=x").await;
    assert!(wrong.contains("<details class=\"filter\" open>") && wrong.contains("role=\"alert\""), "{wrong}");
}

#[tokio::test]
async fn an_empty_list_says_what_to_do_next() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let portal = Browser::portal(&api, &api.key_of("default").await).await;
    for (path, line) in [("/events", "hooksaga send"), ("/subscriptions", "hooksaga subscriptions add")] {
        assert!(browser.page(path).await.contains(line), "{path}");
        assert!(!portal.page(path).await.contains(line), "{path}: customers have no command line of ours");
        let none = browser.page(&format!("{path}?tenant=nobody")).await;
        assert!(none.contains("matches.") && !none.contains(line), "{none}");
        assert!(none.contains(&format!("<a href=\"{path}\">Show all</a>")), "{none}");
    }
}

#[tokio::test]
async fn an_event_that_nobody_wants_leads_to_a_subscription_for_it() {
    let api = TestApi::new().await;
    let event = api.event("order.created", &json!(1)).await;
    api.route().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let page = browser.page(&format!("/events/{event}")).await;
    let link = "/subscriptions/new?topics=order.created&tenant=default";
    assert!(page.contains(&link.replace('&', "&amp;")), "{page}");
    let form = browser.page(link).await;
    assert!(
        form.contains(">order.created</textarea>") && form.contains("name=\"tenant\" value=\"default\""),
        "{form}"
    );
    let reader = Browser::dashboard(&api, &api.key("read").await).await;
    assert!(!reader.page(&format!("/events/{event}")).await.contains("/subscriptions/new"));
}
