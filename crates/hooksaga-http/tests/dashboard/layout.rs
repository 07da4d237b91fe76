//! What a page is put into.

use super::*;

#[tokio::test]
async fn the_part_of_a_page_that_changes_can_be_asked_for_alone() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let headers = [("cookie", browser.cookie.as_str()), ("x-hooksaga-part", "1")];
    let part = api.bare("GET", "/", &headers, "").await;
    assert!(part.text().starts_with("<div id=\"part\" data-live>"), "{}", part.text());
    assert!(!part.text().contains("<header") && part.text().contains("Nothing is set up yet"));
}

#[tokio::test]
async fn a_payload_is_not_sent_again_with_the_part_that_changes() {
    let api = TestApi::new().await;
    let event = api.event("t", &json!("the-payload")).await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let path = format!("/events/{event}");
    let page = browser.page(&path).await;
    assert!(page.contains("the-payload") && page.contains("<div id=\"part\" data-live>"), "{page}");
    let headers = [("cookie", browser.cookie.as_str()), ("x-hooksaga-part", "1")];
    let part = api.bare("GET", &path, &headers, "").await;
    assert!(part.text().contains("Where it went") && !part.text().contains("the-payload"), "{}", part.text());
}
