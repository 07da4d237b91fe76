//! The database away: what was on the screen stays there, and a page that is asked for says what is the matter.

use super::*;
use hooksaga_testkit::proxy::Proxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_stays_readable_and_says_that_the_database_is_away() {
    let installation = Installation::postgres().await;
    let url = installation.database_url().unwrap().to_owned();
    let (proxy, through) = Proxy::for_url(&url).await;
    let installation = installation.with("HOOKSAGA_DATABASE_URL", &through);
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
    let page = signed_in(&server).await;
    page.see("All is well").await;

    proxy.refuse();
    page.see("This page cannot be refreshed").await;
    assert!(page.text().await.contains("All is well"), "what was known is still there");
    let other = Page::of(&server.url()).await;
    other.open("/sign-in").await;
    sign_in(&other, ROOT_KEY).await;
    assert_eq!(page_checks::examine(&other, "database-away", "/deliveries").await, Vec::<String>::new());
    other.see("The database is not available").await;

    proxy.accept_again();
    page.until("document.getElementById('stale').hidden").await;
    page.see("All is well").await;
    assert_calm(&page);
    assert_calm(&other);
}
