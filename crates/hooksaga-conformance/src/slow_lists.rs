//! Lists that scan many rows and find nothing, requested by many clients at once.

use super::{
    TestDatabase, bulk_fixtures,
    fixture::{ALL, TYPE, append, new_event, verified},
};
use hooksaga_store::{DeliveryFilter, PageRequest, StoreError};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

const CLIENTS: usize = 16;
const ROWS: u32 = 30_000;
const LASTS: Duration = Duration::from_secs(2);
/// Far longer than a read takes, and far shorter than it would take if it waited for such lists.
const PROMPT: Duration = Duration::from_millis(1500);

pub async fn lists_without_matches_delay_nobody(db: &dyn TestDatabase) {
    let stores = db.stores();
    let subscription = verified(&stores, TYPE, "https://good.example/").await;
    let event = append(&stores, new_event(TYPE)).await.id;
    bulk_fixtures::waiting_sagas(db, event, subscription, ROWS).await;

    let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (reader, over, asked) = (stores.reader.clone(), over.clone(), asked.clone());
        clients.spawn(async move {
            let none =
                DeliveryFilter { event_type: "no.such.type".parse().ok(), ..DeliveryFilter::default() };
            while !over.load(Ordering::Relaxed) {
                match reader.deliveries(PageRequest { limit: 500, before: None }.of(&ALL, &none)).await {
                    Ok(page) => assert!(page.items.is_empty()),
                    // On a slow machine their time limit ends them.
                    Err(StoreError::TooSlow(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    while begun.elapsed() < LASTS {
        let before = Instant::now();
        stores.reader.ready().await.unwrap();
        assert!(stores.key_reader.find(&[7; 32]).await.unwrap().is_none());
        append(&stores, new_event("another.type")).await;
        slowest = slowest.max(before.elapsed());
    }
    over.store(true, Ordering::Relaxed);
    clients.join_all().await;
    assert!(asked.load(Ordering::Relaxed) > 0, "lists were asked for meanwhile");
    assert!(slowest < PROMPT, "readiness, a key and an event took {slowest:?} beside the lists");
}
