//! Paths that lead nowhere: a page for people, a problem document for programs.

use super::*;

/// As a browser asks when somebody opens an address.
const PEOPLE: (&str, &str) = ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");

#[tokio::test]
async fn an_unknown_path_is_a_page_for_browsers_and_a_problem_for_programs() {
    let api = TestApi::new().await;
    for (path, home) in [
        ("/deliverys", "href=\"/\""),
        ("/portal/nothing", "href=\"/portal\""),
        ("/a/b/c?d=<script>", "href=\"/\""),
    ] {
        let page = api.bare("GET", &path.replace('<', "%3C").replace('>', "%3E"), &[PEOPLE], "").await;
        assert_eq!(page.status, 404, "{path}");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(page.header("content-security-policy").starts_with("default-src 'none'; script-src 'self';"));
        assert!(
            page.text().contains("Nothing is at this address") && page.text().contains(home),
            "{}",
            page.text()
        );
        assert!(!page.text().contains("<script>"));
        for accept in ["*/*", "application/json", "application/json, text/htmlx"] {
            let problem = api.bare("GET", path.split('?').next().unwrap(), &[("accept", accept)], "").await;
            assert_eq!(
                (problem.status, problem.header("content-type")),
                (404, "application/problem+json"),
                "{accept}"
            );
        }
        let problem = api.bare("GET", path.split('?').next().unwrap(), &[], "").await;
        assert_eq!(problem.header("content-type"), "application/problem+json");
    }
    // The API speaks JSON to everybody.
    for path in ["/v1", "/v1/nothing"] {
        let problem = api.bare("GET", path, &[PEOPLE], "").await;
        assert_eq!(
            (problem.status, problem.header("content-type")),
            (404, "application/problem+json"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn who_is_signed_in_finds_the_way_on_from_a_page_that_is_not_there() {
    let api = TestApi::new().await;
    let (key, reader) = (api.key_of("acme").await, api.key("read").await);
    let search = "role=\"search\"";
    for (browser, home) in [
        (Browser::dashboard(&api, ROOT_KEY).await, ""),
        (Browser::dashboard(&api, &reader).await, ""),
        (Browser::portal(&api, &key).await, "/portal"),
    ] {
        let headers = [("cookie", browser.cookie.as_str()), PEOPLE];
        for (path, status) in
            [("/deliveries/99", 404), ("/no/such/page", 404), ("/subscriptions/99/verify", 405)]
        {
            let page = api.bare("GET", &browser.path(path), &headers, "").await;
            assert_eq!(page.status, status, "{path}");
            let events = format!("href=\"{home}/events\"");
            assert!(page.text().contains(search) && page.text().contains(&events), "{}", page.text());
        }
    }
    let reader = Browser::dashboard(&api, &reader).await;
    let refused = reader.get("/subscriptions/new").await;
    assert!(refused.status == 403 && refused.text().contains(search), "{}", refused.text());
    // Who is not finds nothing but the way to the first page.
    let stranger = api.bare("GET", "/no/such/page", &[PEOPLE], "").await;
    assert!(!stranger.text().contains(search) && !stranger.text().contains("<nav"), "{}", stranger.text());
}

#[tokio::test]
async fn a_method_that_a_page_does_not_have_is_a_page_for_browsers_too() {
    let api = TestApi::new().await;
    let page = api.bare("GET", "/subscriptions/3/verify", &[PEOPLE], "").await;
    assert_eq!((page.status, page.header("content-type")), (405, "text/html; charset=utf-8"));
    assert_eq!(page.header("allow"), "POST");
    assert!(page.text().contains("To the overview"));
    let problem = api.bare("GET", "/subscriptions/3/verify", &[], "").await;
    assert_eq!((problem.status, problem.header("content-type")), (405, "application/problem+json"));
    let problem = api.bare("DELETE", "/v1/events", &[PEOPLE], "").await;
    assert_eq!((problem.status, problem.header("content-type")), (405, "application/problem+json"));
}
