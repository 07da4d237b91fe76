//! The janitor meets events that cannot be removed, that are sent again meanwhile, or that are very large. What it does
//! when its own calls fail is in [`removal`](super::removal).

use super::archived::archived;
use async_trait::async_trait;
use hooksaga_pipeline::{Archive, Janitor, Metrics, Progress, Signals};
use hooksaga_saga::{EventId, Expiry, Retention, Timestamp};
use hooksaga_sqlite::{SqliteDatabase, SqliteOptions, test_support::RawConnection};
use hooksaga_store::{
    ArchivedDelivery, ArchivedEvent, EventPart, EventPlace, JanitorStore, OldEvents, Removed, RemovedPart,
    RemovedRecords, ScanStep, Stage, StoreError, StoreResult, Stores,
};
use hooksaga_testkit::scratch::ScratchDir;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
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

    /// The same stores, with trouble.
    fn with(&self, trouble: Trouble) -> Stores {
        let inner = self.stores.janitor.clone();
        Stores { janitor: Arc::new(Troubled { inner, trouble }), ..self.stores.clone() }
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
    /// Some events are not removed.
    Refused(Arc<Refused>),
    /// Before it, this event is sent again, and that ends at once. It was so long ago that the event is old enough to go by now.
    SentAgain(EventId, PathBuf),
    /// Another janitor removes what this one is about to read for its archive.
    TakenByAnother,
}

impl Troubled {
    async fn another_takes(&self, events: &[EventId]) {
        if matches!(self.trouble, Trouble::TakenByAnother) {
            self.inner.remove(events, RETENTION.as_of(Timestamp::from_micros(i64::MAX))).await.unwrap();
        }
    }
}

/// Events that are not removed for a while.
struct Refused {
    events: BTreeSet<EventId>,
    calls: AtomicUsize,
    is_over: AtomicBool,
}

impl Refused {
    fn new(events: impl IntoIterator<Item = i64>) -> Self {
        let events = events.into_iter().map(EventId).collect();
        Self { events, calls: AtomicUsize::new(0), is_over: AtomicBool::new(false) }
    }

    fn meets(&self, events: &[EventId]) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        !self.is_over.load(Ordering::Relaxed) && events.iter().any(|event| self.events.contains(event))
    }
}

/// A store with trouble.
struct Troubled {
    inner: Arc<dyn JanitorStore>,
    trouble: Trouble,
}

#[async_trait]
impl JanitorStore for Troubled {
    async fn old_events(&self, retention: &Retention, step: ScanStep<EventPlace>) -> StoreResult<OldEvents> {
        self.inner.old_events(retention, step).await
    }

    async fn archived_events(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedEvent>> {
        self.inner.archived_events(events).await
    }

    async fn archived_deliveries(&self, events: &[EventId]) -> StoreResult<Vec<ArchivedDelivery>> {
        self.another_takes(events).await;
        self.inner.archived_deliveries(events).await
    }

    async fn archived_page(&self, part: EventPart) -> StoreResult<Vec<ArchivedDelivery>> {
        self.another_takes(&[part.event]).await;
        self.inner.archived_page(part).await
    }

    async fn remove(&self, events: &[EventId], expiry: Expiry) -> StoreResult<Removed> {
        match &self.trouble {
            Trouble::Refused(refused) if refused.meets(events) => {
                return Err(StoreError::Refused("injected".to_owned()));
            }
            Trouble::Refused(_) | Trouble::TakenByAnother => {}
            Trouble::SentAgain(id, path) => {
                // The clock of the guards counts in milliseconds.
                tokio::time::sleep(Duration::from_millis(20)).await;
                send_again(path, *id);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        self.inner.remove(events, expiry).await
    }

    async fn remove_part(&self, part: EventPart, expiry: Expiry) -> StoreResult<RemovedPart> {
        match &self.trouble {
            Trouble::Refused(refused) if refused.meets(&[part.event]) => {
                Err(StoreError::Refused("injected".to_owned()))
            }
            _ => self.inner.remove_part(part, expiry).await,
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
    work(&past.janitor(&past.with(Trouble::SentAgain(EventId(1), path)))).await;
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
    let refused = Arc::new(Refused::new([3]));
    let janitor = past.janitor(&past.with(Trouble::Refused(refused.clone())));
    work(&janitor).await;
    assert_eq!([past.count("events"), past.count("events WHERE id = 3")], [1, 1]);
    let there = archived(past.folder.path());
    assert_eq!((there.len(), there.values().all(|found| *found == (1, 1))), (9, true), "{there:?}");
    // It is tried again, and not all the time; it is not archived again for that.
    let calls = |refused: &Refused| refused.calls.load(Ordering::Relaxed);
    let tried = calls(&refused);
    work(&janitor).await;
    assert_eq!(calls(&refused), tried);
    for more in 1..=3 {
        tokio::time::advance(Duration::from_secs(31)).await;
        work(&janitor).await;
        assert_eq!((calls(&refused), archived(past.folder.path())[&3].0), (tried + more, 1));
    }
    // Whoever deletes the file gets another line.
    fs::remove_dir_all(past.folder.path().join("archive")).unwrap();
    fs::create_dir(past.folder.path().join("archive")).unwrap();
    refused.is_over.store(true, Ordering::Relaxed);
    tokio::time::advance(Duration::from_secs(31)).await;
    work(&janitor).await;
    assert_eq!(past.count("events"), 0);
    assert_eq!(archived(past.folder.path()), BTreeMap::from([(3, (1, 1))]));
}

#[tokio::test(start_paused = true)]
async fn what_changes_after_its_removal_failed_is_archived_again() {
    let past = Past::new().await;
    past.event(1, 1);
    past.finish(1);
    let refused = Arc::new(Refused::new([1]));
    let janitor = past.janitor(&past.with(Trouble::Refused(refused.clone())));
    work(&janitor).await;
    assert_eq!(archived(past.folder.path()), BTreeMap::from([(1, (1, 1))]));
    // The clock of the guards counts in milliseconds.
    std::thread::sleep(Duration::from_millis(20));
    send_again(&past.folder.path().join("hooksaga.db"), EventId(1));
    std::thread::sleep(Duration::from_millis(20));
    refused.is_over.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        tokio::time::advance(Duration::from_secs(31)).await;
        work(&janitor).await;
    }
    assert_eq!([past.count("events"), past.count("webhook_delivery_sagas")], [0; 2]);
    assert_eq!(archived(past.folder.path()), BTreeMap::from([(1, (2, 2))]));
}

#[tokio::test(start_paused = true)]
async fn what_another_janitor_takes_meanwhile_has_no_line_without_its_deliveries() {
    let past = Past::new().await;
    let janitor = past.janitor(&past.with(Trouble::TakenByAnother));
    // Several at a time, then one alone.
    for ids in [1..=3, 4..=4] {
        for id in ids {
            past.event(id, 2);
            past.finish(id);
        }
        work(&janitor).await;
        assert_eq!(past.count("events"), 0);
    }
    let there = archived(past.folder.path());
    assert!(there.is_empty(), "these lines say that there was no delivery: {there:?}");
}

/// More than a process remembers, of which nothing can be removed.
#[tokio::test(start_paused = true)]
async fn an_archive_of_what_cannot_be_removed_does_not_grow() {
    const EVENTS: i64 = 20_500;
    let past = Past::new().await;
    past.run(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {EVENTS}) \
         INSERT INTO events (id, tenant, event_type, created_at, correlation_id, payload) \
         SELECT i, 'default', 'a', OLD, 'c', '{{ \"n\": ' || i || ' }}' FROM n"
    ));
    let refused = Arc::new(Refused::new(1..=EVENTS));
    let janitor = past.janitor(&past.with(Trouble::Refused(refused.clone())));
    let mut lines = Vec::new();
    for _ in 0..3 {
        work(&janitor).await;
        tokio::time::advance(Duration::from_secs(3600)).await;
        lines.push(archived(past.folder.path()).values().map(|(times, _)| times).sum::<usize>());
    }
    assert!((20_000..20_500).contains(&lines[0]), "{lines:?}");
    assert_eq!(lines, [lines[0]; 3]);

    refused.is_over.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        work(&janitor).await;
        tokio::time::advance(Duration::from_secs(3600)).await;
    }
    assert_eq!(past.count("events"), 0);
    let there = archived(past.folder.path());
    assert_eq!((there.len(), there.values().all(|found| found.0 == 1)), (20_500, true));
}

#[tokio::test]
async fn a_large_event_holds_up_no_other_even_if_it_cannot_be_removed() {
    let past = Past::new().await;
    for (id, deliveries) in [(1, 1100), (2, 1)] {
        past.event(id, deliveries);
        past.finish(id);
    }
    let janitor = past.janitor(&past.with(Trouble::Refused(Arc::new(Refused::new([1])))));
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

/// As in years: what is removed makes room for what comes.
#[tokio::test(start_paused = true)]
async fn the_embedded_file_does_not_grow_from_one_removal_to_the_next() {
    const CYCLES: usize = 8;
    let past = Past::new().await;
    let janitor =
        Janitor::new(past.stores.janitor.clone(), Some(RETENTION), Signals::new(Stage::ALL), Metrics::new());
    let pages = |which: &str| -> i64 {
        past.raw.query(&format!("PRAGMA {which}")).unwrap()[0][0].as_deref().unwrap().parse().unwrap()
    };
    let (mut full, mut free) = (Vec::new(), Vec::new());
    for _ in 0..CYCLES {
        past.run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
             INSERT INTO events (tenant, event_type, external_id, created_at, correlation_id, payload) \
             SELECT 'default', 'a', hex(randomblob(8)), OLD, hex(randomblob(16)), \
             '\"' || hex(randomblob(100 + i)) || '\"' FROM n",
        );
        past.run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4) \
             INSERT INTO webhook_delivery_sagas (event_id, subscription_id, status, attempt_count, max_retry_limit, \
             next_attempt_at, created_at, updated_at) SELECT e.id, i, 'Pending', 0, 5, OLD, OLD, OLD FROM events e, n",
        );
        finish(&past.raw, "true", OLD);
        full.push(pages("page_count"));
        for _ in 0..2 {
            work(&janitor).await;
            tokio::time::advance(Duration::from_secs(3600)).await;
        }
        assert_eq!(past.count("events"), 0);
        free.push(pages("freelist_count"));
    }
    let first = full[0];
    assert!(
        full.iter().all(|pages| *pages * 100 <= first * 102),
        "pages {full:?}, of which free then {free:?}"
    );
    assert!(free.iter().all(|pages| *pages * 10 >= first * 7), "pages {full:?}, of which free then {free:?}");
}
