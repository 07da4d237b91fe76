//! Lists that take too long are ended, and delay neither readiness nor keys nor ingestion.

use crate::adapter::{fresh, owner};
use hooksaga_conformance::{TestDatabase as _, locked};
use mysql_async::prelude::Queryable as _;

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
