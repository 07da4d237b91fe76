//! What protects every page: its policy, its forms, scopes, and that outsiders' text stays text.

use super::*;

#[tokio::test]
async fn every_page_has_a_strict_policy_and_files_that_are_kept_for_ever() {
    let look =
        PortalLook { frame_ancestors: vec!["https://app.example.com".to_owned()], ..PortalLook::default() };
    let api = TestApi::with(|parts| parts.portal = look).await;
    let dashboard = Browser::dashboard(&api, ROOT_KEY).await;
    let key = api.key_of("acme").await;
    let portal = Browser::portal(&api, &key).await;
    let mut files = std::collections::BTreeSet::new();
    for browser in [&dashboard, &portal] {
        let embed = if browser.site.is_empty() { "'none'" } else { "https://app.example.com" };
        for path in PAGES.into_iter().chain(["/sign-in?next=", "/events/99", "/subscriptions/x"]) {
            let response = browser.get(path).await;
            let policy = response.header("content-security-policy");
            assert!(
                policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
                "{path} {policy}"
            );
            assert!(policy.ends_with(&format!("frame-ancestors {embed}")), "{path} {policy}");
            assert!(!policy.contains("unsafe") && !policy.contains('*'));
            assert_eq!(response.header("cache-control"), "no-store");
            let text = response.text();
            for outside in ["http://", "https://evil", " style=", " onclick=", "<script>", "<style"] {
                assert!(!text.replace("http://127.0.0.1:9000/", "").contains(outside), "{path} {outside}");
            }
            files.extend(text.split('"').filter(|part| part.starts_with("/assets/")).map(str::to_owned));
        }
    }
    assert_eq!(files.len(), 5, "{files:?}");
    for file in files {
        let response = api.bare("GET", &file, &[], "").await;
        assert_eq!(response.status, 200, "{file}");
        assert_eq!(response.header("cache-control"), "public, max-age=31536000, immutable");
        for outside in ["@import", "url(", "innerHTML", "eval(", "<script"] {
            assert!(!response.text().contains(outside), "{file} {outside}");
        }
    }
    assert_eq!(api.bare("GET", "/assets/dashboard-0000000000000000.css", &[], "").await.status, 404);
    // Where other sites may embed it, a strict cookie would never come back.
    let cookie = sign_in(&api, "/portal", &key, "").await.header("set-cookie").to_owned();
    assert!(cookie.ends_with("Path=/; HttpOnly; SameSite=None; Secure; Partitioned"), "{cookie}");
}

/// Every form of both sites, with a dashboard's cookie, a portal's strict one, and that of a portal that may be embedded, which
/// browsers do send from other sites.
#[tokio::test]
async fn forms_of_other_sites_change_nothing() {
    let look =
        PortalLook { frame_ancestors: vec!["https://app.example.com".to_owned()], ..PortalLook::default() };
    for look in [PortalLook::default(), look] {
        let api = TestApi::with(|parts| parts.portal = look).await;
        let id = api.verified_subscription("t", "hook").await;
        let letter = api.dead_letter("t", &json!(1)).await;
        let everything = async || {
            let mut all = Vec::new();
            for list in ["subscriptions", "dead-letters", "deliveries", "redrives", "events", "audit"] {
                all.push(api.get(&format!("/v1/{list}")).await.expect(200));
            }
            all
        };
        let key = api.key_of("default").await;
        let browsers = [Browser::dashboard(&api, ROOT_KEY).await, Browser::portal(&api, &key).await];
        let before = everything().await;
        for browser in &browsers {
            let more = if browser.site.is_empty() { &OPERATORS_PATHS[..] } else { &[] };
            for path in PATHS.iter().chain(more) {
                for from in [
                    vec![],
                    vec![("sec-fetch-site", "cross-site")],
                    vec![("sec-fetch-site", "same-site"), ("origin", PUBLIC_URL)],
                    vec![("origin", "https://evil.example"), ("host", "hooks.example.com")],
                    vec![("origin", "https://app.example.com")],
                    vec![("origin", "null")],
                ] {
                    let path = browser.path(&path.replace("{id}", "1").replace("{saga_id}", "1"));
                    let mut headers = vec![("cookie", browser.cookie.as_str()), FORM];
                    headers.extend(from.iter().copied());
                    let fields = form(&[
                        ("active", "false"),
                        ("key", ROOT_KEY),
                        ("what", "one"),
                        ("id", &letter.to_string()),
                        ("kind", "dead_letters"),
                        ("callback_url", "https://example.com/stolen"),
                        ("topics", "t"),
                    ]);
                    let response = api.bare("POST", &path, &headers, fields).await;
                    // A path without a form refuses the method.
                    assert!([403, 405].contains(&response.status), "{path} {from:?}: {}", response.status);
                    assert!(!response.headers.contains_key("set-cookie"), "{path} {from:?}");
                }
            }
        }
        assert_eq!(everything().await, before);
        // From our own page it works, by either header.
        let active = format!("/subscriptions/{id}/active");
        let show =
            || async { api.get(&format!("/v1/subscriptions/{id}")).await.expect(200)["active"].clone() };
        for browser in &browsers {
            assert_eq!(browser.post(&active, &[("active", "false")]).await.status, 303);
            assert_eq!(show().await, false);
            let headers = [("cookie", browser.cookie.as_str()), FORM, ("origin", PUBLIC_URL)];
            let fields = form(&[("active", "true")]);
            assert_eq!(api.bare("POST", &browser.path(&active), &headers, fields).await.status, 303);
            assert_eq!(show().await, true);
        }
    }
}

#[tokio::test]
async fn what_a_key_has_no_scope_for_is_neither_offered_nor_done() {
    let api = TestApi::new().await;
    let id = api.verified_subscription("t", "hook").await;
    let letter = api.dead_letter("t", &json!(1)).await.to_string();
    let key = api.key("read").await;
    let reader = Browser::dashboard(&api, &key).await;
    for path in [
        format!("/subscriptions/{id}"),
        format!("/dead-letters/{letter}"),
        "/dead-letters".to_owned(),
        "/subscriptions".to_owned(),
    ] {
        let page = reader.page(&path).await;
        assert_eq!(
            page.matches("method=\"post\"").count(),
            if path == "/dead-letters" { 2 } else { 1 },
            "{path}: sign-out only"
        );
        assert!(!page.contains("Send selected") && !page.contains("New subscription"), "{path}");
    }
    assert_eq!(reader.get("/subscriptions/new").await.status, 403);
    for (path, fields) in [
        (format!("/subscriptions/{id}/active"), vec![("active", "false")]),
        (format!("/subscriptions/{id}/verify"), vec![]),
        (format!("/subscriptions/{id}/rotate-secret"), vec![]),
        (format!("/subscriptions/{id}/edit"), vec![("callback_url", "https://example.com/x")]),
        ("/subscriptions/new".to_owned(), vec![("callback_url", "https://example.com/x"), ("topics", "t")]),
        ("/deliveries/1/resend".to_owned(), vec![]),
        ("/dead-letters/requeue".to_owned(), vec![("what", "count")]),
        ("/redrives".to_owned(), vec![("kind", "dead_letters")]),
        ("/dead-letters/requeue".to_owned(), vec![("what", "one"), ("id", letter.as_str())]),
    ] {
        let response = reader.post(&path, &fields).await;
        assert_eq!(response.status, 403, "{path}");
        assert!(response.text().contains("This needs a key with the scope"), "{path}");
    }
    let items = api.get("/v1/dead-letters?requeued=true").await.expect(200);
    assert_eq!(items["items"], json!([]));
}

/// Everything that outsiders write, with what they would write.
#[tokio::test]
async fn what_outsiders_write_is_text() {
    const HOSTILE: &str = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
    let api = TestApi::new().await;
    let body = json!({
        "event_type": "t", "callback_url": "https://example.com/a?q='&x=;onload=alert(3)", "description": HOSTILE,
        "max_retry_limit": 1,
    });
    api.post("/v1/subscriptions", &body).await.expect(201);
    api.verify_all().await;
    let external = "<svg/onload=alert(4)>";
    let body = json!({"event_type": "t", "payload": {HOSTILE: HOSTILE}, "external_id": external});
    let headers =
        [("content-type", "application/json"), ("x-correlation-id", "\"><script>alert(5)</script>")];
    api.raw("POST", "/v1/events", &headers, body.to_string()).await.expect(201);
    api.fail_all_with_excerpt(HOSTILE).await;

    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let key = api.key_of("default").await;
    let portal = Browser::portal(&api, &key).await;
    for browser in [&browser, &portal] {
        let mut seen = 0;
        for path in PAGES.into_iter().chain([
            "/events/1",
            "/deliveries/1",
            "/subscriptions/1",
            "/subscriptions/1/edit",
            "/dead-letters/1",
            "/search?q=%3Cscript%3Ealert(6)%3C/script%3E",
            "/events?external_id=%22%3E%3Cscript%3E",
            "/events/%3Cscript%3E",
        ]) {
            let text = browser.get(path).await.text().to_owned();
            let lower = text.to_lowercase();
            for tag in ["<script>", "<img src=x", "<svg/", "onerror=alert(2)>", "</pre></script>"] {
                assert!(!lower.contains(tag), "{path} {tag}");
            }
            seen += usize::from(text.contains("&lt;script&gt;alert(1)"));
        }
        assert!(seen >= 4, "the texts are shown, escaped: {seen}");
    }
    let raw = browser.get("/events/1/payload").await;
    assert_eq!(raw.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(raw.header("x-content-type-options"), "nosniff");
    assert_eq!(raw.text(), json!({HOSTILE: HOSTILE}).to_string(), "byte for byte");

    // What an operator configures is text, too.
    let look = PortalLook { name: HOSTILE.to_owned(), ..PortalLook::default() };
    let api = TestApi::with(|parts| parts.portal = look).await;
    let page = api.bare("GET", "/portal/sign-in", &[], "").await;
    assert!(page.text().contains("&lt;img src=x") && !page.text().contains("<img src=x"));
}
