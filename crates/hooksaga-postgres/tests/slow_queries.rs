//! Lists that take too long are ended, and delay neither readiness nor keys nor ingestion.

use crate::adapter::{fresh, superuser, value};
use hooksaga_conformance::{
    TestDatabase as _,
    locked::{self, Endless},
};
use std::time::Duration;

#[tokio::test]
async fn slow_lists_end_in_time_and_delay_nobody() {
    let database = fresh().await;
    let stores = database.stores();
    let keeper = superuser(&database.url).await;
    keeper.batch_execute("BEGIN; LOCK TABLE webhook_delivery_sagas IN ACCESS EXCLUSIVE MODE").await.unwrap();
    locked::slow_lists_end_in_time_and_delay_nobody(&stores).await;
    keeper.batch_execute("ROLLBACK").await.unwrap();
    locked::lists_work_again(&stores).await;
}

#[tokio::test]
async fn a_list_ends_when_its_caller_has_gone() {
    let database = fresh().await;
    let stores = database.stores();
    let keeper = superuser(&database.url).await;
    keeper.batch_execute("BEGIN; LOCK TABLE webhook_delivery_sagas IN ACCESS EXCLUSIVE MODE").await.unwrap();
    locked::lists_end_when_their_callers_have_gone(&stores, Endless::Deliveries).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let running = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
               AND query LIKE '%webhook_delivery_sagas%' AND pid <> pg_backend_pid()";
    assert_eq!(value(&database.url, running).await, "0", "nothing runs for nobody");
    keeper.batch_execute("ROLLBACK").await.unwrap();
    locked::lists_work_again(&stores).await;
}
