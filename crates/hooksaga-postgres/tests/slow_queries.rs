//! Lists that take too long are ended, and delay neither readiness nor keys nor ingestion nor metrics.

use crate::adapter::{fresh, superuser, value};
use hooksaga_conformance::{
    TestDatabase as _,
    locked_tables::{self, Endless},
};

const LOCK: &str = "BEGIN; LOCK TABLE webhook_delivery_sagas IN ACCESS EXCLUSIVE MODE";

#[tokio::test]
async fn slow_lists_end_in_time_and_delay_nobody() {
    let database = fresh().await;
    let keeper = superuser(&database.url).await;
    keeper.batch_execute("BEGIN; LOCK TABLE redrives IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let unlock = keeper.batch_execute("ROLLBACK");
    locked_tables::slow_lists_end_in_time_and_delay_nobody(&database.stores(), unlock).await;
}

#[tokio::test]
async fn a_list_ends_when_its_caller_has_gone() {
    let database = fresh().await;
    let keeper = superuser(&database.url).await;
    keeper.batch_execute(LOCK).await.unwrap();
    let running = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
               AND query LIKE '%webhook_delivery_sagas%' AND pid <> pg_backend_pid()";
    let running = value(&database.url, running);
    let unlock = keeper.batch_execute("ROLLBACK");
    let stores = database.stores();
    locked_tables::lists_end_when_their_callers_have_gone(&stores, Endless::Deliveries, running, unlock)
        .await;
}
