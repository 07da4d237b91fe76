//! What outsiders write never becomes part of a page: in no field, on no page.

use super::*;

/// Ends attributes, elements and comments of every kind, and leaves a mark where any of it runs.
const HOSTILE: &str = r#"'"><img/src=x/onerror=alert(1)><script>window.hit=1;alert(2)</script><svg/onload=alert(3)>--></textarea></title>"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outsiders_write_runs_nowhere() {
    let installation = Installation::sqlite().with("HOOKSAGA_PORTAL_NAME", "<img src=x onerror=alert(4)>");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let name = "<script>alert(5)</script>";
    let made =
        run(&installation, &["keys", "create", "--json", "--name", name, "--scopes", "operator"]).await;
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let hostile_key: Value = serde_json::from_slice(&made.stdout).unwrap();

    let path = "/in?a='%22%3E%3Cscript%3Ealert(6)%3C/script%3E&b='onmouseover=alert(7)";
    receiver.answer(path, [Behaviour::Body(500, HOSTILE.to_owned())]);
    receiver.answer_challenge("/wrong", [Behaviour::Body(200, HOSTILE.to_owned())]);
    let mut subscriptions = Vec::new();
    for (topic, path) in [("t", path), ("other", "/wrong")] {
        let body = json!({"event_type": topic, "callback_url": receiver.url(path), "description": HOSTILE, "tenant": "acme", "max_retry_limit": 1});
        subscriptions.push(api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap());
    }
    eventually("verified", || async {
        (api.subscription(subscriptions[0]).await["verified"] == true).then_some(())
    })
    .await;
    let external: String = HOSTILE.chars().filter(char::is_ascii_graphic).collect();
    let body =
        json!({"event_type": "t", "tenant": "acme", "external_id": external, "payload": {HOSTILE: HOSTILE}});
    let headers = [("content-type", "application/json"), ("x-correlation-id", r#""><svg/onload=alert(8)>"#)];
    let event = api.send("POST", "/v1/events", &headers, body.to_string().as_bytes()).await.expect(201);
    let event = event["id"].as_i64().unwrap();
    let delivery = api.delivery_with_status(event, "DeadLettered").await["saga_id"].clone();
    let letter = eventually("a dead letter", || async {
        api.get("/v1/dead-letters").await.expect(200)["items"][0]["id"].as_i64()
    })
    .await;

    // What a receiver says in its headers, and headers that have names of every kind.
    let header_name = "x-'|`~!#$%&*+^_.";
    let answer = format!("{HOSTILE}\r\nretry-after: {HOSTILE}\r\n{header_name}: {HOSTILE}");
    receiver.answer("/headers", [Behaviour::Redirect(answer)]);
    let body = json!({"event_type": "with.headers", "callback_url": receiver.url("/headers"), "tenant": "acme", "max_retry_limit": 1,
        "headers": {header_name: HOSTILE}});
    let with_headers = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    eventually("verified", || async {
        (api.subscription(with_headers).await["verified"] == true).then_some(())
    })
    .await;
    let body = json!({"event_type": "with.headers", "tenant": "acme", "payload": 1});
    let other_event = api.post("/v1/events", &body).await.expect(201)["id"].as_i64().unwrap();
    let redirected = api.delivery_with_status(other_event, "DeadLettered").await["saga_id"].clone();
    let sent = receiver.deliveries("/headers");
    assert_eq!(sent[0].header(header_name), Some(HOSTILE), "the endpoint gets what was asked for");

    // Who starts a redrive is shown with it, and so is its filter.
    let redrive =
        json!({"kind": "dead_letters", "filter": {"tenant": "acme", "final_error_code": "HTTP_599"}});
    let hostile = server.api_with(hostile_key["key"].as_str());
    let redrive = hostile.post("/v1/redrives", &redrive).await.expect(202);

    let asked = "%27%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert(9)%3E";
    let mut paths: Vec<String> =
        ["", "/events", "/deliveries", "/subscriptions", "/subscriptions/new", "/dead-letters", "/redrives"]
            .map(str::to_owned)
            .to_vec();
    paths.extend([
        format!("/events/{event}"),
        format!("/events/{event}/payload"),
        format!("/deliveries/{delivery}"),
        format!("/subscriptions/{}", subscriptions[0]),
        format!("/subscriptions/{}", subscriptions[1]),
        format!("/subscriptions/{}/edit", subscriptions[0]),
        format!("/dead-letters/{letter}"),
        format!("/events/{other_event}"),
        format!("/deliveries/{redirected}"),
        format!("/subscriptions/{with_headers}"),
        format!("/subscriptions/{with_headers}/edit"),
        format!("/redrives/{}", redrive["id"]),
        format!("/redrives?tenant={asked}&cursor={asked}"),
        format!("/{asked}/{asked}"),
        format!("/search?q={asked}"),
        format!("/events?event_type={asked}&external_id={asked}&created_after={asked}&{asked}={asked}"),
        format!("/deliveries?status={asked}&cursor={asked}&done={asked}"),
        format!("/subscriptions?callback_url={asked}&topic={asked}"),
        format!("/dead-letters?final_error_code={asked}&requeued={asked}"),
    ]);
    let operator = signed_in(&server).await;
    operator.open("/keys").await;
    operator.see(name).await;
    let customer = portal(&server, "acme").await;
    for (page, site) in [(&operator, ""), (&customer, "/portal")] {
        for path in &paths {
            let path = if site.is_empty() && path.is_empty() { "/" } else { &format!("{site}{path}") };
            page.open(path).await;
            assert_eq!(page.eval("window.hit === undefined").await, true, "{path}");
            let foreign = "document.querySelectorAll('main img, main svg:not([role=img]), script:not([src]), [onerror], [onload]').length";
            assert_eq!(page.eval(foreign).await, 0, "{path}");
        }
        assert_calm(page);
        // It is there to be read, as what it is.
        page.open(&format!("{site}/deliveries/{delivery}")).await;
        page.see(HOSTILE).await;
        // Of its own headers a subscription shows the names, and never a value.
        page.open(&format!("{site}/subscriptions/{with_headers}")).await;
        page.see(header_name).await;
        assert_eq!(page.eval("document.body.textContent.includes('onerror')").await, false);
    }
    customer.see("<img src=x onerror=alert(4)>").await;
    operator.open(&format!("/sign-in?next={asked}")).await;
    assert_eq!(operator.path().await, "/", "nor does it lead anywhere");
    assert_calm(&operator);
}
