//! The janitor meets events that cannot be removed, that are sent again meanwhile, or that are very large. What it does when its
//! own calls fail is in [`removal`](super::removal).

use async_trait::async_trait;
use hooksaga_pipeline::{Archive, Janitor, Metrics, Progress, Signals};
use hooksaga_saga::{EventId, Retention, Timestamp};
use hooksaga_sqlite::{SqliteDatabase, SqliteOptions, test_support::RawConnection};
use hooksaga_store::{
    ArchivedDelivery, ArchivedEvent, DeliveryPlace, JanitorStore, OldEvents, Removed, RemovedPart,
    RemovedRecords, Stage, StoreError, StoreResult, Stores,
};
use hooksaga_testkit::scratch::ScratchDir;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(super) const RETENTION: Retention =
    Retention { finished: Duration::from_secs(3600), dead_letters: Some(Duration::from_secs(3600)) };

/// Two hours ago, in SQL.
const OLD: &str = "(CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 7200000000)";

/// A database with old history.
struct Past {
    stores: Stores,
    raw: RawConnection,
    folder: ScratchDir,
    /// Closed last but for its folder.
    _database: SqliteDatabase,
}

impl Past {
    async fn new() -> Self {
        let folder = ScratchDir::new("history");
        let path = folder.path().join("hooksaga.db");
        let database = hooksaga_sqlite::open(SqliteOptions { path: path.clone() }).await.unwrap();
        let raw = RawConnection::open(&path, None).unwrap();
        Self { stores: database.stores(), raw, folder, _database: database }
    }

    fn run(&self, sql: &str) {
        self.raw.execute(&sql.replace("OLD", OLD)).unwrap();
    }

    /// An event with this many deliveries, which wait.
    fn event(&self, id: i64, deliveries: u32) {
        self.run(&format!(
            "INSERT INTO events (id, tenant, event_type, created_at, correlation_id, payload) \
             VALUES ({id}, 'default', 'a', OLD, 'c', '{{ \"n\": {id} }}')"
        ));
        self.run(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {deliveries}) \
             INSERT INTO webhook_delivery_sagas (event_id, subscription_id, status, attempt_count, max_retry_limit, \
             next_attempt_at, created_at, updated_at) \
             SELECT {id}, i, 'Pending', 0, 5, OLD, OLD, OLD FROM n WHERE {deliveries} > 0"
        ));
    }

    /// Its deliveries have ended long ago.
    fn finish(&self, id: i64) {
        finish(&self.raw, &format!("event_id = {id}"), OLD);
    }

    fn archive(&self) -> Archive {
        Archive::open(&self.folder.path().join("archive")).unwrap()
    }

    fn janitor(&self, stores: &Stores) -> Janitor {
        let janitor = stores.janitor.clone();
        Janitor::new(janitor, Some(RETENTION), Signals::new(Stage::ALL), Metrics::new())
            .archive_to(Some(self.archive()))
    }

    fn count(&self, table: &str) -> i64 {
        let rows = self.raw.query(&format!("SELECT count(*) FROM {table}")).unwrap();
        rows[0][0].as_deref().unwrap().parse().unwrap()
    }
}

/// These deliveries, which wait, have ended at this time.
fn finish(raw: &RawConnection, which: &str, at: &str) {
    let sagas = format!("(SELECT id FROM webhook_delivery_sagas WHERE {which})");
    for sql in [
        format!(
            "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, created_at, \
             updated_at) SELECT id, subscription_id, next_attempt_at, 'Pending', {at}, {at}, {at} \
             FROM webhook_delivery_sagas WHERE {which}"
        ),
        format!(
            "UPDATE webhook_delivery_jobs SET status = 'Leased', lease_token = 1 WHERE saga_id IN {sagas}"
        ),
        format!(
            "UPDATE webhook_delivery_jobs SET status = 'Completed', lease_token = NULL, response_status = 200, \
             updated_at = {at} WHERE saga_id IN {sagas}"
        ),
        format!("UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE {which}"),
        format!(
            "UPDATE webhook_delivery_sagas SET status = 'Completed', attempt_count = 1, updated_at = {at} WHERE {which}"
        ),
    ] {
        raw.execute(&sql).unwrap();
    }
}

/// What happens at a removal.
enum Trouble {
    /// This event is never removed.
    Refused(EventId),
    /// Before it, this event is sent again, and that ends at once; so long ago that it is old enough to go by now.
    SentAgain(EventId, PathBuf),
}

/// A store with trouble.
struct Troubled {
    inner: Arc<dyn JanitorStore>,
    trouble: Trouble,
}

#[async_trait]
impl JanitorStore for Troubled {
    async fn old_events(
        &self,
        retention: &Retention,
        after: Option<(Timestamp, EventId)>,
        limit: u32,
    ) -> StoreResult<OldEvents> {
        self.inner.old_events(retention, after, limit).await
    }

    async fn archived_events(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedEvent>> {
        self.inner.archived_events(events).await
    }

    async fn archived_deliveries(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>> {
        self.inner.archived_deliveries(events).await
    }

    async fn archived_page(
        &self,
        event: EventId,
        after: Option<DeliveryPlace>,
        limit: u32,
    ) -> StoreResult<Vec<ArchivedDelivery>> {
        self.inner.archived_page(event, after, limit).await
    }

    async fn remove(
        &self,
        events: &[EventId],
        retention: &Retention,
        as_of: Timestamp,
    ) -> StoreResult<Removed> {
        match &self.trouble {
            Trouble::Refused(id) if events.contains(id) => {
                return Err(StoreError::Refused("injected".to_owned()));
            }
            Trouble::Refused(_) => {}
            Trouble::SentAgain(id, path) => {
                // The clock of the guards counts in milliseconds.
                tokio::time::sleep(Duration::from_millis(20)).await;
                send_again(path, *id);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        self.inner.remove(events, retention, as_of).await
    }

    async fn remove_part(
        &self,
        event: EventId,
        retention: &Retention,
        as_of: Timestamp,
        after: Option<DeliveryPlace>,
        most_sagas: u32,
    ) -> StoreResult<RemovedPart> {
        match &self.trouble {
            Trouble::Refused(id) if event == *id => Err(StoreError::Refused("injected".to_owned())),
            _ => self.inner.remove_part(event, retention, as_of, after, most_sagas).await,
        }
    }

    async fn remove_records(&self, kept_for: Option<Duration>, limit: u32) -> StoreResult<RemovedRecords> {
        self.inner.remove_records(kept_for, limit).await
    }

    async fn roll_up_counts(&self, limit: u32) -> StoreResult<bool> {
        self.inner.roll_up_counts(limit).await
    }
}

/// One more delivery of an event, which has been final for exactly as long as it is kept.
fn send_again(path: &Path, id: EventId) {
    const JUST_OLD: &str = "(CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 3600000000)";
    let raw = RawConnection::open(path, None).unwrap();
    raw.execute(&format!(
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
         max_retry_limit, next_attempt_at, created_at, updated_at) \
         VALUES ({id}, 1, 1, 'Pending', 0, 5, {JUST_OLD}, {JUST_OLD}, {JUST_OLD})"
    ))
    .unwrap();
    finish(&raw, &format!("event_id = {id} AND generation = 1"), JUST_OLD);
}

/// Works until there is nothing to do; errors are met as in a server.
pub(super) async fn work(janitor: &Janitor) {
    loop {
        if let Ok(Progress::Idle { .. }) = janitor.run_once().await {
            return;
        }
    }
}

/// How often each event is in the archive, by the number that it carries, and with how many deliveries at most. Every line is
/// complete.
pub(super) fn archived(folder: &Path) -> BTreeMap<i64, (usize, usize)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder.join("archive")).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let payload = line["event"]["payload"].as_str().unwrap();
            let id = serde_json::from_str::<serde_json::Value>(payload).unwrap()["n"].as_i64().unwrap();
            assert_eq!(payload, format!("{{ \"n\": {id} }}"), "byte for byte");
            let deliveries = line["deliveries"].as_array().unwrap();
            assert!(deliveries.iter().all(|delivery| delivery["attempts"][0]["response_status"] == 200));
            let (times, most) = found.entry(id).or_insert((0, 0));
            *times += 1;
            *most = deliveries.len().max(*most);
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn what_was_left_is_looked_at_again_and_not_all_the_time() {
    let past = Past::new().await;
    past.event(1, 1);
    past.event(2, 1);
    past.finish(2);
    let janitor = past.janitor(&past.stores);
    work(&janitor).await;
    assert_eq!(past.count("events"), 1, "what is open holds up nothing behind it");
    past.finish(1);
    work(&janitor).await;
    assert_eq!(past.count("events"), 1, "it is not looked at all the time");
    tokio::time::advance(Duration::from_secs(31)).await;
    work(&janitor).await;
    assert_eq!(past.count("events"), 0);
}

#[tokio::test]
async fn an_event_with_very_many_deliveries_is_archived_and_removed_in_parts() {
    let past = Past::new().await;
    past.event(1, 1100);
    past.finish(1);
    work(&past.janitor(&past.stores)).await;
    assert_eq!([past.count("events"), past.count("webhook_delivery_jobs")], [0; 2]);
    assert_eq!(archived(past.folder.path()), BTreeMap::from([(1, (1, 1100))]));
}

#[tokio::test]
async fn what_is_sent_again_after_it_was_archived_stays_until_it_is_archived_again() {
    let past = Past::new().await;
    past.event(1, 1);
    past.finish(1);
    let path = past.folder.path().join("hooksaga.db");
    let (inner, trouble) = (past.stores.janitor.clone(), Trouble::SentAgain(EventId(1), path));
    let stores = Stores { janitor: Arc::new(Troubled { inner, trouble }), ..past.stores.clone() };
    work(&past.janitor(&stores)).await;
    assert_eq!([past.count("events"), past.count("webhook_delivery_sagas")], [1, 2]);
    assert_eq!(archived(past.folder.path()), BTreeMap::from([(1, (1, 1))]));

    work(&past.janitor(&past.stores)).await;
    assert_eq!([past.count("events"), past.count("webhook_delivery_sagas")], [0; 2]);
    assert_eq!(archived(past.folder.path()), BTreeMap::from([(1, (2, 2))]));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_removed_keeps_no_other() {
    let past = Past::new().await;
    for id in 1..=9 {
        past.event(id, 1);
        past.finish(id);
    }
    let (inner, trouble) = (past.stores.janitor.clone(), Trouble::Refused(EventId(3)));
    let stores = Stores { janitor: Arc::new(Troubled { inner, trouble }), ..past.stores.clone() };
    let janitor = past.janitor(&stores);
    work(&janitor).await;
    assert_eq!([past.count("events"), past.count("events WHERE id = 3")], [1, 1]);
    let there = archived(past.folder.path());
    assert_eq!((there.len(), there.values().all(|found| *found == (1, 1))), (9, true), "{there:?}");
    // It is tried again, and not all the time.
    work(&janitor).await;
    assert_eq!(archived(past.folder.path())[&3].0, 1);
    tokio::time::advance(Duration::from_secs(31)).await;
    work(&janitor).await;
    assert_eq!(archived(past.folder.path())[&3].0, 2);
}

#[tokio::test]
async fn a_large_event_holds_up_no_other_even_if_it_cannot_be_removed() {
    let past = Past::new().await;
    for (id, deliveries) in [(1, 1100), (2, 1)] {
        past.event(id, deliveries);
        past.finish(id);
    }
    let (inner, trouble) = (past.stores.janitor.clone(), Trouble::Refused(EventId(1)));
    let stores = Stores { janitor: Arc::new(Troubled { inner, trouble }), ..past.stores.clone() };
    let janitor = past.janitor(&stores);
    work(&janitor).await;
    work(&janitor).await;
    assert_eq!([past.count("events"), past.count("webhook_delivery_sagas")], [1, 1100]);
    assert_eq!(archived(past.folder.path()), BTreeMap::from([(1, (1, 1100)), (2, (1, 1))]));

    // Found and archived; then a part of it goes, together with what is found meanwhile.
    let janitor = past.janitor(&past.stores);
    janitor.run_once().await.unwrap();
    past.event(3, 1);
    past.finish(3);
    janitor.run_once().await.unwrap();
    assert_eq!([past.count("events"), past.count("webhook_delivery_sagas")], [1, 600]);
    work(&janitor).await;
    assert_eq!([past.count("events"), past.count("webhook_delivery_jobs")], [0; 2]);
}

#[tokio::test]
async fn an_archive_that_cannot_be_written_keeps_everything() {
    let past = Past::new().await;
    past.event(1, 0);
    let janitor = past.janitor(&past.stores);
    fs::remove_dir_all(past.folder.path().join("archive")).unwrap();
    let failed = janitor.run_once().await.unwrap_err().to_string();
    assert!(failed.contains("retention.archive"), "{failed}");
    assert_eq!(past.count("events"), 1);
}
