//! Lists that take too long are ended, and delay neither readiness nor keys nor ingestion.

use crate::adapter::{fresh, owner, value};
use hooksaga_conformance::{TestDatabase as _, locked};
use mysql_async::prelude::Queryable as _;
use std::time::Duration;

#[tokio::test]
async fn slow_lists_end_in_time_and_delay_nobody() {
    let database = fresh().await;
    let stores = database.stores();
    let mut keeper = owner(&database.url).await;
    keeper.query_drop("LOCK TABLES webhook_delivery_sagas WRITE").await.unwrap();
    locked::slow_lists_end_in_time_and_delay_nobody(&stores).await;
    keeper.query_drop("UNLOCK TABLES").await.unwrap();
    locked::lists_work_again(&stores).await;
}

#[tokio::test]
async fn a_list_ends_when_its_caller_has_gone() {
    let database = fresh().await;
    let stores = database.stores();
    let mut keeper = owner(&database.url).await;
    keeper.query_drop("LOCK TABLES webhook_delivery_sagas WRITE").await.unwrap();
    locked::lists_end_when_their_callers_have_gone(&stores).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let running = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%webhook_delivery_sagas%' \
               AND id <> CONNECTION_ID()";
    assert_eq!(value(&database.url, running).await, "0", "nothing runs for nobody");
    keeper.query_drop("UNLOCK TABLES").await.unwrap();
    locked::lists_work_again(&stores).await;
}
