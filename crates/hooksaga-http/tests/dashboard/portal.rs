//! The portal: one tenant, and nothing of any other.

use super::*;

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
    let started = json!({"kind": "dead_letters", "filter": {"tenant": "rival", "event_type": "none"}});
    let redrive = api.post("/v1/redrives", &started).await.expect(202)["id"].as_i64().unwrap();

    let key = api.key_of("acme").await;
    for browser in [Browser::portal(&api, &key).await, Browser::dashboard(&api, &key).await] {
        assert!(browser.page("/events").await.contains("own-event"));
        assert!(text_of(&browser.page(&format!("/subscriptions/{own}")).await).contains("example.com/own"));
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
                "redrives" => redrive,
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
            browser.post("/dead-letters/requeue", &[("what", "count"), ("filter.tenant", "rival")]).await;
        assert_eq!(response.status, 403);
        let foreign = foreign.to_string();
        let response = browser
            .post("/dead-letters/requeue", &[("what", "count"), ("filter.subscription_id", &foreign)])
            .await;
        assert!(response.text().contains("None would be sent again"), "{}", response.text());
        let kind = ("kind", "dead_letters");
        let response = browser.post("/redrives", &[kind, ("filter.tenant", "rival")]).await;
        assert!(response.text().contains("may name no other"), "{}", response.text());
        let fields = [("kind", "events"), ("subscription_id", &foreign), ("since", "2020-01-01T00:00")];
        let response = browser.post("/redrives", &fields).await;
        assert!(response.text().contains("There is no subscription"), "{}", response.text());
    }
    assert_eq!(api.get("/v1/redrives").await.expect(200)["items"].as_array().unwrap().len(), 1);
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
    let asset = |end| page.split('"').find(|part| part.starts_with("/assets/portal-") && part.ends_with(end));
    let icon = api.bare("GET", asset(".svg").unwrap(), &[], "").await;
    assert_eq!((icon.status, icon.header("content-type")), (200, "image/svg+xml"));
    assert!(icon.text().contains("#ffcc00"), "{}", icon.text());
    let theme = asset(".css").unwrap();
    let theme = api.bare("GET", theme, &[], "").await;
    assert!(theme.text().contains("--button: #ffcc00; --button-ink: #000000"), "{}", theme.text());
    // The dashboard's cookie is another one.
    assert_eq!(api.bare("GET", "/events", &[("cookie", &browser.cookie)], "").await.status, 303);
    let old = sign_in(&api, "/portal", "hsk_old", "").await;
    assert!(old.status == 401 && old.text().contains("Ask for a new one"));
}

/// Who is bound to a tenant is a customer, on the dashboard as well.
#[tokio::test]
async fn customers_are_told_nothing_of_the_servers_inside() {
    let api = TestApi::new().await;
    let body = json!({"event_type": "t", "callback_url": "https://example.com/hook", "tenant": "acme"});
    api.post("/v1/subscriptions", &body).await.expect(201);
    api.verify_all().await;
    send(&api, "acme", "order-1", &json!(1)).await;
    api.lose_a_worker().await;
    api.attempt_all(&Outcome::Failed(ErrorCode::TLS_FAILED)).await;
    let key = api.key_of("acme").await;
    let (delivery, subscription) = ("/deliveries/1", ["/subscriptions/1", "/subscriptions/1/edit"]);
    let operator = Browser::dashboard(&api, ROOT_KEY).await;
    let page = operator.page(delivery).await;
    assert!(page.contains("its worker ended 1 time") && page.contains("callbacks.ca_file"), "{page}");
    for path in subscription {
        assert!(operator.page(path).await.to_lowercase().contains("the server's setting"), "{path}");
    }
    for customer in [Browser::portal(&api, &key).await, Browser::dashboard(&api, &key).await] {
        let page = customer.page(delivery).await;
        assert!(page.contains("issued for this host name."), "{page}");
        assert!(!page.contains("its worker") && !page.contains("callbacks."), "{page}");
        for path in subscription {
            let page = customer.page(path).await.to_lowercase();
            assert!(
                page.contains("the usual number") && !page.contains("the server's setting"),
                "{path}: {page}"
            );
        }
    }
    let portal = Browser::portal(&api, &key).await.page("").await;
    assert!(!portal.contains("/assets/icon-"), "the icon is not ours: {portal}");
}
