//! Subscriptions, from the first run on: created, verified, edited, paused, and given a new secret.

use super::*;

on_sqlite_and_postgres! {
    a_subscription_is_created_and_verified_before_ones_eyes,
    a_subscription_is_edited_paused_and_given_a_new_secret,
}

/// The secret that the page shows.
async fn secret(page: &Page) -> String {
    let shown = page.eval("document.querySelector('.secret code').textContent").await;
    let shown = shown.as_str().unwrap().to_owned();
    assert!(shown.starts_with("whsec_"), "{shown}");
    shown
}

async fn a_subscription_is_created_and_verified_before_ones_eyes(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    receiver.answer_challenge("/in", [Behaviour::Status(404)]);
    let page = signed_in(&server).await;
    page.see("Nothing is set up yet").await;
    page.see("hooksaga listen --port 9000").await;
    page.follow("a.button[href='/subscriptions/new']").await;

    // What is wrong is said beside the field, and what was written is still there.
    page.fill("input[name=callback_url]", &receiver.url("/in")).await;
    page.fill("textarea[name=topics]", "order.created\nno topic!").await;
    page.follow("main form button").await;
    page.see("must be an event type").await;
    let kept = page.eval("document.querySelector('input[name=callback_url]').value").await;
    assert_eq!(kept, receiver.url("/in"));

    page.fill("textarea[name=topics]", "order.created\ninvoice.*").await;
    page.fill("input[name=description]", "The shop").await;
    page.follow("main form button").await;
    let shown = secret(&page).await;
    let id = server.api().get("/v1/subscriptions").await.expect(200)["items"][0]["id"].as_i64().unwrap();
    assert_eq!(page.path().await, format!("/subscriptions/{id}"), "loading it again creates nothing");

    // That the challenge fails is seen without loading the page again, with the reason and what the endpoint must do.
    page.see("HTTP_404").await;
    page.see("What the endpoint must return").await;
    assert_eq!(secret(&page).await, shown, "it stays until somebody leaves");
    assert!(signed_by(&receiver.challenges("/in")[0], &shown));
    receiver.answer_challenge("/in", [Behaviour::AnswerChallenge]);
    page.follow("form[action$='/verify'] button").await;
    page.see("The callback URL is verified").await;
    page.open(&format!("/subscriptions/{id}")).await;
    assert!(!page.text().await.contains("whsec_"), "shown once");
    assert_calm(&page);
}

async fn a_subscription_is_edited_paused_and_given_a_new_secret(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, first) = api.verified_subscription("order.created", &receiver.url("/in")).await;
    let page = signed_in(&server).await;
    page.follow("nav a[href='/subscriptions']").await;
    page.follow(&format!("td a[href='/subscriptions/{id}']")).await;

    page.follow("a[href$='/edit']").await;
    page.fill("input[name=description]", "A new description").await;
    page.fill("input[name=max_retry_limit]", "7").await;
    page.fill("input[name=rate_limit]", "20").await;
    page.follow("main form button").await;
    page.see("Saved.").await;
    page.see("A new description").await;
    page.see("7 in all").await;
    page.see("at most 20").await;

    page.follow("button[name=active]").await;
    page.see("Paused. Its deliveries wait").await;
    let event = api.event("order.created", &json!(1)).await;
    page.open(&format!("/events/{event}")).await;
    page.see("Nowhere").await;
    page.open(&format!("/subscriptions/{id}")).await;
    page.follow("button[name=active]").await;
    page.see("Resumed.").await;
    page.follow("form[action$='/verify'] button").await;
    page.see("Verification is requested").await;
    eventually("it is challenged again", || async { (receiver.challenges("/in").len() == 2).then_some(()) })
        .await;

    page.click("details:has(form[action$='/rotate-secret']) > summary").await;
    page.follow("form[action$='/rotate-secret'] button").await;
    let second = secret(&page).await;
    assert_ne!(first, second);
    api.event("order.created", &json!(2)).await;
    let arrived = receiver.wait_for("/in", 1, PATIENCE).await.remove(0);
    assert!(signed_by(&arrived, &first) && signed_by(&arrived, &second), "receivers can change over");

    // A test event shows what the endpoint returns; headers are stored, and not shown again.
    page.open(&format!("/subscriptions/{id}/edit")).await;
    page.fill("textarea[name=headers]", "x-api-key: open sesame").await;
    page.follow("main form button").await;
    page.see("x-api-key").await;
    page.open(&format!("/subscriptions/{id}/edit")).await;
    assert!(!page.eval("document.documentElement.outerHTML").await.as_str().unwrap().contains("sesame"));
    page.open(&format!("/subscriptions/{id}")).await;
    page.follow("form[action$='/test'] button").await;
    page.see("this is its delivery").await;
    page.see("Delivered").await;
    page.see("HTTP 200").await;
    let test = receiver.wait_for("/in", 2, PATIENCE).await.remove(1);
    assert_eq!(
        (test.header("hooksaga-event-type"), test.header("x-api-key")),
        (Some("hooksaga.test"), Some("open sesame"))
    );

    page.open(&format!("/subscriptions/{id}")).await;
    page.click("details:has(form[action$='/delete']) > summary").await;
    page.follow("form[action$='/delete'] button").await;
    page.see("Deleted.").await;
    page.see("There is no subscription yet").await;
    page.open(&format!("/subscriptions/{id}")).await;
    page.see("There is no such page").await;
    assert_calm(&page);
}
