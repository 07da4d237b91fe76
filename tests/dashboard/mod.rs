//! The dashboard and the portal in a real browser, over the real binary.

mod accounts;
mod deliveries;
mod embedding;
mod fixture;
mod injection;
mod outage;
mod page_checks;
mod portal;
mod redrives;
mod refreshing;
mod subscriptions;
mod without_script;

use crate::support::*;

/// Runs each scenario on the embedded back end and on a database server.
macro_rules! on_sqlite_and_postgres {
    ($($scenario:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::support::Installation::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(crate::support::Installation::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_sqlite_and_postgres;

/// Signs in on the sign-in page that is shown.
async fn sign_in(page: &Page, key: &str) {
    page.fill("input[name=key]", key).await;
    page.enter().await;
}

/// A page that is signed in with this key and shows the overview.
async fn signed_in_with(server: &Server, key: &str) -> Page {
    let page = Page::of(&server.url()).await;
    page.open("/").await;
    sign_in(&page, key).await;
    assert_eq!(page.path().await, "/");
    page
}

/// A page that is signed in with every scope.
async fn signed_in(server: &Server) -> Page {
    signed_in_with(server, ROOT_KEY).await
}

/// A page of the portal of this tenant, opened by its link.
async fn portal(server: &Server, tenant: &str) -> Page {
    let session = server.api().post("/v1/portal-sessions", &json!({"tenant": tenant})).await.expect(201);
    let url = session["url"].as_str().unwrap().to_owned();
    let page = Page::of(&server.url()).await;
    page.open(url.strip_prefix(&server.url()).unwrap()).await;
    page.until("location.pathname === '/portal' && document.querySelector('nav') !== null").await;
    page
}

/// Creates a key with the command line; the key and its id.
async fn new_key(installation: &Installation, scopes: &str, more: &[&str]) -> (String, i64) {
    let arguments = ["keys", "create", "--json", "--name", "somebody", "--scopes", scopes];
    let output = run(installation, &[&arguments, more].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let key: Value = serde_json::from_slice(&output.stdout).unwrap();
    (key["key"].as_str().unwrap().to_owned(), key["id"].as_i64().unwrap())
}

/// Nothing went wrong on any page so far.
fn assert_calm(page: &Page) {
    let complaints = page.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
