//! The customers' portal: one tenant, and nothing of another, however it is asked for.

use super::*;
use std::collections::BTreeSet;

on_sqlite_and_postgres! {
    a_portal_session_finds_nothing_of_another_tenant,
}

/// What one tenant has.
struct Owner {
    subscription: i64,
    event: i64,
    delivery: i64,
    letter: i64,
    correlation: String,
}

async fn owner(server: &Server, receiver: &Receiver, tenant: &str) -> Owner {
    let api = server.api();
    let path = format!("/{tenant}-endpoint");
    receiver.answer(&path, [Behaviour::Body(500, format!("{tenant}-excerpt"))]);
    let body = json!({
        "event_type": "order.created", "callback_url": receiver.url(&path), "tenant": tenant,
        "description": format!("{tenant}-description"), "max_retry_limit": 1,
    });
    let subscription = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    eventually("verified", || async {
        (api.subscription(subscription).await["verified"] == true).then_some(())
    })
    .await;
    let body = json!({
        "event_type": "order.created", "tenant": tenant, "external_id": format!("{tenant}-order"),
        "payload": {"of": format!("{tenant}-payload")},
    });
    let event = api.post("/v1/events", &body).await.expect(201);
    let (event, correlation) =
        (event["id"].as_i64().unwrap(), event["correlation_id"].as_str().unwrap().to_owned());
    let delivery = api.delivery_with_status(event, "DeadLettered").await["saga_id"].as_i64().unwrap();
    let letter = eventually("a dead letter", || async {
        let letters = api.get(&format!("/v1/dead-letters?tenant={tenant}")).await.expect(200);
        letters["items"][0]["id"].as_i64()
    })
    .await;
    Owner { subscription, event, delivery, letter, correlation }
}

/// Everything of a tenant, as the API shows it to the operator.
async fn everything(api: &Api, tenant: &str) -> Vec<Value> {
    let mut all = Vec::new();
    for list in ["events", "subscriptions", "deliveries", "dead-letters"] {
        all.push(api.get(&format!("/v1/{list}?tenant={tenant}")).await.expect(200));
    }
    all
}

async fn a_portal_session_finds_nothing_of_another_tenant(installation: Installation) {
    let installation = installation
        .with("HOOKSAGA_PORTAL_NAME", "Acme Cloud webhooks")
        .with("HOOKSAGA_PORTAL_COLOR", "#7a1fa2");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let (own, rival) = (owner(&server, &receiver, "acme").await, owner(&server, &receiver, "rival").await);
    let before = everything(&server.api(), "rival").await;
    let page = portal(&server, "acme").await;
    assert_eq!(page.path().await, "/portal", "the token is not left in the address");
    page.see("Acme Cloud webhooks").await;

    // Its own is there; walking every link finds that, and no trace of anybody else.
    let (mut found, mut to_visit) = (BTreeSet::new(), vec!["/portal".to_owned()]);
    let rivals_url = receiver.url("/rival-endpoint");
    while let Some(path) = to_visit.pop() {
        if !found.insert(path.clone()) {
            continue;
        }
        page.open(&path).await;
        let html = page.eval("document.documentElement.outerHTML").await;
        assert!(!html.as_str().unwrap().contains("rival"), "{path}");
        let links = page
            .eval("[...document.querySelectorAll('a[href]')].map((link) => link.getAttribute('href'))")
            .await;
        for link in links.as_array().unwrap().iter().map(|link| link.as_str().unwrap()) {
            assert!(link.starts_with("/portal") || link.starts_with('#'), "{path} leads to {link}");
            to_visit.extend(link.starts_with('/').then(|| link.to_owned()));
        }
    }
    for path in [
        format!("/portal/events/{}", own.event),
        format!("/portal/deliveries/{}", own.delivery),
        format!("/portal/subscriptions/{}", own.subscription),
        format!("/portal/dead-letters/{}", own.letter),
    ] {
        assert!(found.contains(&path), "{path} is not reached by links: {found:?}");
    }
    assert_calm(&page);

    // By address: what is another's looks like what nobody has.
    let (s, e, d, l) = (rival.subscription, rival.event, rival.delivery, rival.letter);
    for (kind, id, more) in [
        ("events", e, ""),
        ("events", e, "/payload"),
        ("deliveries", d, ""),
        ("subscriptions", s, ""),
        ("subscriptions", s, "/edit"),
        ("dead-letters", l, ""),
    ] {
        let mut shown = Vec::new();
        for id in [id, 987_654] {
            page.open(&format!("/portal/{kind}/{id}{more}")).await;
            shown.push(page.text().await.replace(&id.to_string(), "N"));
        }
        assert!(shown[0].contains("There is no"), "{kind}: {}", shown[0]);
        assert_eq!(shown[0], shown[1], "{kind}{more}");
    }
    // The operators' pages are not for this cookie.
    for path in ["/", "/keys", "/events", "/portal/keys"] {
        page.open(path).await;
        let text = page.text().await;
        assert!(
            text.contains("Sign in") || text.contains("no such page") || text.contains("no such route"),
            "{path}: {text}"
        );
    }
    // By filter and search.
    let encoded: String = rivals_url.bytes().map(|byte| format!("%{byte:02x}")).collect();
    for query in [
        "events?tenant=rival".to_owned(),
        "events?external_id=rival-order".to_owned(),
        format!("events?correlation_id={}", rival.correlation),
        format!("deliveries?event_id={e}"),
        format!("deliveries?subscription_id={s}"),
        "deliveries?tenant=rival".to_owned(),
        format!("dead-letters?subscription_id={s}"),
        format!("subscriptions?callback_url={encoded}"),
        "subscriptions?tenant=rival".to_owned(),
        "search?q=rival-order".to_owned(),
        format!("search?q=evt_{e}"),
        format!("search?q={}", rival.correlation),
        format!("search?q={encoded}"),
    ] {
        page.open(&format!("/portal/{query}")).await;
        assert!(
            page.path().await.starts_with(&format!("/portal/{}", query.split('?').next().unwrap())),
            "{query}"
        );
        // The filter says again what was asked for.
        let shown = page
            .eval(
                "[...document.querySelectorAll('main table, main .card, main a')]
                   .filter((one) => !one.closest('.views, .chips')).map((one) => one.outerHTML).join('')",
            )
            .await;
        let shown = shown.as_str().unwrap().replace("tenant=rival", "");
        for trace in [
            "rival",
            &format!("/events/{e}\""),
            &format!("/deliveries/{d}\""),
            &format!("/subscriptions/{s}\""),
        ] {
            assert!(!shown.contains(trace), "{query}: {shown}");
        }
    }
    page.complaints();

    // By form: every one of them, sent from a page of the portal with another's ids.
    let forms = json!([
        [format!("deliveries/{d}/resend"), {}],
        [format!("subscriptions/{s}/edit"), {"callback_url": "https://example.com/stolen", "topics": "order.created"}],
        [format!("subscriptions/{s}/active"), {"active": "false"}],
        [format!("subscriptions/{s}/verify"), {}],
        [format!("subscriptions/{s}/rotate-secret"), {}],
        ["subscriptions/new", {"callback_url": receiver.url("/more"), "topics": "order.created", "tenant": "rival"}],
        ["dead-letters/requeue", {"what": "one", "id": l}],
        ["dead-letters/requeue", {"what": "selected", "id": l}],
        ["dead-letters/requeue", {"what": "count", "filter.tenant": "rival"}],
        ["dead-letters/requeue", {"what": "count", "filter.subscription_id": s}],
    ]);
    page.open("/portal").await;
    for form in forms.as_array().unwrap() {
        let sent = format!(
            "fetch('/portal/' + {}, {{method: 'POST', body: new URLSearchParams({})}}).then(async (got) => `${{got.status}} ${{await got.text()}}`)",
            form[0], form[1]
        );
        let got = page.eval(&sent).await;
        let got = got.as_str().unwrap();
        let nothing =
            ["0 dead letters were", "None would", "no longer there"].iter().any(|text| got.contains(text));
        assert!(got.starts_with("404 ") || got.starts_with("403 ") || nothing, "{form}: {got}");
        assert!(!got.contains("whsec_") && !got.contains("rival-"), "{form}: {got}");
    }
    assert_eq!(everything(&server.api(), "rival").await, before, "nothing of it was changed");

    // What is its own it may change.
    page.open(&format!("/portal/subscriptions/{}", own.subscription)).await;
    page.follow("button[name=active]").await;
    page.see("Paused.").await;
}
