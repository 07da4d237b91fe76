//! Signing in and out: keys, cookies, and where they lead.

use super::*;

#[tokio::test]
async fn a_key_is_exchanged_for_a_cookie_and_leads_to_the_page_that_was_asked_for() {
    let api = TestApi::new().await;
    let asked = api.bare("GET", "/deliveries?status=Pending&event_id=3", &[], "").await;
    assert_eq!(asked.status, 303);
    let to = asked.header("location").to_owned();
    assert_eq!(to, "/sign-in?next=%2Fdeliveries%3Fstatus%3DPending%26event_id%3D3");
    let page = api.bare("GET", &to, &[], "").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("value=\"/deliveries?status=Pending&amp;event_id=3\""), "{}", page.text());

    let response = sign_in(&api, "", ROOT_KEY, "/deliveries?status=Pending&event_id=3").await;
    assert_eq!(
        (response.status, response.header("location")),
        (303, "/deliveries?status=Pending&event_id=3")
    );
    let cookie = response.header("set-cookie");
    let rest: Vec<_> = cookie.split("; ").skip(1).collect();
    assert_eq!(rest, ["Path=/", "HttpOnly", "SameSite=Strict", "Secure"], "{cookie}");
    assert!(cookie.starts_with("__Host-"), "{cookie}");
    assert!(!cookie.contains(ROOT_KEY));

    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    for path in PAGES {
        browser.page(path).await;
    }
    // Who is signed in and opens the sign-in again is led on.
    assert_eq!(browser.get("/sign-in?next=/events").await.header("location"), "/events");

    let out = browser.post("/sign-out", &[]).await;
    assert_eq!((out.status, out.header("location")), (303, "/sign-in"));
    assert!(out.header("set-cookie").contains("Max-Age=0"), "{}", out.header("set-cookie"));
}

#[tokio::test]
async fn without_tls_the_cookie_is_not_marked_secure() {
    let api = TestApi::with(|parts| parts.public_url = "http://127.0.0.1:8080".to_owned()).await;
    let response = sign_in(&api, "", ROOT_KEY, "").await;
    let cookie = response.header("set-cookie");
    assert!(
        cookie.starts_with("hooksaga_session=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
        "{cookie}"
    );
}

#[tokio::test]
async fn the_cookie_is_secure_where_the_listener_has_tls_whatever_links_say() {
    let api = TestApi::with(|parts| {
        parts.public_url = "http://hooks.example.com".to_owned();
        parts.tls = true;
    })
    .await;
    let response = sign_in(&api, "", ROOT_KEY, "").await;
    let cookie = response.header("set-cookie");
    assert!(cookie.starts_with("__Host-") && cookie.ends_with("; SameSite=Strict; Secure"), "{cookie}");
    Browser::dashboard(&api, ROOT_KEY).await.page("/events").await;
}

#[tokio::test]
async fn a_link_from_elsewhere_takes_one_more_step_so_that_the_strict_cookie_is_sent() {
    let api = TestApi::new().await;
    let page = api.bare("GET", "/events/1", &[("sec-fetch-site", "cross-site")], "").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("0;url=/sign-in?next=%2Fevents%2F1"), "{}", page.text());
}

#[tokio::test]
async fn a_link_from_elsewhere_to_the_portal_is_left_to_the_script_which_has_its_token() {
    let api = TestApi::new().await;
    for from in ["cross-site", "same-site"] {
        let page = api.bare("GET", "/portal/events", &[("sec-fetch-site", from)], "").await;
        let text = page.text();
        assert_eq!(page.status, 200);
        let target = "/portal/sign-in?next=%2Fportal%2Fevents";
        let refresh =
            format!("<noscript><meta http-equiv=\"refresh\" content=\"0;url={target}\"></noscript>");
        assert!(text.contains(&refresh) && text.matches("http-equiv").count() == 1, "{text}");
        assert!(text.contains("<html lang=\"en\" data-site=\"portal\">"), "{text}");
        assert!(text.contains(&format!("<a href=\"{target}\" data-onward>")), "{text}");
        let script = text.split('"').find(|part| part.ends_with(".js")).unwrap();
        assert_eq!(api.bare("GET", script, &[], "").await.status, 200);
    }
}

#[tokio::test]
async fn wrong_unfit_and_expired_keys_do_not_sign_in() {
    let api = TestApi::new().await;
    for key in ["", "hsk_unknown", &"x".repeat(600)] {
        let response = sign_in(&api, "", key, "").await;
        assert_eq!(response.status, 401);
        assert!(response.text().contains("not a valid API key"));
        assert!(!response.headers.contains_key("set-cookie"));
    }
    let blind = api.key("ingest,admin,operator").await;
    let response = sign_in(&api, "", &blind, "").await;
    assert_eq!(response.status, 403);
    assert!(response.text().contains("lacks the scope read"));

    let response = sign_in(&api, "/portal", ROOT_KEY, "").await;
    assert_eq!(response.status, 403);
    assert!(response.text().contains("bound to no tenant"));

    let expired = api.key_with("read", Some("acme"), Some(Duration::from_millis(1))).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(sign_in(&api, "/portal", &expired, "").await.status, 401);
}

#[tokio::test]
async fn a_session_ends_with_its_key() {
    let api = TestApi::new().await;
    let key = api.key("read").await;
    let browser = Browser::dashboard(&api, &key).await;
    browser.page("/events").await;
    let id = api.stores.keys.list().await.unwrap()[0].id;
    api.stores.keys.revoke(id).await.unwrap();
    let revoked = Instant::now();
    while browser.get("/events").await.status == 200 {
        assert!(revoked.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(browser.get("/events").await.header("location"), "/sign-in?next=%2Fevents");
    // Who had one is told, and nobody else.
    assert!(browser.get("/sign-in").await.text().contains("Your session has ended"));
    assert!(!api.bare("GET", "/sign-in", &[], "").await.text().contains("has ended"));
}

#[tokio::test]
async fn made_up_and_swapped_cookies_are_none() {
    let api = TestApi::new().await;
    let key = api.key_of("acme").await;
    let portal = Browser::portal(&api, &key).await;
    let dashboard = Browser::dashboard(&api, &key).await;
    let (name, value) = dashboard.cookie.split_once('=').unwrap();
    let portal_value = portal.cookie.split_once('=').unwrap().1;
    let mut changed = value.to_owned().into_bytes();
    changed[20] = if changed[20] == b'A' { b'B' } else { b'A' };
    for wrong in ["", "x", "AAAA", &"A".repeat(5000), portal_value, std::str::from_utf8(&changed).unwrap()] {
        let cookie = format!("{name}={wrong}");
        let response = api.bare("GET", "/events", &[("cookie", &cookie)], "").await;
        assert_eq!(response.status, 303, "{wrong:.40}");
    }
    let both = format!("other=1; {}; more=2", dashboard.cookie);
    assert_eq!(api.bare("GET", "/events", &[("cookie", &both)], "").await.status, 200);
    // Another server's key opens nothing.
    let other = TestApi::new().await;
    assert_eq!(other.bare("GET", "/events", &[("cookie", &dashboard.cookie)], "").await.status, 303);
}

#[tokio::test]
async fn next_leads_nowhere_else() {
    let api = TestApi::new().await;
    for next in [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/portal",
        "\r\nx: y",
    ] {
        let response = sign_in(&api, "", ROOT_KEY, next).await;
        assert_eq!(response.header("location"), "/", "{next}");
    }
}
