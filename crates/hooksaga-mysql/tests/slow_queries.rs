//! Lists that take too long are ended, and delay neither readiness nor keys nor ingestion nor metrics.

use crate::adapter::{fresh, owner, value};
use hooksaga_conformance::{
    TestDatabase as _,
    locked_tables::{self, Endless},
};
use hooksaga_store::{PageRequest, TenantScope};
use mysql_async::prelude::Queryable as _;

#[tokio::test]
async fn slow_lists_end_in_time_and_delay_nobody() {
    let database = fresh().await;
    let mut keeper = owner(&database.url).await;
    keeper.query_drop("LOCK TABLES redrives WRITE").await.unwrap();
    let unlock = keeper.query_drop("UNLOCK TABLES");
    locked_tables::slow_lists_end_in_time_and_delay_nobody(&database.stores(), unlock).await;
}

/// A query that computes for ever. (A wait for a lock would prove nothing: the server itself ends that within a second after its
/// client has disconnected.)
#[tokio::test]
async fn a_list_ends_when_its_caller_has_gone() {
    let database = fresh().await;
    let stores = database.stores();
    let mut keeper = owner(&database.url).await;
    for statement in [
        "INSERT INTO redrives (kind, until, started_by) VALUES ('dead_letters', UTC_TIMESTAMP(6), 'x')",
        "RENAME TABLE redrives TO hidden",
        "CREATE VIEW redrives AS SELECT * FROM hidden WHERE BENCHMARK(1000000000000, SHA2(id, 512)) > 0",
    ] {
        keeper.query_drop(statement).await.unwrap();
    }
    let running = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%redrives%' \
               AND id <> CONNECTION_ID()";
    let running = value(&database.url, running);
    let show = async {
        keeper.query_drop("DROP VIEW redrives").await?;
        keeper.query_drop("RENAME TABLE hidden TO redrives").await
    };
    locked_tables::lists_end_when_their_callers_have_gone(&stores, Endless::Redrives, running, show).await;
    let first = PageRequest { limit: 50, before: None };
    assert_eq!(stores.reader.redrives(&TenantScope::All, first).await.unwrap().items.len(), 1);
}
