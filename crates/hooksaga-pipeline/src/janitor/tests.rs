//! Tests of how much the janitor rests.

use super::*;
use async_trait::async_trait;
use hooksaga_saga::Timestamp;
use hooksaga_store::{ArchivedEvent, OldEvents, RemovedPart, Stage};
use std::sync::atomic::{AtomicU64, Ordering};

/// A database that always has one more event to remove, which takes a tenth of a second.
struct Slow {
    began: Instant,
    /// How much more overdue history becomes, in milliseconds a second.
    falls_behind: u32,
    removed: AtomicU64,
}

#[async_trait]
impl JanitorStore for Slow {
    async fn old_events(&self, _: &Retention, _: ScanStep<EventPlace>) -> StoreResult<OldEvents> {
        let elapsed = self.began.elapsed();
        let as_of = Timestamp::from_micros(1_700_000_000_000_000).after(elapsed);
        let overdue = Duration::from_secs(1000) + elapsed * self.falls_behind / 1000;
        let id = EventId(1);
        Ok(OldEvents {
            may_go: vec![OldEvent { id, rows: 1, payload_bytes: 1 }],
            kept: 0,
            as_of,
            last: Some((as_of.before(RETENTION.finished + overdue), id)),
            is_end: false,
        })
    }

    async fn archived_events(&self, _: &[EventId]) -> StoreResult<Vec<ArchivedEvent>> {
        Ok(Vec::new())
    }

    async fn archived_deliveries(&self, _: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>> {
        Ok(Vec::new())
    }

    async fn archived_page(&self, _: EventPart) -> StoreResult<Vec<ArchivedDelivery>> {
        Ok(Vec::new())
    }

    async fn remove(&self, _: &[EventId], _: Expiry) -> StoreResult<Removed> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.removed.fetch_add(1, Ordering::Relaxed);
        Ok(Removed::default())
    }

    async fn remove_part(&self, _: EventPart, _: Expiry) -> StoreResult<RemovedPart> {
        Ok(RemovedPart::default())
    }

    async fn remove_records(&self, _: Option<Duration>, _: u32) -> StoreResult<RemovedRecords> {
        Ok(RemovedRecords::default())
    }

    async fn roll_up_counts(&self, _: u32) -> StoreResult<bool> {
        Ok(false)
    }
}

const RETENTION: Retention = Retention { finished: Duration::from_secs(60), dead_letters: None };

/// What it removes in its last 100 seconds of 200, and its metrics.
async fn removed(falls_behind: u32) -> (u64, String) {
    let store = Arc::new(Slow { began: Instant::now(), falls_behind, removed: AtomicU64::new(0) });
    let (metrics, shutdown) = (Metrics::new(), Shutdown::new());
    let janitor =
        Janitor::new(store.clone(), Some(RETENTION), Signals::new(Stage::ALL), Arc::clone(&metrics));
    let half = || async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        store.removed.load(Ordering::Relaxed)
    };
    tokio::select! {
        () = janitor.run(&shutdown) => unreachable!("nobody stopped it"),
        (first, all) = async { (half().await, half().await) } => (all - first, metrics.encode(&Default::default())),
    }
}

#[tokio::test(start_paused = true)]
async fn it_rests_as_long_as_it_works_and_less_while_it_falls_behind() {
    let (keeps_up, _) = removed(0).await;
    assert!((480..=505).contains(&keeps_up), "{keeps_up}");
    let (falls_behind, metrics) = removed(100).await;
    assert!((760..=805).contains(&falls_behind), "{falls_behind}");
    let overdue = metrics.lines().find_map(|line| line.strip_prefix("hooksaga_history_overdue_seconds "));
    let overdue: f64 = overdue.unwrap().parse().unwrap();
    assert!((1015.0..1025.0).contains(&overdue), "{overdue}");
}
