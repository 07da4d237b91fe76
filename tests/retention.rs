//! Retention: a server that has run for long removes what is old, and nothing else.

use crate::support::*;
use std::{fs, os::unix::fs::PermissionsExt as _};

/// An event of two hours ago, in SQL.
const OLD_EVENT: &str = "INSERT INTO events (event_type, created_at, external_id, correlation_id, payload) \
    VALUES ('t', CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 7200000000, 'old', 'c', '1')";

#[tokio::test]
async fn old_history_is_archived_and_removed_at_the_next_start() {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    let young = server.api().event("t", &json!(1)).await;
    assert_eq!(server.terminate().await, Some(0));
    let path = installation.folder.path().join("hooksaga-data/hooksaga.db");
    let database = rusqlite::Connection::open(path).unwrap();
    database.execute_batch(OLD_EVENT).unwrap();
    let old = database.last_insert_rowid();
    drop(database);

    let installation = installation
        .with("HOOKSAGA_RETENTION_FINISHED", "1h")
        .with("HOOKSAGA_RETENTION_ARCHIVE", "old/history");
    let server = installation.serve().await;
    let api = server.api();
    eventually("what is old is gone", || async {
        let status = api.get(&format!("/v1/events/{old}")).await.status;
        (status == 404).then_some(())
    })
    .await;
    assert_eq!(api.get(&format!("/v1/events/{young}")).await.status, 200);
    let metrics = api.get("/metrics").await;
    let metrics = metrics.text();
    assert!(metrics.contains("hooksaga_retention_removed_total{kind=\"events\"} 1\n"), "{metrics}");
    assert_eq!(server.said("shorter than a day").len(), 1, "{:?}", server.log());

    let folder = installation.folder.path().join("old/history");
    let files: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let name = files[0].file_name().into_string().unwrap();
    assert!(name.ends_with(".ndjson.zst"), "{name}");
    let file = files[0].metadata().unwrap();
    assert_eq!((file.permissions().mode() & 0o777, file.len() > 0), (0o640, true));

    // Its external_id went with it.
    let again = json!({"event_type": "t", "payload": 2, "external_id": "old"});
    let again = api.post("/v1/events", &again).await.expect(201);
    assert!(again["id"].as_i64().unwrap() > old);
    assert_eq!(server.terminate().await, Some(0));
}
