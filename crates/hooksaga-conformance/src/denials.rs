//! The roles: for each, every operation on every table and column is tried against the real database.

use super::{
    Dialect, TestDatabase,
    fixture::{ALL, TYPE, URL, buried, create, new_subscription},
    role_table::{Columns, DRAINS, OPEN, RIGHTS, Right},
    rows::count,
    tables::{TABLES, Table},
};
use hooksaga_store::{Role, StoreError, StoreResult};

/// The expected result for a cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Works,
    Denied,
    Open,
}

fn rights(list: &[(Role, &str, &[Right])], role: Role, table: &Table) -> Vec<Right> {
    let lists = list.iter().filter(|entry| entry.0 == role && entry.1 == table.name);
    lists.flat_map(|entry| entry.2.iter().copied()).collect()
}

/// The cell of one operation; `hit` says whether a right covers it.
fn expected(role: Role, table: &Table, hit: impl Fn(&Right) -> bool) -> Expected {
    if rights(RIGHTS, role, table).iter().any(&hit) {
        Expected::Works
    } else if rights(OPEN, role, table).iter().any(&hit) {
        Expected::Open
    } else {
        Expected::Denied
    }
}

fn complaint(expected: Expected, answer: &StoreResult<u64>) -> Option<String> {
    match (expected, answer) {
        (Expected::Works, Ok(_)) | (Expected::Denied, Err(StoreError::Denied(_))) | (Expected::Open, _) => {
            None
        }
        _ => Some(format!("expected {expected:?}, got {answer:?}")),
    }
}

/// Tries a list of cells, and reports all wrong ones together.
async fn try_all(db: &dyn TestDatabase, cells: Vec<(Role, String, Expected)>) {
    assert!(!cells.is_empty());
    let mut wrong = Vec::new();
    for (role, sql, expected) in cells {
        let answer = db.execute_as(role, &sql).await;
        if let Some(complaint) = complaint(expected, &answer) {
            wrong.push(format!("{role}: {sql}\n    {complaint}"));
        }
    }
    assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Cells for every role and table.
fn matrix(mut cells: impl FnMut(Role, &Table) -> Vec<(String, Expected)>) -> Vec<(Role, String, Expected)> {
    let mut all = Vec::new();
    for role in Role::ALL {
        for table in TABLES {
            all.extend(cells(*role, table).into_iter().map(|(sql, expected)| (*role, sql, expected)));
        }
    }
    all
}

fn covers(columns: Columns, column: &str) -> bool {
    columns.include(column)
}

pub async fn each_role_reads_its_columns_and_no_others(db: &dyn TestDatabase) {
    let cells = matrix(|role, table| {
        let cell = |column: &&str| {
            let sql = format!("SELECT {column} FROM {} WHERE 1 = 0", table.name);
            let expected = match table.name {
                "schema_migrations" => Expected::Works,
                _ => expected(
                    role,
                    table,
                    |right| matches!(right, Right::Select(columns) if covers(*columns, column)),
                ),
            };
            (sql, expected)
        };
        table.columns.iter().map(cell).collect()
    });
    try_all(db, cells).await;
}

pub async fn each_role_inserts_into_its_tables_and_no_others(db: &dyn TestDatabase) {
    let cells = matrix(|role, table| {
        let nulls = vec!["NULL"; table.insert.len()].join(", ");
        let columns = table.insert.join(", ");
        let sql = format!("INSERT INTO {} ({columns}) SELECT {nulls} WHERE 1 = 0", table.name);
        vec![(sql, expected(role, table, |right| matches!(right, Right::Insert)))]
    });
    try_all(db, cells).await;
}

pub async fn each_role_updates_its_columns_and_no_others(db: &dyn TestDatabase) {
    let dialect = db.dialect();
    let cells = matrix(|role, table| {
        let drains = DRAINS.contains(&(role, table.name)) && dialect == Dialect::Postgres;
        let cell = |column: &&str| {
            let sql = format!("UPDATE {} SET {column} = NULL WHERE 1 = 0", table.name);
            let expected = match drains {
                true => Expected::Open,
                false => expected(
                    role,
                    table,
                    |right| matches!(right, Right::Update(columns) if covers(*columns, column)),
                ),
            };
            (sql, expected)
        };
        table.columns.iter().filter(|column| !table.generated.contains(*column)).map(cell).collect()
    });
    try_all(db, cells).await;
}

pub async fn each_role_deletes_from_its_queue_and_nowhere_else(db: &dyn TestDatabase) {
    let cells = matrix(|role, table| {
        let sql = format!("DELETE FROM {} WHERE 1 = 0", table.name);
        vec![(sql, expected(role, table, |right| matches!(right, Right::Delete)))]
    });
    try_all(db, cells).await;
}

pub async fn a_role_is_denied_on_rows_that_exist(db: &dyn TestDatabase) {
    // The matrix uses conditions that no row meets. This tries the same with rows that exist.
    buried(db).await;
    let cells = [
        (Role::RouterWorker, "SELECT payload FROM events"),
        (Role::RouterWorker, "SELECT * FROM events"),
        (Role::RouterWorker, "UPDATE webhook_delivery_sagas SET status = 'InProgress'"),
        (Role::RouterWorker, "UPDATE subscriptions SET active = FALSE"),
        (Role::SagaOrchestrator, "SELECT payload FROM events"),
        (Role::SagaOrchestrator, "UPDATE webhook_delivery_sagas SET max_retry_limit = 50"),
        (Role::SagaOrchestrator, "DELETE FROM webhook_delivery_sagas"),
        (Role::SagaOrchestrator, "UPDATE webhook_delivery_jobs SET status = 'Completed'"),
        (Role::JobWorker, "UPDATE webhook_delivery_sagas SET status = 'Completed'"),
        (Role::LeaseCleaner, "UPDATE webhook_delivery_sagas SET status = 'Pending'"),
        (Role::LeaseCleaner, "SELECT payload FROM events"),
        (Role::DeadLetterOperator, "UPDATE webhook_delivery_sagas SET status = 'Pending'"),
        (Role::DeadLetterOperator, "UPDATE webhook_delivery_jobs SET status = 'Pending'"),
        (Role::DeadLetterOperator, "DELETE FROM dead_letters"),
        (Role::EventIngestWriter, "UPDATE events SET payload = '{}'"),
        (Role::EventIngestWriter, "DELETE FROM events"),
        (Role::EventIngestWriter, "SELECT id FROM webhook_delivery_sagas"),
        (Role::SubscriptionAdmin, "SELECT sealed FROM subscription_secrets"),
        (Role::SubscriptionAdmin, "SELECT * FROM subscription_secrets"),
        (Role::SubscriptionAdmin, "UPDATE subscriptions SET verified_url = callback_url"),
        (Role::SubscriptionVerifier, "UPDATE subscriptions SET callback_url = 'https://evil.example/'"),
        (Role::ApiReader, "SELECT sealed FROM subscription_secrets"),
        (Role::ApiReader, "SELECT sha256 FROM api_keys"),
        (Role::ApiReader, "UPDATE subscriptions SET active = FALSE"),
        (Role::KeyAdmin, "SELECT id FROM events"),
        (Role::SubscriptionAdmin, "UPDATE subscriptions SET tenant = 'another'"),
        (Role::SubscriptionAdmin, "UPDATE subscription_topics SET topic = '*'"),
        (Role::RouterWorker, "INSERT INTO subscription_topics VALUES ('default', '*', 1)"),
        (Role::RouterWorker, "DELETE FROM subscription_topics"),
        (Role::RouterWorker, "UPDATE unrouted_events SET event_id = 1"),
        (Role::EventIngestWriter, "UPDATE unrouted_events SET after_subscription_id = 1"),
        (Role::SagaOrchestrator, "DELETE FROM workers"),
        (Role::ApiReader, "DELETE FROM workers"),
        (Role::LeaseCleaner, "SELECT id FROM workers"),
        (Role::KeyReader, "UPDATE api_keys SET revoked_at = NULL"),
        (Role::KeyReader, "UPDATE api_keys SET scopes = 'admin'"),
        (Role::KeyReader, "DELETE FROM api_keys"),
        (Role::KeyReader, "SELECT id FROM subscriptions"),
        (Role::PortalKeyWriter, "SELECT sha256 FROM api_keys"),
        (Role::PortalKeyWriter, "UPDATE api_keys SET tenant = NULL"),
        (Role::PortalKeyWriter, "UPDATE api_keys SET expires_at = NULL"),
        (Role::PortalKeyWriter, "UPDATE api_keys SET scopes = 'admin'"),
        (Role::PortalKeyWriter, "UPDATE api_keys SET by_admin = TRUE"),
        (Role::PortalKeyWriter, "DELETE FROM api_keys"),
        (Role::PortalKeyWriter, "SELECT id FROM events"),
        (Role::KeyAdmin, "UPDATE api_keys SET by_admin = FALSE"),
        (Role::KeyAdmin, "UPDATE api_keys SET last_used_at = NULL"),
        (Role::KeyAdmin, "UPDATE api_keys SET tenant = NULL"),
        (Role::KeyAdmin, "UPDATE api_keys SET expires_at = NULL"),
    ];
    let cells = cells.map(|(role, sql)| (role, sql.to_owned(), Expected::Denied));
    try_all(db, cells.to_vec()).await;
}

pub async fn no_role_empties_or_changes_the_schema(db: &dyn TestDatabase) {
    let mut cells = matrix(|_, table| {
        let mut statements = vec![format!("DROP TABLE {}", table.name)];
        if db.dialect() == Dialect::Postgres {
            statements.push(format!("TRUNCATE {}", table.name));
        }
        statements.into_iter().map(|sql| (sql, Expected::Denied)).collect()
    });
    for role in Role::ALL {
        cells.push((*role, "CREATE TABLE mine (id integer)".to_owned(), Expected::Denied));
    }
    try_all(db, cells).await;
    assert_eq!(count(db, "events").await, 0, "the tables are still there");
}

pub async fn the_admin_cannot_create_a_verified_subscription(db: &dyn TestDatabase) {
    let before = create(&db.stores(), &new_subscription(TYPE, URL)).await;
    let now = db.dialect().now();
    let insert = |column: &str, value: &str| {
        format!(
            "INSERT INTO subscriptions (event_type, callback_url, active, created_at, updated_at, {column}) \
             VALUES ('t', 'https://evil.example/', TRUE, {now}, {now}, {value})"
        )
    };
    let sql = insert("verified_url", "'https://evil.example/'");
    let answer = db.execute_as(Role::SubscriptionAdmin, &sql).await;
    // SQLite's authorizer does not know the columns of an INSERT; there the schema has to refuse it.
    assert!(matches!(answer, Err(StoreError::Denied(_) | StoreError::Refused(_))), "{answer:?}");
    let there = db.stores().reader.subscription(&ALL, before.id).await.unwrap();
    assert_eq!(there, Some(before));
    assert_eq!(count(db, "subscriptions").await, 1);
}
