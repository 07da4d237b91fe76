//! The dashboard and the portal, as a browser meets them: signing in, what a session may see, and that nothing that
//! outsiders write becomes part of a page's code.

use crate::support::{PUBLIC_URL, ROOT_KEY, Response, TestApi};
use hooksaga_http::PortalLook;
use hooksaga_saga::{ErrorCode, Outcome};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a browser sends with a form of our own pages.
const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// The pages of a site that need no id.
const PAGES: [&str; 7] =
    ["", "/events", "/deliveries", "/subscriptions", "/subscriptions/new", "/dead-letters", "/search?q=1"];

/// Every path of a site. A page that is not here fails the walk over all routes: add it, so that it is visited with a
/// session of another tenant.
pub(crate) const PATHS: [&str; 22] = [
    "",
    "/dead-letters",
    "/dead-letters/requeue",
    "/dead-letters/{id}",
    "/deliveries",
    "/deliveries/{saga_id}",
    "/deliveries/{saga_id}/resend",
    "/events",
    "/events/{id}",
    "/events/{id}/payload",
    "/search",
    "/sign-in",
    "/sign-out",
    "/subscriptions",
    "/subscriptions/new",
    "/subscriptions/{id}",
    "/subscriptions/{id}/active",
    "/subscriptions/{id}/delete",
    "/subscriptions/{id}/edit",
    "/subscriptions/{id}/rotate-secret",
    "/subscriptions/{id}/test",
    "/subscriptions/{id}/verify",
];

/// What the dashboard alone has, for those who administer the whole server.
pub(crate) const OPERATORS_PATHS: [&str; 2] = ["/keys", "/keys/{id}/revoke"];

/// Somebody with a browser.
struct Browser<'a> {
    api: &'a TestApi,
    site: &'static str,
    cookie: String,
}

impl<'a> Browser<'a> {
    async fn dashboard(api: &'a TestApi, key: &str) -> Self {
        Self::signed_in(api, "", key).await
    }

    async fn portal(api: &'a TestApi, key: &str) -> Self {
        Self::signed_in(api, "/portal", key).await
    }

    async fn signed_in(api: &'a TestApi, site: &'static str, key: &str) -> Self {
        let response = sign_in(api, site, key, "").await;
        assert_eq!(response.status, 303, "{}", response.text());
        let cookie = response.header("set-cookie").split(';').next().unwrap().to_owned();
        Self { api, site, cookie }
    }

    /// The path of a page of this site.
    fn path(&self, path: &str) -> String {
        match (self.site, path) {
            ("", "") => "/".to_owned(),
            (site, path) => format!("{site}{path}"),
        }
    }

    async fn get(&self, path: &str) -> Response {
        self.api.bare("GET", &self.path(path), &[("cookie", &self.cookie)], "").await
    }

    /// The text of a page that is there.
    async fn page(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert_eq!(response.header("content-type"), "text/html; charset=utf-8");
        response.text().to_owned()
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let headers = [("cookie", self.cookie.as_str()), OWN, FORM];
        self.api.bare("POST", &self.path(path), &headers, form(fields)).await
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    let encode = |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02x}")).collect() };
    fields
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
        .collect::<Vec<_>>()
        .join("&")
}

async fn sign_in(api: &TestApi, site: &str, key: &str, next: &str) -> Response {
    api.bare("POST", &format!("{site}/sign-in"), &[OWN, FORM], form(&[("key", key), ("next", next)])).await
}

async fn subscribe(api: &TestApi, tenant: &str, path: &str) -> i64 {
    let url = format!("https://example.com/{path}");
    let body = json!({"event_type": "t", "callback_url": url, "tenant": tenant, "max_retry_limit": 1});
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    api.verify_all().await;
    id
}

async fn send(api: &TestApi, tenant: &str, external_id: &str, payload: &Value) -> i64 {
    let body = json!({"event_type": "t", "payload": payload, "tenant": tenant, "external_id": external_id});
    api.post("/v1/events", &body).await.expect(201)["id"].as_i64().unwrap()
}

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
async fn a_link_from_elsewhere_takes_one_more_step_so_that_the_strict_cookie_is_sent() {
    let api = TestApi::new().await;
    let page = api.bare("GET", "/events/1", &[("sec-fetch-site", "cross-site")], "").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("0;url=/sign-in?next=%2Fevents%2F1"), "{}", page.text());
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
    assert_eq!(files.len(), 4, "{files:?}");
    for file in files {
        let response = api.bare("GET", &file, &[], "").await;
        assert_eq!(response.status, 200, "{file}");
        assert_eq!(response.header("cache-control"), "public, max-age=31536000, immutable");
        for outside in ["@import", "url(", "innerHTML", "eval("] {
            assert!(!response.text().contains(outside), "{file} {outside}");
        }
    }
    assert_eq!(api.bare("GET", "/assets/dashboard-0000000000000000.css", &[], "").await.status, 404);
    // Where other sites may embed it, a strict cookie would never come back.
    let cookie = sign_in(&api, "/portal", &key, "").await.header("set-cookie").to_owned();
    assert!(cookie.ends_with("Path=/; HttpOnly; SameSite=None; Secure; Partitioned"), "{cookie}");
}

#[tokio::test]
async fn forms_of_other_sites_change_nothing() {
    let api = TestApi::new().await;
    let id = api.verified_subscription("t", "hook").await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let active = format!("/subscriptions/{id}/active");
    let posts = [active.as_str(), "/sign-in", "/sign-out", "/subscriptions/new", "/dead-letters/requeue"];
    for path in posts {
        for from in [
            vec![],
            vec![("sec-fetch-site", "cross-site")],
            vec![("sec-fetch-site", "same-site"), ("origin", PUBLIC_URL)],
            vec![("origin", "https://evil.example")],
            vec![("origin", "null")],
        ] {
            let mut headers = vec![("cookie", browser.cookie.as_str()), FORM];
            headers.extend(from.iter().copied());
            let response =
                api.bare("POST", path, &headers, form(&[("active", "false"), ("key", ROOT_KEY)])).await;
            assert_eq!(response.status, 403, "{path} {from:?}");
            assert!(!response.headers.contains_key("set-cookie"), "{path} {from:?}");
        }
    }
    let show = || async { api.get(&format!("/v1/subscriptions/{id}")).await.expect(200)["active"].clone() };
    assert_eq!(show().await, true);
    // From our own page it works, by either header.
    assert_eq!(browser.post(&active, &[("active", "false")]).await.status, 303);
    assert_eq!(show().await, false);
    let headers = [("cookie", browser.cookie.as_str()), FORM, ("origin", PUBLIC_URL)];
    assert_eq!(api.bare("POST", &active, &headers, form(&[("active", "true")])).await.status, 303);
    assert_eq!(show().await, true);
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
        ("/dead-letters/requeue".to_owned(), vec![("what", "all")]),
        ("/dead-letters/requeue".to_owned(), vec![("what", "one"), ("id", letter.as_str())]),
    ] {
        let response = reader.post(&path, &fields).await;
        assert_eq!(response.status, 403, "{path}");
        assert!(response.text().contains("This needs a key with the scope"), "{path}");
    }
    let items = api.get("/v1/dead-letters?requeued=true").await.expect(200);
    assert_eq!(items["items"], json!([]));
}

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
    for said in ["Must begin with https://", "must be an event type", "value=\"ftp://x\"", "value=\"many\""] {
        assert!(refused.text().contains(said), "{said}: {}", refused.text());
    }
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
async fn a_failing_delivery_is_followed_to_its_dead_letter_and_sent_again() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    assert!(browser.page("").await.contains("Nothing is set up yet"));
    api.verified_subscription("t", "hook").await;
    let event = api.event("t", &json!({"n": 1})).await;
    assert!(browser.page(&format!("/events/evt_{event}")).await.contains("being looked up"));
    api.route().await;
    assert!(browser.page("/deliveries/1").await.contains("about to be sent"));
    api.attempt_all(&Outcome::Failed(ErrorCode::http(503))).await;
    let page = browser.page("/deliveries/1").await;
    for said in ["Given up", "HTTP 503", "could not reach it, or it is overloaded", "try later", "Send again"]
    {
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
    assert!(selected.text().contains("1 dead letter was sent again. 1 skipped"), "{}", selected.text());
    assert!(selected.text().contains("1 had been sent again before"));
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

#[tokio::test]
async fn keys_are_seen_and_revoked_by_those_who_administer_the_whole_server() {
    let api = TestApi::new().await;
    let (reader, bound) = (api.key("read").await, api.key_of("acme").await);
    for key in [&reader, &bound] {
        let browser = Browser::dashboard(&api, key).await;
        assert!(!browser.page("").await.contains("href=\"/keys\""), "it is not offered");
        assert_eq!(browser.get("/keys").await.status, 403);
        assert_eq!(browser.post("/keys/1/revoke", &[]).await.status, 403);
    }
    assert_eq!(Browser::portal(&api, &bound).await.get("/keys").await.status, 404);

    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let page = browser.page("/keys").await;
    assert!(page.contains("acme") && !page.contains(&reader) && !page.contains(&bound));
    assert_eq!(browser.post("/keys/987654/revoke", &[]).await.status, 404);
    let revoked = browser.post("/keys/1/revoke", &[]).await;
    assert!(revoked.text().contains("is revoked") && !revoked.text().contains("/keys/1/revoke"));
}

/// With a session of one tenant nothing of another can be seen, changed or guessed.
#[tokio::test]
async fn a_bound_session_is_confined_to_its_tenant() {
    let api = TestApi::new().await;
    let own = subscribe(&api, "acme", "own").await;
    let foreign = subscribe(&api, "rival", "rival-secret-url").await;
    send(&api, "acme", "own-event", &json!("own-payload")).await;
    let foreign_event = send(&api, "rival", "rival-event", &json!("rival-payload")).await;
    api.fail_all().await;
    let correlation = api.get(&format!("/v1/events/{foreign_event}")).await.expect(200)["correlation_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let letters = api.get("/v1/dead-letters?tenant=rival").await.expect(200);
    let letter = letters["items"][0]["id"].as_i64().unwrap();
    let saga = letters["items"][0]["saga_id"].as_i64().unwrap();
    let before = api.get(&format!("/v1/subscriptions/{foreign}")).await.expect(200);

    let key = api.key_of("acme").await;
    for browser in [Browser::portal(&api, &key).await, Browser::dashboard(&api, &key).await] {
        assert!(browser.page("/events").await.contains("own-event"));
        assert!(browser.page(&format!("/subscriptions/{own}")).await.contains("example.com/own"));
        // Neither lists, nor filters, nor search show anything.
        for path in PAGES.into_iter().map(str::to_owned).chain([
            format!("/deliveries?event_id={foreign_event}"),
            format!("/deliveries?subscription_id={foreign}"),
            "/deliveries?external_id=rival-event".to_owned(),
            format!("/events?correlation_id={correlation}"),
            format!("/dead-letters?subscription_id={foreign}"),
            "/subscriptions?callback_url=https://example.com/rival-secret-url".to_owned(),
            "/search?q=https%3A%2F%2Fexample.com%2Frival-secret-url".to_owned(),
            "/search?q=rival-event".to_owned(),
            format!("/search?q={correlation}"),
            format!("/search?q=evt_{foreign_event}"),
        ]) {
            let page = browser.page(&path).await;
            let shown = page
                .replace(&format!("value=\"{correlation}\""), "")
                .replace(&format!("<strong>{correlation}"), "");
            for secret in [
                "rival-payload",
                &format!("href=\"{}/events/{foreign_event}\"", browser.site),
                &format!("/subscriptions/{foreign}\""),
                "Workers",
            ] {
                assert!(!shown.contains(secret), "{path} {secret}");
            }
        }
        // To name another tenant is refused in words, and shows nothing.
        let page = browser.page("/events?tenant=rival").await;
        assert!(page.contains("may name no other") && !page.contains("rival-event"));
        // Its pages do not exist, in the same words as those that nobody has, whatever is done with them.
        for path in PATHS.into_iter().filter(|path| path.contains('{')) {
            let id = match path.split('/').nth(1).unwrap() {
                "events" => foreign_event,
                "deliveries" => saga,
                "subscriptions" => foreign,
                "dead-letters" => letter,
                other => panic!("{other} is of a new kind: add a row of it"),
            };
            let (start, end) = (path.split('{').next().unwrap(), path.split('}').nth(1).unwrap());
            let fields =
                [("active", "false"), ("callback_url", "https://example.com/stolen"), ("topics", "t")];
            let mut seen = Vec::new();
            for id in [id, 987_654] {
                let path = format!("{start}{id}{end}");
                for response in [browser.get(&path).await, browser.post(&path, &fields).await] {
                    assert!([404, 405].contains(&response.status), "{path} {}", response.status);
                    seen.push(response.text().replace(&format!(" {id}."), " N."));
                }
            }
            assert_eq!(seen[..2], seen[2..], "{path}");
        }
        // Nothing of it can be changed.
        let letter = letter.to_string();
        let response = browser.post("/dead-letters/requeue", &[("what", "one"), ("id", &letter)]).await;
        assert_eq!(response.status, 404);
        let stolen = [("callback_url", "https://example.com/s"), ("topics", "t"), ("tenant", "rival")];
        let response = browser.post("/subscriptions/new", &stolen).await;
        assert_eq!(response.status, 403, "{}", response.text());
        let response = browser.post("/dead-letters/requeue", &[("what", "selected"), ("id", &letter)]).await;
        assert!(response.text().contains("0 dead letters were sent again"));
        let response =
            browser.post("/dead-letters/requeue", &[("what", "all"), ("filter.tenant", "rival")]).await;
        assert_eq!(response.status, 403);
        let foreign = foreign.to_string();
        let response = browser
            .post("/dead-letters/requeue", &[("what", "all"), ("filter.subscription_id", &foreign)])
            .await;
        assert!(response.text().contains("0 dead letters were sent again"), "{}", response.text());
    }
    assert_eq!(api.get(&format!("/v1/subscriptions/{foreign}")).await.expect(200), before);
    assert!(api.get(&format!("/v1/dead-letters/{letter}")).await.expect(200)["requeued_saga_id"].is_null());
    assert_eq!(
        api.get("/v1/subscriptions?tenant=rival").await.expect(200)["items"].as_array().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn a_portal_session_opens_with_its_token_and_carries_the_products_name() {
    let look =
        PortalLook { name: "Acme Hooks".to_owned(), color: "#ffcc00".to_owned(), ..PortalLook::default() };
    let api = TestApi::with(|parts| parts.portal = look).await;
    let session = api.post("/v1/portal-sessions", &json!({"tenant": "acme"})).await.expect(201);
    assert!(session["url"].as_str().unwrap().starts_with(&format!("{PUBLIC_URL}/portal#token=")));
    // The link leads to a page with the script that posts the token.
    let asked = api.bare("GET", "/portal", &[], "").await;
    assert_eq!((asked.status, asked.header("location")), (303, "/portal/sign-in?next=%2Fportal"));
    let browser = Browser::portal(&api, session["token"].as_str().unwrap()).await;
    let page = browser.page("").await;
    assert!(
        page.contains("Acme Hooks") && page.contains(">acme<") && page.contains("data-site=\"portal\""),
        "{page}"
    );
    assert!(!page.contains("hooksaga listen") && !page.contains("slots") && !page.contains("href=\"/events"));
    let theme = page.split('"').find(|part| part.starts_with("/assets/portal-")).unwrap();
    let theme = api.bare("GET", theme, &[], "").await;
    assert!(theme.text().contains("--button: #ffcc00; --button-ink: #000000"), "{}", theme.text());
    // The dashboard's cookie is another one.
    assert_eq!(api.bare("GET", "/events", &[("cookie", &browser.cookie)], "").await.status, 303);
    let old = sign_in(&api, "/portal", "hsk_old", "").await;
    assert!(old.status == 401 && old.text().contains("Ask for a new one"));
}

#[tokio::test]
async fn the_part_of_a_page_that_changes_can_be_asked_for_alone() {
    let api = TestApi::new().await;
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let headers = [("cookie", browser.cookie.as_str()), ("x-hooksaga-part", "1")];
    let part = api.bare("GET", "/", &headers, "").await;
    assert!(part.text().starts_with("<div id=\"part\" data-live>"), "{}", part.text());
    assert!(!part.text().contains("<header") && part.text().contains("Nothing is set up yet"));
}
