//! Redrives and health: what a subscription missed is sent and watched, and its page shows how its endpoint is doing.

use super::*;

on_sqlite_and_postgres! {
    what_a_paused_subscription_missed_is_sent_and_watched,
    dead_letters_are_counted_sent_in_the_background_and_followed,
}

async fn what_a_paused_subscription_missed_is_sent_and_watched(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, _) = api.verified_subscription("order.created", &receiver.url("/in")).await;
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": false})).await.expect(200);
    for order in 1..=3 {
        let event = api.event("order.created", &json!({"order": order})).await;
        assert_eq!(api.deliveries(event).await, Vec::<Value>::new());
    }
    let page = signed_in(&server).await;
    page.follow("nav a[href='/redrives']").await;
    page.see("There is none yet.").await;
    let start = "form[action='/redrives']";
    page.fill(&format!("{start} input[name=subscription_id]"), &id.to_string()).await;
    page.eval("document.querySelector('input[name=since]').value = '2020-01-01T00:00:00'").await;
    page.follow(&format!("{start} button")).await;
    page.see("must be active and verified").await;

    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"active": true})).await.expect(200);
    page.fill(&format!("{start} input[name=subscription_id]"), &id.to_string()).await;
    page.eval("document.querySelector('input[name=since]').value = '2020-01-01T00:00:00'").await;
    page.follow(&format!("{start} button")).await;
    page.see("Started. It goes on by itself").await;
    page.see("Done").await;
    receiver.wait_for("/in", 3, PATIENCE).await;
    // Those that came right after the verification may be what the subscription catches up with when it resumes.
    let examined = page.eval("document.querySelectorAll('.figure .value')[0].textContent").await;
    assert_eq!(examined, "3");
    assert_eq!(receiver.deliveries("/in").len(), 3, "each once");
    assert!(!page.has("form[action$='/cancel']").await, "it has ended");
    page.open("/redrives").await;
    page.see("root").await;
    assert_eq!(page.barriers().await, Vec::<String>::new());
    assert_calm(&page);
}

async fn dead_letters_are_counted_sent_in_the_background_and_followed(installation: Installation) {
    let installation = installation.with("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "1");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let failures = [503, 503].map(Behaviour::Status);
    receiver.answer("/in", failures.into_iter().chain([Behaviour::Status(200)]));
    let (id, _) = api.verified_subscription("order.created", &receiver.url("/in")).await;
    for order in 1..=2 {
        let event = api.event("order.created", &json!({"order": order})).await;
        api.delivery_with_status(event, "DeadLettered").await;
    }
    let page = signed_in(&server).await;

    // How the endpoint has been doing.
    page.open(&format!("/subscriptions/{id}")).await;
    page.see("How long attempts took").await;
    page.see("Last failure").await;
    let figures = "[...document.querySelectorAll('.figure')].map((one) => one.textContent).join()";
    let figures = page.eval(figures).await.as_str().unwrap().to_owned();
    assert!(figures.starts_with("0Delivered in 24 h,2Failed attempts,2Given up,"), "{figures}");
    assert!(figures.ends_with("95 % took at most,0Waiting"), "{figures}");
    assert_eq!(page.barriers().await, Vec::<String>::new());

    eventually("both are buried", || async {
        let letters = api.get("/v1/dead-letters").await.expect(200);
        (letters["items"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    page.open(&format!("/dead-letters?subscription_id={id}&requeued=false")).await;
    page.follow("button[value=count]").await;
    page.see("2 dead letters would be sent again").await;
    page.follow("button[value=dead_letters]").await;
    page.see("Started. It goes on by itself").await;
    page.see("Done").await;
    receiver.wait_for("/in", 4, PATIENCE).await;
    page.follow("main a[href*='requeued=true']").await;
    page.until("document.querySelectorAll('td .badge.good').length === 2 || (location.reload(), false)")
        .await;
    assert_calm(&page);
}
