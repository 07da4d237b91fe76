//! What works while another session keeps a table locked, on the database servers. Each back end has its own statement for the
//! lock, and calls these cases from its own tests.

use super::fixture::ALL;
use hooksaga_store::{
    DeliveryFilter, PageRequest, QUERY_LIMIT, StoreError, StoreResult, Stores, SubscriptionFilter,
};
use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

const FIRST: PageRequest = PageRequest { limit: 50, before: None };

/// Lists that take too long are ended, and delay neither readiness nor keys nor ingestion nor the metrics. Reads of redrives
/// wait until `unlock` is polled; then the lists work again.
pub async fn slow_lists_end_in_time_and_delay_nobody<E: Debug>(
    stores: &Stores,
    unlock: impl Future<Output = Result<(), E>>,
) {
    let begun = Instant::now();
    let mut lists = tokio::task::JoinSet::new();
    // Twice as many as there are connections for them.
    for _ in 0..16 {
        lists.spawn(Endless::Redrives.list(stores.clone()));
    }
    while begun.elapsed() < QUERY_LIMIT - Duration::from_secs(1) {
        let asked = Instant::now();
        stores.reader.ready().await.unwrap();
        assert!(stores.key_reader.find(&[7; 32]).await.unwrap().is_none());
        assert!(stores.ingest.append(&[]).await.unwrap().is_empty());
        stores.reader.gauges().await.unwrap();
        stores.reader.inventory().await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for list in lists.join_all().await {
        assert!(matches!(list, Err(StoreError::TooSlow(_))), "{list:?}");
    }
    // A wait for a connection, and the query.
    assert!(begun.elapsed() < QUERY_LIMIT * 2 + Duration::from_secs(3), "{:?}", begun.elapsed());
    unlock.await.unwrap();
    Endless::Redrives.list(stores.clone()).await.unwrap();
}

/// The list that does not end while a case runs.
#[derive(Clone, Copy, Debug)]
pub enum Endless {
    Deliveries,
    Redrives,
}

impl Endless {
    async fn list(self, stores: Stores) -> StoreResult<()> {
        match self {
            Self::Deliveries => {
                stores.reader.deliveries(FIRST.of(&ALL, &DeliveryFilter::default())).await.map(drop)
            }
            Self::Redrives => stores.reader.redrives(&ALL, FIRST).await.map(drop),
        }
    }
}

/// Lists whose callers disconnect at once end in the database, far before their time limit, and delay no other reads: the next
/// caller always finds a connection. `running`: how many of their queries the database runs. `release` lets the list end; then
/// it works again.
pub async fn lists_end_when_their_callers_have_gone<E: Debug>(
    stores: &Stores,
    endless: Endless,
    running: impl Future<Output = String>,
    release: impl Future<Output = Result<(), E>>,
) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        let mut leaving = tokio::task::JoinSet::new();
        for _ in 0..16 {
            leaving.spawn(endless.list(stores.clone()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(leaving.try_join_next().is_none(), "they wait");
        leaving.abort_all();
    }
    let asked = Instant::now();
    stores.reader.subscriptions(FIRST.of(&ALL, &SubscriptionFilter::default())).await.unwrap();
    assert!(asked.elapsed() < QUERY_LIMIT / 2, "{:?}", asked.elapsed());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(running.await, "0", "nothing runs for nobody");
    release.await.unwrap();
    endless.list(stores.clone()).await.unwrap();
}
