//! Who may look: right, wrong, expired and bound keys; and sessions that end.

use super::*;

on_sqlite_and_postgres! {
    a_key_opens_the_page_that_was_asked_for,
    a_session_ends_with_its_key_while_somebody_looks,
}

async fn a_key_opens_the_page_that_was_asked_for(installation: Installation) {
    let server = installation.serve().await;
    let (unfit, _) = new_key(&installation, "ingest", &[]).await;
    let (bound, _) = new_key(&installation, "read", &["--tenant", "acme"]).await;
    let (short, _) = new_key(&installation, "read", &["--expires", "1s"]).await;
    let page = Page::of(&server.url()).await;
    page.open("/deliveries?status=Completed&event_type=order.created").await;
    assert!(page.path().await.starts_with("/sign-in?next="), "{}", page.path().await);
    assert_calm(&page);

    sign_in(&page, "hsk_wrong").await;
    page.see("This is not a valid API key").await;
    sign_in(&page, &unfit).await;
    page.see("lacks the scope read").await;
    eventually("the key has expired", || async {
        (server.api_with(Some(&short)).get("/v1/me").await.status == 401).then_some(())
    })
    .await;
    sign_in(&page, &short).await;
    page.see("it has expired").await;

    sign_in(&page, ROOT_KEY).await;
    assert_eq!(page.path().await, "/deliveries?status=Completed&event_type=order.created");
    assert_eq!(page.eval("document.cookie + JSON.stringify(localStorage)").await, "{}", "no script sees it");
    page.click(".account summary").await;
    page.see("ingest,admin,operator,read").await;
    page.follow(".account button").await;
    page.open("/events").await;
    page.see("Sign in").await;

    // A bound key sees its tenant, here and in the portal; one that is bound to none has no portal.
    sign_in(&page, &bound).await;
    assert_eq!(page.path().await, "/events");
    assert!(page.text().await.contains("acme"));
    assert!(!page.has("input[name=tenant]").await, "there is no other tenant to ask for");
    assert!(!page.has("nav a[href='/keys']").await);
    page.open("/portal").await;
    sign_in(&page, ROOT_KEY).await;
    page.see("bound to no tenant").await;
    sign_in(&page, &bound).await;
    assert_eq!(page.path().await, "/portal");
    assert_calm(&page);
}

async fn a_session_ends_with_its_key_while_somebody_looks(installation: Installation) {
    let server = installation.serve().await;
    let (key, id) = new_key(&installation, "read", &[]).await;
    let admin = signed_in(&server).await;
    let page = signed_in_with(&server, &key).await;

    // An operator finds the key and revokes it.
    admin.follow("nav a[href='/keys']").await;
    admin.see("somebody").await;
    admin.click(&format!("#key-{id} summary")).await;
    admin.follow(&format!("#key-{id} button")).await;
    admin.see("is revoked").await;
    assert!(!admin.has(&format!("#key-{id} button")).await, "revoked keys stay so");
    assert_calm(&admin);

    page.until("location.pathname === '/sign-in' && document.readyState === 'complete'").await;
    sign_in(&page, ROOT_KEY).await;
    assert_eq!(page.path().await, "/", "back to where it was");
    assert_calm(&page);
}
