//! The script switched off: everything works but the live refresh.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_done_with_links_and_forms_alone() {
    let installation = Installation::sqlite();
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let page = Page::of(&server.url()).await;
    page.without_scripts().await;
    page.open("/subscriptions/new").await;
    sign_in(&page, ROOT_KEY).await;
    assert_eq!(page.path().await, "/subscriptions/new");

    page.fill("input[name=callback_url]", &receiver.url("/in")).await;
    page.fill("textarea[name=topics]", "order.created").await;
    page.follow("main form button").await;
    page.see("whsec_").await;
    assert!(!page.has(".secret button:not([hidden])").await, "what needs the script is not shown");
    eventually("verified", || async { (api.subscription(1).await["verified"] == true).then_some(()) }).await;
    page.open("/subscriptions/1").await;
    page.see("The callback URL is verified").await;
    page.follow("button[name=active]").await;
    page.see("Paused.").await;
    page.follow("button[name=active]").await;

    receiver.answer("/in", [Behaviour::Status(500)]);
    let event = api.event("order.created", &json!({"order": 1})).await;
    let delivery = api.delivery_with_status(event, "DeadLettered").await["saga_id"].clone();
    eventually("a dead letter", || async {
        api.get("/v1/dead-letters").await.expect(200)["items"][0]["id"].as_i64()
    })
    .await;
    page.open("/deliveries").await;
    page.click(".filter summary").await;
    page.click("input[value=DeadLettered]").await;
    page.follow(".filter button").await;
    page.follow(&format!("td a[href='/deliveries/{delivery}']")).await;
    page.see("Attempt 3").await;
    receiver.answer("/in", [Behaviour::Status(200)]);
    page.open("/dead-letters").await;
    page.click("input[name=id]").await;
    page.follow("button[value=selected]").await;
    page.see("1 dead letter was sent again.").await;
    receiver.wait_for("/in", 4, PATIENCE).await;

    // The portal's link is opened by its script; without it the token can be pasted.
    let session = api.post("/v1/portal-sessions", &json!({"tenant": "default"})).await.expect(201);
    page.open("/portal").await;
    sign_in(&page, session["token"].as_str().unwrap()).await;
    assert_eq!(page.path().await, "/portal");
    page.click(".account summary").await;
    page.follow(".account button").await;
    assert_eq!(page.path().await, "/portal/sign-in");
    assert_calm(&page);
}
