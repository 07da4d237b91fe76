//! Lists that take too long are ended, and delay neither readiness nor keys nor ingestion.

use crate::adapter::{fresh, owner};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_store::{DeliveryFilter, PageRequest, QUERY_LIMIT, StoreError, TenantScope};
use mysql_async::prelude::Queryable as _;
use std::time::{Duration, Instant};

const FIRST: PageRequest = PageRequest { limit: 50, before: None };

#[tokio::test]
async fn slow_lists_end_in_time_and_delay_nobody() {
    let database = fresh().await;
    let stores = database.stores();
    let mut keeper = owner(&database.url).await;
    // Whoever reads sagas waits, as long as nobody ends it.
    keeper.query_drop("LOCK TABLES webhook_delivery_sagas WRITE").await.unwrap();
    let begun = Instant::now();
    let mut lists = tokio::task::JoinSet::new();
    // Twice as many as there are connections for them.
    for _ in 0..16 {
        let reader = stores.reader.clone();
        lists.spawn(async move {
            reader.deliveries(&TenantScope::All, &DeliveryFilter::default(), FIRST).await.map(drop)
        });
    }
    while begun.elapsed() < QUERY_LIMIT - Duration::from_secs(1) {
        let asked = Instant::now();
        stores.reader.ready().await.unwrap();
        assert!(stores.key_reader.find(&[7; 32]).await.unwrap().is_none());
        assert!(stores.ingest.append(&[]).await.unwrap().is_empty());
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for list in lists.join_all().await {
        assert!(matches!(list, Err(StoreError::TooSlow(_))), "{list:?}");
    }
    // A wait in the line, and the query.
    assert!(begun.elapsed() < QUERY_LIMIT * 2 + Duration::from_secs(3), "{:?}", begun.elapsed());
    keeper.query_drop("UNLOCK TABLES").await.unwrap();
    stores.reader.deliveries(&TenantScope::All, &DeliveryFilter::default(), FIRST).await.unwrap();
}
