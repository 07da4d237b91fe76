//! What SQLite's authorizer has to see beyond plain rights.

use crate::adapter::fresh;
use hooksaga_conformance::{HotStatement, TestDatabase};
use hooksaga_sqlite::test_support::{belongs_to, hot};
use hooksaga_store::{Role, StoreError};

#[tokio::test]
async fn every_statement_begins_with_a_store_of_its_role() {
    for step in HotStatement::ALL {
        let (role, statements) = hot(*step);
        for sql in statements {
            assert!(belongs_to(sql, role), "{step:?}: {sql}");
        }
    }
}

#[tokio::test]
async fn no_role_touches_the_schema_the_settings_or_other_files() {
    let db = fresh().await;
    for role in Role::ALL {
        for sql in [
            "CREATE TABLE mine (x)",
            "CREATE TEMP TABLE mine (x)",
            "CREATE TEMP TRIGGER mine AFTER INSERT ON events BEGIN SELECT 1; END",
            "DROP TABLE events",
            "DROP TRIGGER guard_event_update",
            "ALTER TABLE events ADD COLUMN x",
            "PRAGMA recursive_triggers = OFF",
            "PRAGMA writable_schema = ON",
            "ATTACH ':memory:' AS other",
            "SELECT * FROM sqlite_schema",
            "UPDATE schema_migrations SET version = 0",
            "REINDEX",
            "ANALYZE",
        ] {
            let answer = db.execute_as(*role, sql).await;
            assert!(matches!(answer, Err(StoreError::Denied(_))), "{role}: {sql}: {answer:?}");
        }
        // SQLite reports a function that is not allowed as a plain error.
        db.execute_as(*role, "SELECT load_extension('x')").await.unwrap_err();
    }
}

/// INSERT OR REPLACE asks for no right but INSERT, and would delete a row.
#[tokio::test]
async fn replacing_does_not_get_around_the_guards() {
    let db = fresh().await;
    let insert = "INTO events (id, event_type, created_at, external_id, correlation_id, payload) VALUES";
    let ingest = Role::EventIngestWriter;
    db.execute_as(ingest, &format!("INSERT {insert} (1, 'a', 0, 'x', 'c', '1')")).await.unwrap();
    for row in ["(1, 'b', 0, NULL, 'c', '2')", "(2, 'b', 0, 'x', 'c', '2')"] {
        let answer = db.execute_as(ingest, &format!("INSERT OR REPLACE {insert} {row}")).await;
        // The guard looks at what only the janitor may see.
        assert!(matches!(answer, Err(StoreError::Denied(_))), "{row}: {answer:?}");
        let answer = db.execute_as_owner(&format!("INSERT OR REPLACE {insert} {row}")).await;
        assert!(matches!(answer, Err(StoreError::Refused(_))), "{row}: {answer:?}");
    }
    assert_eq!(
        db.query_text("SELECT id, payload FROM events").await.unwrap(),
        [[Some("1".to_owned()), Some("1".to_owned())]]
    );
}

/// The one way past the column rights: a subquery that bears a guard's name. It shows nothing but the
/// columns that the guard itself looks at, and only to those whose inserts meet the guard.
#[tokio::test]
async fn a_guards_name_opens_nothing_else() {
    let db = fresh().await;
    for (role, column, table) in [
        (Role::RouterWorker, "payload", "events"),
        (Role::RouterWorker, "final_error_code", "webhook_delivery_sagas"),
        (Role::EventIngestWriter, "status", "webhook_delivery_sagas"),
        (Role::LeaseCleaner, "status", "webhook_delivery_sagas"),
    ] {
        let sql = format!(
            "WITH guard_saga_insert AS MATERIALIZED (SELECT {column} FROM {table}) SELECT * FROM guard_saga_insert"
        );
        let answer = db.execute_as(role, &sql).await;
        assert!(matches!(answer, Err(StoreError::Denied(_))), "{role}: {sql}: {answer:?}");
    }
}

/// As above, of the triggers that keep what lists of letters are filtered by: nothing but ids shows.
#[tokio::test]
async fn the_name_of_a_trigger_of_letter_heads_opens_nothing_else() {
    let db = fresh().await;
    for (trigger, column) in
        [("mark_requeued", "requeued"), ("forget_head", "event_type"), ("keep_head", "final_error_code")]
    {
        let sql = format!(
            "WITH {trigger} AS MATERIALIZED (SELECT {column} FROM letter_heads) SELECT * FROM {trigger}"
        );
        for role in [Role::RouterWorker, Role::DeadLetterOperator, Role::HistoryJanitor] {
            let answer = db.execute_as(role, &sql).await;
            assert!(matches!(answer, Err(StoreError::Denied(_))), "{role}: {sql}: {answer:?}");
        }
    }
    for sql in ["UPDATE letter_heads SET requeued = 1", "DELETE FROM letter_heads"] {
        let answer = db.execute_as(Role::DeadLetterOperator, sql).await;
        assert!(matches!(answer, Err(StoreError::Denied(_))), "{sql}: {answer:?}");
    }
}
