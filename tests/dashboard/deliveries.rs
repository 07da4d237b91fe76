//! Events and deliveries as somebody on call, or in support, follows them.

use super::*;

on_sqlite_and_postgres! {
    a_search_for_what_no_database_takes_finds_nothing,
    an_event_is_watched_as_it_arrives,
    a_failing_delivery_is_followed_to_its_dead_letter_and_sent_again,
}

async fn an_event_is_watched_as_it_arrives(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("order.created", &receiver.url("/in")).await;
    receiver.answer("/in", [Behaviour::Slow(Duration::from_secs(3), 200), Behaviour::Status(200)]);
    let page = signed_in(&server).await;
    page.see("Send the first event").await;
    page.eval("window.before = true").await;
    let sent = json!({"event_type": "order.created", "payload": {"order": 42}, "external_id": "order-42"});
    let event = api.post("/v1/events", &sent).await.expect(201)["id"].as_i64().unwrap();
    page.until("document.querySelector('.sentence') !== null").await;

    // The search takes what is at hand, by keyboard alone.
    for text in [format!("evt_{event}"), "order-42".to_owned()] {
        page.press("/").await;
        page.until("document.activeElement.id === 'q'").await;
        for letter in text.chars() {
            page.press(&letter.to_string()).await;
        }
        page.enter().await;
        assert_eq!(page.path().await, format!("/events/{event}"));
    }
    page.see("\"order\": 42").await;
    page.see("Sending").await;
    page.eval("window.before = true").await;
    page.see("Delivered").await;
    assert_eq!(page.eval("window.before").await, true, "without loading the page again");

    page.follow("td a[href^='/deliveries/']").await;
    page.see("Attempt 1").await;
    page.see("HTTP 200").await;
    page.open("/").await;
    page.eval("window.before = true").await;
    page.see("1 delivered").await;
    page.see("All is well").await;
    api.event("order.created", &json!(2)).await;
    page.see("2 delivered").await;
    assert_eq!(page.eval("window.before").await, true);
    assert_calm(&page);
}

async fn a_failing_delivery_is_followed_to_its_dead_letter_and_sent_again(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (subscription, _) = api.verified_subscription("order.created", &receiver.url("/in")).await;
    let broken = Behaviour::Body(500, "the till is jammed".to_owned());
    receiver.answer(
        "/in",
        [
            broken.clone(),
            broken.clone(),
            broken.clone(),
            broken.clone(),
            broken.clone(),
            broken,
            Behaviour::Status(200),
        ],
    );
    let first = api.event("order.created", &json!({"order": 1})).await;
    let first = api.delivery_with_status(first, "DeadLettered").await["saga_id"].clone();
    let second = api.event("order.created", &json!({"order": 2})).await;
    let second = api.delivery_with_status(second, "DeadLettered").await["saga_id"].clone();
    eventually("both have a dead letter", || async {
        let letters = api.get("/v1/dead-letters").await.expect(200);
        (letters["items"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;

    // From the first screen to the delivery: which endpoint fails, and why.
    let page = signed_in(&server).await;
    page.allow_clipboard().await;
    page.see("1 endpoint failing since").await;
    page.see("Failing endpoints").await;
    page.follow(&format!("td a[href='/subscriptions/{subscription}']")).await;
    page.follow(&format!("td a[href='/deliveries/{first}']")).await;
    page.see("Given up").await;
    page.see("Attempt 3").await;
    page.see("the till is jammed").await;
    page.click("button[data-copy]").await;
    page.until("document.querySelector('button[data-copy]').textContent === 'Copied'").await;
    let copied = page.eval("navigator.clipboard.readText()").await;
    let copied = copied.as_str().unwrap();
    assert!(copied.starts_with("Webhook evt_") && copied.contains("given up, 3 of 3 attempts"), "{copied}");

    // One is sent again from its own page, the other one from the list.
    page.follow("form[action$='/resend'] button").await;
    page.see("Sent again: this is the new delivery.").await;
    page.see("Delivered").await;
    page.open("/dead-letters?requeued=false").await;
    let boxes = page.eval("document.querySelectorAll('input[name=id]').length").await;
    assert_eq!(boxes, 1, "the other one is not open any more");
    page.follow("button[value=selected]").await;
    page.see("Select at least one").await;
    page.click("input[data-all=id]").await;
    page.see("Send selected again (1)").await;
    page.follow("button[value=selected]").await;
    page.see("1 dead letter was sent again.").await;
    assert_eq!(page.path().await, "/dead-letters?requeued=false");
    page.see("No dead letter matches.").await;
    page.open(&format!("/deliveries/{second}")).await;
    page.see("It was sent again as delivery").await;
    page.follow(".sentence a").await;
    page.see("Delivered").await;
    assert_eq!(receiver.deliveries("/in").len(), 8);
    page.open("/dead-letters?requeued=true").await;
    let became = page.eval("document.querySelectorAll('td:last-child .badge.good').length").await;
    assert_eq!(became, 2, "what became of them is beside them");

    // All that match a filter, after a count.
    receiver.answer("/in", [Behaviour::Status(500)]);
    let third = api.event("order.created", &json!({"order": 3})).await;
    api.delivery_with_status(third, "DeadLettered").await;
    page.open("/dead-letters?final_error_code=HTTP_500&requeued=false").await;
    page.until("document.querySelectorAll('input[name=id]').length === 1 || (location.reload(), false)")
        .await;
    receiver.answer("/in", [Behaviour::Status(200)]);
    page.follow("button[value=count]").await;
    page.see("1 dead letter would be sent again").await;
    page.follow("button[value=dead_letters]").await;
    page.see("Started. It goes on by itself").await;
    page.see("Done").await;
    let open = api.get("/v1/dead-letters?requeued=false").await.expect(200);
    assert_eq!(open["items"], json!([]));
    assert_calm(&page);
}

async fn a_search_for_what_no_database_takes_finds_nothing(installation: Installation) {
    let server = installation.serve().await;
    let page = signed_in(&server).await;
    for text in ["%00://", "%00", "x://%00", "%F0%9F%8D%B5://"] {
        page.open(&format!("/search?q={text}")).await;
        page.see("Nothing was found for").await;
    }
    assert_calm(&page);
}
