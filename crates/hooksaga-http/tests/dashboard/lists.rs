//! Lists, search, and an event that went nowhere.

use super::*;

#[tokio::test]
async fn an_event_that_went_nowhere_says_why() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let lost = api.event("order.created", &json!(1)).await;
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
        ("order-2", "/events/3"),
        (&correlation, "/events/2"),
        ("https%3A%2F%2Fexample.com%2Fhook", "/subscriptions/1"),
        ("3", ""),
        ("%20evt_1%20", "/events/1"),
    ] {
        let response = browser.get(&format!("/search?q={text}")).await;
        assert_eq!(response.header("location"), to, "{text}");
    }
    let both = browser.page("/search?q=3").await;
    assert!(both.contains("href=\"/events/3\"") && both.contains("href=\"/deliveries/3\""));
    assert!(
        browser.page("/search?q=%3Cscript%3E").await.contains("Nothing was found for <strong>&lt;script&gt;")
    );
    assert_eq!(subscription, 1);
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
        ("/events?event_type=a%20b", "event_type: must be"),
        ("/deliveries?subscription_id=x", "subscription_id: must be"),
        ("/dead-letters?unknown=1", "unknown: is not a known"),
        ("/subscriptions?active=maybe", "active: must be"),
        ("/events?cursor=x", "cursor"),
    ] {
        assert!(browser.page(query).await.contains(said), "{query}");
    }
}
