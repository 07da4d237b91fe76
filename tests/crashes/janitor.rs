//! A process that is killed while it archives and removes old history.

use super::history::{FINISHED, STAYING, Tables};
use crate::support::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

on_every_back_end! { a_janitor_killed_between_archive_and_removal_loses_nothing }

/// After which growth of the archive the process is killed, and how many milliseconds later.
const KILLS: [(u32, u64); 12] =
    [(1, 0), (2, 1), (1, 2), (1, 4), (2, 0), (1, 8), (3, 1), (1, 16), (2, 3), (1, 30), (1, 1), (2, 6)];
const OF_EACH: usize = 1000;

async fn a_janitor_killed_between_archive_and_removal_loses_nothing(installation: Installation) {
    // It is never verified: its deliveries wait.
    let server = installation.serve().await;
    let subscription = json!({"event_type": "open", "callback_url": "http://127.0.0.1:1/"});
    let subscription = server.api().post("/v1/subscriptions", &subscription).await.expect(201);
    assert_eq!(server.terminate().await, Some(0));
    let tables = Tables::of(&installation);
    tables.fill(OF_EACH, subscription["id"].as_i64().unwrap()).await;
    let of = |kinds: &[&str]| format!("SELECT id FROM events WHERE event_type IN ('{}')", kinds.join("','"));
    let old = tables.numbers(&of(&FINISHED)).await;
    let staying = tables.numbers(&of(&STAYING)).await;
    assert_eq!((old.len(), staying.len()), (FINISHED.len() * OF_EACH, STAYING.len() * 10));

    let installation =
        installation.with("HOOKSAGA_RETENTION_FINISHED", "1h").with("HOOKSAGA_RETENTION_ARCHIVE", "archive");
    let folder = installation.folder.path().join("archive");
    let (mut in_between, mut left) = (0, old.clone());
    for (growths, delay) in KILLS {
        let server = serve_janitor(&installation).await;
        tokio::task::block_in_place(|| wait_for_growth(&folder, growths));
        tokio::time::sleep(Duration::from_millis(delay)).await;
        server.kill().await;

        left = tables.numbers(&of(&FINISHED)).await;
        let archived = read(&installation, &folder).await.into_keys().collect::<BTreeSet<_>>();
        let lost: Vec<_> = old.iter().filter(|id| !left.contains(id) && !archived.contains(id)).collect();
        assert!(lost.is_empty(), "neither in the tables nor in the archive: {lost:?}");
        in_between += u32::from(!left.is_disjoint(&archived));
    }
    assert!(in_between > 0, "some process was killed between archive and removal");
    assert!(!left.is_empty(), "each process was killed before it was done");

    let server = serve_janitor(&installation).await;
    eventually("all that is old is gone", || async {
        tables.numbers(&of(&FINISHED)).await.is_empty().then_some(())
    })
    .await;
    assert_eq!(server.terminate().await, Some(0));
    let archived = read(&installation, &folder).await;
    assert!(archived.keys().eq(old.iter()), "exactly what is gone is archived");
    assert!(archived.values().any(|lines| lines.len() > 1), "what was not removed in time is archived again");
    archived.values().flatten().for_each(check_line);
    assert_eq!(tables.numbers("SELECT id FROM events").await, staying, "nothing else is gone");
    let rest = "SELECT count(*) FROM webhook_delivery_sagas";
    assert_eq!(tables.numbers(rest).await, [20].into(), "and nothing is left of what is");
    assert_eq!(tables.numbers("SELECT count(*) FROM webhook_delivery_jobs").await, [10].into());
    assert_eq!(tables.numbers("SELECT count(*) FROM dead_letters").await, [0].into());
}

/// An embedded server has every component.
async fn serve_janitor(installation: &Installation) -> Server {
    match installation.database_url() {
        Some(_) => installation.serve_only("janitor").await,
        None => installation.serve().await,
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

/// Waits until the archive has grown so often.
fn wait_for_growth(folder: &Path, growths: u32) {
    let size = || files(folder).iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum::<u64>();
    let (began, mut last, mut seen) = (Instant::now(), size(), 0);
    while seen < growths {
        assert!(began.elapsed() < PATIENCE, "the archive does not grow");
        thread::sleep(Duration::from_micros(200));
        let now = size();
        seen += u32::from(now > last);
        last = now;
    }
}

/// Each event of the archive with its lines, as `hooksaga history` reads them; `list` reads every file, too.
async fn read(installation: &Installation, folder: &Path) -> BTreeMap<i64, Vec<Value>> {
    let files = files(folder);
    let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let list = run(installation, &[&["history", "list"], &files[..]].concat()).await;
    assert_eq!(list.status.code(), Some(0), "{list:?}");
    let search = run(installation, &[&["history", "search", "--json"], &files[..]].concat()).await;
    assert_eq!(search.status.code(), Some(0), "{search:?}");
    let lines = String::from_utf8(search.stdout).unwrap();
    let listed = list.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(listed, lines.lines().count() + usize::from(listed > 0), "a heading, and the same events");
    let mut events: BTreeMap<i64, Vec<Value>> = BTreeMap::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        events.entry(line["event"]["id"].as_i64().unwrap()).or_default().push(line);
    }
    events
}

/// It has all that belongs to an event of its type.
fn check_line(line: &Value) {
    let kind = line["event"]["event_type"].as_str().unwrap();
    let (deliveries, letters) = match kind {
        "none" => (0, 0),
        "one" => (1, 0),
        "dead" => (2, 1),
        _ => panic!("this event has to stay: {line}"),
    };
    let payload: Value = serde_json::from_str(line["event"]["payload"].as_str().unwrap()).unwrap();
    assert_eq!(line["event"]["external_id"], format!("{kind}-{}", payload["n"]));
    assert_eq!(line["deliveries"].as_array().unwrap().len(), deliveries, "{line}");
    assert_eq!(line["dead_letters"].as_array().unwrap().len(), letters, "{line}");
    for delivery in line["deliveries"].as_array().unwrap() {
        assert_eq!(delivery["attempts"].as_array().unwrap().len(), 1, "{line}");
    }
}
