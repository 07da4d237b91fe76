//! The first page: what fails, what waits, and who delivers.

use super::*;
use crate::outages::Broken;
use hooksaga_http::Probes;
use hooksaga_store::{StoreError, WorkerBeat};
use std::sync::Arc;

async fn subscribe_to(api: &TestApi, event_type: &str) -> i64 {
    let url = format!("https://example.com/{event_type}");
    let body = json!({"event_type": event_type, "callback_url": url, "max_retry_limit": 5});
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    api.verify_all().await;
    id
}

/// So many events of this type, whose deliveries fail and wait for a retry.
async fn retrying(api: &TestApi, event_type: &str, events: usize) {
    for number in 0..events {
        api.event(event_type, &json!(number)).await;
    }
    api.route().await;
    api.attempt_all(&Outcome::Failed(ErrorCode::http(503))).await;
}

/// A worker that is alive.
async fn work(api: &TestApi, worker_id: i64, slots: u32) {
    let beat = WorkerBeat { worker_id, slots, version: "1.2.3".to_owned() };
    api.stores.worker.heartbeat(&beat).await.unwrap();
}

/// The row of a table that leads to this subscription, without its markup.
fn row_of(page: &str, subscription: i64) -> Option<String> {
    let link = format!("href=\"/subscriptions/{subscription}\"");
    page.split("<tr>").find(|row| row.contains(&link)).map(str::to_owned)
}

/// What a figure shows.
fn figure<'a>(page: &'a str, name: &str) -> &'a str {
    let end = format!("</span><span class=\"name\">{name}</span>");
    let before = page.split(&end).next().filter(|before| before.len() < page.len());
    before.unwrap_or_else(|| panic!("{name} is not on {page}")).rsplit('>').next().unwrap()
}

/// The first page, once what is open has been counted: a busy machine takes longer than the page waits.
async fn overview(browser: &Browser<'_>) -> String {
    loop {
        let page = browser.page("").await;
        if !page.contains("are being counted") {
            return page;
        }
    }
}

/// An API whose counts of what is open fail like this.
async fn without_counts(error: fn() -> StoreError) -> TestApi {
    let api = TestApi::with(|parts| {
        parts.probes = Probes::new(Arc::new(Broken(error)), Arc::clone(&parts.metrics));
    })
    .await;
    work(&api, 1, 16).await;
    subscribe_to(&api, "t").await;
    retrying(&api, "t", 1).await;
    api
}

/// All of the page but the counts.
fn assert_the_rest_is_there(page: &str) {
    assert!(page.contains("1 endpoint failing since "), "{page}");
    for name in ["Waiting", "Sending", "Retrying", "Held"] {
        assert_eq!(figure(page, name), "…");
    }
    assert_eq!((figure(page, "Workers · slots"), figure(page, "Oldest due work")), ("1 · 16", "none"));
}

#[tokio::test]
async fn an_endpoint_that_begins_to_fail_is_seen_beside_ten_that_have_for_long() {
    let api = TestApi::new().await;
    work(&api, 1, 16).await;
    let mut newest = 0;
    for number in 0..11 {
        let event_type = format!("type{number}");
        newest = subscribe_to(&api, &event_type).await;
        retrying(&api, &event_type, 1).await;
    }
    let page = overview(&Browser::dashboard(&api, ROOT_KEY).await).await;
    assert!(page.contains("11 endpoints failing since "), "{page}");
    assert!(row_of(&page, newest).is_some(), "{page}");
}

#[tokio::test]
async fn endpoints_that_fail_are_not_hidden_by_one_with_many_retries_or_by_held_ones() {
    let api = TestApi::new().await;
    let quiet = subscribe_to(&api, "quiet").await;
    retrying(&api, "quiet", 1).await;
    let loud = subscribe_to(&api, "loud").await;
    retrying(&api, "loud", 150).await;
    let held = subscribe_to(&api, "held").await;
    retrying(&api, "held", 120).await;
    api.patch(&format!("/v1/subscriptions/{held}"), &json!({"active": false})).await.expect(200);

    work(&api, 1, 16).await;
    let page = overview(&Browser::dashboard(&api, ROOT_KEY).await).await;
    assert!(page.contains("2 endpoints failing since "), "{page}");
    assert_eq!(row_of(&page, held), None, "what is held does not fail: {page}");
    for (id, failures, waiting) in [(quiet, "1", "1"), (loud, "150", "100+")] {
        let row = row_of(&page, id).unwrap_or_else(|| panic!("{id} is not on {page}"));
        assert!(row.contains("title=\"HTTP_503\""), "{row}");
        for (name, value) in [("Failed attempts", failures), ("Waiting", waiting)] {
            let cell = format!("<td class=\"number\" data-name=\"{name}\">{value}</td>");
            assert!(row.contains(&cell), "{row}");
        }
        // The next retry counts down.
        assert!(row.contains(" data-due>in "), "{row}");
    }
    assert_eq!((figure(&page, "Held"), figure(&page, "Retrying")), ("120", "271"));
}

#[tokio::test]
async fn the_figures_say_what_waits_for_how_long_and_who_delivers() {
    let api = TestApi::new().await;
    subscribe_to(&api, "t").await;
    api.event("t", &json!(1)).await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let page = overview(&browser).await;
    assert!(page.contains("No worker is running"), "{page}");
    assert_eq!((figure(&page, "Workers · slots"), figure(&page, "Oldest due work")), ("0 · 0", "none"));
    work(&api, 1, 16).await;
    work(&api, 2, 2000).await;
    api.route().await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let page = overview(&browser).await;
    assert_eq!(figure(&page, "Workers · slots"), "2 · 2,016");
    assert!(["2 s", "3 s", "4 s"].contains(&figure(&page, "Oldest due work")), "{page}");
    assert_eq!(figure(&page, "Held"), "0");
    assert!(page.contains("<td data-name=\"Version\">1.2.3</td>"), "{page}");
}

#[tokio::test]
async fn subscriptions_that_were_switched_off_are_part_of_the_sentence() {
    let api = TestApi::new().await;
    let id = subscribe_to(&api, "t").await;
    api.event("t", &json!(1)).await;
    api.route().await;
    api.attempt_all(&Outcome::Failed(ErrorCode::http(410))).await;
    let gone = api.stores.caretaker.gone(10).await.unwrap();
    assert_eq!(api.stores.caretaker.disable(&gone).await.unwrap().len(), 1);
    let page = overview(&Browser::dashboard(&api, &api.key_of("default").await).await).await;
    assert!(page.contains("No endpoint fails, but 1 endpoint switched off in the last 24 h"), "{page}");
    assert!(page.contains("href=\"/subscriptions?disabled=true\"") && row_of(&page, id).is_none(), "{page}");
}

#[tokio::test]
async fn of_sixty_that_fail_the_last_is_seen_and_the_others_are_counted() {
    let api = TestApi::new().await;
    work(&api, 1, 16).await;
    let mut all = Vec::new();
    for number in 0..60 {
        let event_type = format!("type{number}");
        all.push(subscribe_to(&api, &event_type).await);
        retrying(&api, &event_type, 1).await;
    }
    let page = overview(&Browser::dashboard(&api, ROOT_KEY).await).await;
    assert!(page.contains("60 endpoints failing since ") && page.contains("10 more fail."), "{page}");
    for (number, shown) in [(0, true), (24, true), (25, false), (34, false), (35, true), (59, true)] {
        assert_eq!(row_of(&page, all[number]).is_some(), shown, "{number}");
    }
    let held = "href=\"/subscriptions?active=false&amp;disabled=false\"";
    assert!(page.contains(held), "{page}");
}

#[tokio::test]
async fn what_takes_too_long_to_count_leaves_the_rest_of_the_page() {
    let api = without_counts(|| StoreError::TooSlow("a table with everything".to_owned())).await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    for _ in 0..2 {
        let page = overview(&browser).await;
        assert!(page.contains("counting them takes too long"), "{page}");
        assert_the_rest_is_there(&page);
    }
    let problem = api.get("/v1/stats").await.expect(503);
    assert_eq!(problem["type"], "urn:hooksaga:problem:query-too-slow");
    assert_eq!(api.get("/v1/stats?tenant=default").await.expect(200)["open_deliveries"]["PendingRetry"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_page_does_not_wait_for_a_long_count() {
    let api = without_counts(|| {
        std::thread::sleep(Duration::from_secs(6));
        StoreError::TooSlow("a table with everything".to_owned())
    })
    .await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let asked = Instant::now();
    let page = browser.page("").await;
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    assert!(page.contains("The open deliveries are being counted."), "{page}");
    assert_the_rest_is_there(&page);
}
