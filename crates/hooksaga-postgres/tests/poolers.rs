//! PgBouncer between the product and the server: session mode works whatever it drops, transaction mode is refused.

use crate::adapter::{Database, event, failure, fresh, options, superuser};
use hooksaga_postgres::{connect, connect_as_login};
use hooksaga_store::{RouteLimits, StoreError};
use hooksaga_testkit::pgbouncer::PgBouncer;

async fn pooled(mode: &'static str, ignored: &'static str) -> (Database, PgBouncer, String) {
    let db = fresh().await;
    let url = db.url.clone();
    let pooler = tokio::task::spawn_blocking(move || PgBouncer::start(&url, mode, ignored)).await.unwrap();
    let url = pooler.url(&db.url);
    (db, pooler, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_drops_the_settings_of_a_session_does_not_take_them_away() {
    let (db, _pooler, url) = pooled("session", "options,extra_float_digits").await;
    let client = connect_as_login(&url).await.unwrap();
    let row =
        client.query_one("SELECT current_setting('TimeZone'), current_setting('jit')", &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("UTC", "off"));

    let stores = connect(options(&url)).await.unwrap().stores();
    stores.ingest.append(&[event(None, "c")]).await.unwrap();
    let limits = RouteLimits { events: 10, sagas: 10 };
    assert_eq!(stores.router.route(limits, 5).await.unwrap().events.len(), 1);
    // Its sessions run as their role, and not as the login, who may do everything.
    superuser(&db.url).await.batch_execute("REVOKE ALL ON unrouted_events FROM router_worker").await.unwrap();
    let error = failure(stores.router.route(limits, 5).await);
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_sessions_is_refused() {
    let (_db, _pooler, url) = pooled("transaction", "options,extra_float_digits").await;
    let error = failure(connect(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("pool_mode = session"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_refuses_the_settings_says_what_to_change() {
    let (_db, _pooler, url) = pooled("session", "extra_float_digits").await;
    let error = failure(connect(options(&url)).await);
    assert!(matches!(error, StoreError::Setup(_)), "{error:?}");
    assert!(error.to_string().contains("ignore_startup_parameters = options"), "{error}");
}
