//! Lists that take too long are ended, and delay neither readiness nor keys nor ingestion.

use crate::adapter::{fresh, superuser};
use hooksaga_conformance::{TestDatabase as _, locked};

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
