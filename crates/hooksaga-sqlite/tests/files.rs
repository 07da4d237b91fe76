//! The database file: one server at a time, and clear words about files that cannot be used.

use crate::{event, folder::Folder};
use hooksaga_sqlite::{SqliteDatabase, SqliteOptions, test_support::RawConnection};
use hooksaga_store::{Appended, EventFilter, PageRequest, StoreError, StoreResult, TenantScope};
use std::{fs, path::Path};

async fn open(path: &Path) -> StoreResult<SqliteDatabase> {
    hooksaga_sqlite::open(SqliteOptions { path: path.to_owned() }).await
}

/// The text of a refusal, which is one line.
fn refusal(result: StoreResult<SqliteDatabase>) -> String {
    match result.err().expect("it must not open") {
        StoreError::Setup(text) => {
            assert!(!text.contains('\n'), "one line: {text}");
            text
        }
        other => panic!("not a matter of setup: {other:?}"),
    }
}

#[tokio::test]
async fn a_second_server_is_kept_away_until_the_first_is_gone() {
    let folder = Folder::new();
    let first = open(&folder.database()).await.unwrap();
    assert!(refusal(open(&folder.database()).await).contains("another hooksaga server"));

    let stores = first.stores();
    drop(first);
    assert!(refusal(open(&folder.database()).await).contains("another"), "a handle still serves it");
    drop(stores);
    open(&folder.database()).await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_to_the_database_leads_to_the_same_lock() {
    let folder = Folder::new();
    let _first = open(&folder.database()).await.unwrap();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.database(), &link).unwrap();
    assert!(refusal(open(&link).await).contains("another hooksaga server"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_that_leads_nowhere_is_refused() {
    let folder = Folder::new();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.database(), &link).unwrap();
    assert!(refusal(open(&link).await).contains("leads to no file"));
    assert_eq!(folder.files(), ["link.db"], "nothing was created");
    fs::write(folder.database(), "").unwrap();
    open(&link).await.unwrap();
}

#[tokio::test]
async fn missing_folders_are_created_and_everything_is_there_after_a_restart() {
    let folder = Folder::new();
    let path = folder.path().join("deeper/still/hooksaga.db");
    let database = open(&path).await.unwrap();
    assert_eq!(database.migration_report().applied, ["0001_tables", "0002_guards"]);
    let answers = database.stores().ingest.append(&[event("a")]).await.unwrap();
    drop(database);
    assert!(!path.with_extension("db-wal").exists(), "a closed database is one file");

    let database = open(&path).await.unwrap();
    assert!(database.migration_report().applied.is_empty());
    let page = PageRequest { limit: 10, before: None };
    let events =
        database.stores().reader.events(page.of(&TenantScope::All, &EventFilter::default())).await.unwrap();
    assert_eq!(answers, [Appended::Created(events.items[0].clone())]);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = Folder::new();
    for content in ["x", "a shopping list, longer than the sixteen bytes of a header"] {
        fs::write(folder.database(), content).unwrap();
        assert!(refusal(open(&folder.database()).await).contains("is not a SQLite database"));
        assert_eq!(fs::read_to_string(folder.database()).unwrap(), content);
        assert_eq!(folder.files(), ["hooksaga.db"], "nothing was put beside it");
    }
}

#[tokio::test]
async fn a_damaged_database_is_refused() {
    let folder = Folder::new();
    let mut content = b"SQLite format 3\0".to_vec();
    content.resize(8192, 0xAA);
    fs::write(folder.database(), &content).unwrap();
    assert!(refusal(open(&folder.database()).await).contains("damaged or not a database"));
    assert_eq!(fs::read(folder.database()).unwrap(), content);
}

#[tokio::test]
async fn another_programs_database_is_refused_and_left_alone() {
    let folder = Folder::new();
    fs::write(folder.database(), "").unwrap();
    let other = rusqlite::Connection::open(folder.database()).unwrap();
    other.execute_batch("CREATE TABLE schema_migrations (version TEXT); CREATE TABLE notes (text)").unwrap();
    drop(other);
    let before = fs::read(folder.database()).unwrap();
    assert!(refusal(open(&folder.database()).await).contains("another program's"));
    assert_eq!(fs::read(folder.database()).unwrap(), before);
}

#[tokio::test]
async fn an_empty_file_is_a_new_database() {
    let folder = Folder::new();
    fs::write(folder.database(), "").unwrap();
    open(&folder.database()).await.unwrap();
}

#[tokio::test]
async fn a_read_only_file_or_folder_is_refused() {
    let folder = Folder::new();
    drop(open(&folder.database()).await.unwrap());

    set_read_only(&folder.database(), true);
    let text = refusal(open(&folder.database()).await);
    set_read_only(&folder.database(), false);
    assert!(text.contains("file") && text.contains("read-only"), "{text}");

    set_read_only(folder.path(), true);
    let text = refusal(open(&folder.database()).await);
    set_read_only(folder.path(), false);
    assert!(text.contains("folder") && text.contains("read-only"), "{text}");

    open(&folder.database()).await.unwrap();
}

fn set_read_only(path: &Path, read_only: bool) {
    let mut permissions = fs::metadata(path).unwrap().permissions();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let writable = permissions.mode() | 0o200;
        permissions.set_mode(if read_only { writable & !0o222 } else { writable });
    }
    #[cfg(not(unix))]
    permissions.set_readonly(read_only);
    fs::set_permissions(path, permissions).unwrap();
}

#[tokio::test]
async fn a_folder_that_cannot_be_created_is_named() {
    let folder = Folder::new();
    fs::write(folder.path().join("taken"), "a file").unwrap();
    // Reaching through a file fails on the way to the database, below it on the way to its folder.
    for path in ["taken/hooksaga.db", "taken/deeper/hooksaga.db"] {
        let text = refusal(open(&folder.path().join(path)).await);
        assert!(text.contains("taken") && text.contains("database.url"), "{text}");
    }
    assert!(refusal(open(folder.path()).await).contains("is not a file"));
    assert_eq!(folder.files(), ["taken"]);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let folder = Folder::new();
    drop(open(&folder.database()).await.unwrap());
    let owner = RawConnection::open(&folder.database(), None).unwrap();
    owner
        .execute("INSERT INTO schema_migrations VALUES (999, 'from_the_future', 'unknown', 0, NULL)")
        .unwrap();
    drop(owner);
    let before = fs::read(folder.database()).unwrap();

    let Err(StoreError::Schema(text)) = open(&folder.database()).await.map(drop) else {
        panic!("a newer schema must be refused as such");
    };
    assert!(text.contains("999"), "{text}");
    assert!(matches!(hooksaga_sqlite::migrate(&folder.database()).await, Err(StoreError::Schema(_))));
    assert_eq!(fs::read(folder.database()).unwrap(), before);
}

#[tokio::test]
async fn a_schema_of_an_unreleased_state_is_refused_and_left_alone() {
    for change in [
        "UPDATE schema_migrations SET fingerprint = 'another' WHERE version = 1",
        "ALTER TABLE schema_migrations DROP COLUMN fingerprint",
    ] {
        let folder = Folder::new();
        drop(open(&folder.database()).await.unwrap());
        RawConnection::open(&folder.database(), None).unwrap().execute(change).unwrap();
        let before = fs::read(folder.database()).unwrap();
        for error in [
            open(&folder.database()).await.map(drop).unwrap_err(),
            hooksaga_sqlite::migrate(&folder.database()).await.map(drop).unwrap_err(),
            hooksaga_sqlite::open_keys(&folder.database()).await.map(drop).unwrap_err(),
        ] {
            let StoreError::Schema(text) = error else { panic!("not a matter of the schema: {error:?}") };
            assert!(text.contains("unreleased version") && text.contains("create a new one"), "{text}");
        }
        assert_eq!(fs::read(folder.database()).unwrap(), before, "{change}");
    }
}

#[tokio::test]
async fn migrations_run_once_however_often_and_from_wherever_they_are_started() {
    let folder = Folder::new();
    let path = folder.database();
    let runs =
        [hooksaga_sqlite::migrate(&path), hooksaga_sqlite::migrate(&path), hooksaga_sqlite::migrate(&path)];
    let [a, b, c] = runs;
    let (a, b, c) = tokio::join!(a, b, c);
    let applied: usize = [a, b, c].into_iter().map(|report| report.unwrap().applied.len()).sum();
    assert_eq!(applied, 2, "each step once");

    let _server = open(&path).await.unwrap();
    let report = hooksaga_sqlite::migrate(&path).await.unwrap();
    assert!(report.applied.is_empty(), "beside a server there is nothing to do");
    assert_eq!(report.version, 2);
}

#[tokio::test]
async fn after_a_restore_no_id_is_given_out_twice() {
    let folder = Folder::new();
    let append = async |database: &SqliteDatabase| match database
        .stores()
        .ingest
        .append(&[event("a")])
        .await
        .unwrap()
        .remove(0)
    {
        Appended::Created(head) => head.id.0,
        other => panic!("{other:?}"),
    };
    let database = open(&folder.database()).await.unwrap();
    append(&database).await;
    drop(database);
    let backup = folder.path().join("backup.db");
    fs::copy(folder.database(), &backup).unwrap();
    let database = open(&folder.database()).await.unwrap();
    let after_the_backup = append(&database).await;
    let error = hooksaga_sqlite::move_ids_forward(&folder.database()).await.unwrap_err();
    assert!(error.to_string().contains("another hooksaga server"), "{error}");
    drop(database);

    fs::copy(&backup, folder.database()).unwrap();
    let moved = hooksaga_sqlite::move_ids_forward(&folder.database()).await.unwrap();
    assert!(moved.iter().any(|moved| moved.table == "events") && moved.len() >= 7, "{moved:?}");
    let database = open(&folder.database()).await.unwrap();
    let new = append(&database).await;
    assert!(new > after_the_backup + 1_000_000_000, "{new}");
    assert_eq!(append(&database).await, new + 1, "they go on one by one");
}

#[tokio::test]
async fn after_a_restore_missing_triggers_are_reported_and_lists_repaired() {
    let folder = Folder::new();
    drop(open(&folder.database()).await.unwrap());
    let hazards = async || hooksaga_sqlite::examine(&folder.database()).await.unwrap().hazards;
    assert_eq!(hazards().await, [""; 0]);
    let raw = RawConnection::open(&folder.database(), None).unwrap();
    let heads = || raw.query("SELECT saga_id, requeued FROM letter_heads ORDER BY 1").unwrap();
    for sql in [
        "DROP TRIGGER keep_head",
        "DROP TRIGGER mark_requeued",
        "INSERT INTO events (id, event_type, created_at, correlation_id, payload) VALUES (1, 't', 1, 'c', '1')",
        "INSERT INTO webhook_delivery_sagas (id, event_id, subscription_id, generation, status, attempt_count, max_retry_limit,
                                             next_attempt_at, created_at, updated_at)
         VALUES (6, 1, 2, 0, 'Pending', 0, 5, 1, 1, 1), (7, 1, 2, 1, 'Pending', 0, 5, 1, 1, 1)",
        "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, created_at, payload)
         VALUES (6, 1, 2, 'TIMEOUT', 1, '1'), (7, 1, 2, 'TIMEOUT', 1, '1')",
    ] {
        raw.execute(sql).unwrap();
    }
    assert!(heads().is_empty());
    let found = hazards().await;
    let named =
        "lacks 2 of its triggers (keep_head on dead_letters, mark_requeued on webhook_delivery_sagas)";
    assert!(found.len() == 1 && found[0].contains(named), "{found:?}");
    assert_eq!(hooksaga_sqlite::repair_lists(&folder.database()).await.unwrap(), 3);
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(heads(), [[text("6"), text("1")], [text("7"), text("0")]]);
    assert_eq!(hooksaga_sqlite::repair_lists(&folder.database()).await.unwrap(), 0, "twice is once");
}

#[test]
fn a_full_disk_and_a_read_only_file_take_no_writes() {
    let folder = Folder::new();
    let full = rusqlite::Connection::open(folder.path().join("full.db")).unwrap();
    full.execute_batch("CREATE TABLE t (x); PRAGMA max_page_count = 3").unwrap();
    let error = full.execute("INSERT INTO t VALUES (zeroblob(100000))", []).unwrap_err();
    let error = hooksaga_sqlite::store_error(&error);
    assert!(matches!(error, StoreError::Unwritable(_)) && error.is_transient(), "{error:?}");
    full.execute_batch("PRAGMA query_only = on").unwrap();
    let error = hooksaga_sqlite::store_error(&full.execute("INSERT INTO t VALUES (1)", []).unwrap_err());
    assert!(matches!(error, StoreError::Unwritable(_)), "{error:?}");
}
