//! The schema: versioned, forward-only steps. DDL is not transactional here, so every statement of a step can be run
//! again: the next run continues one that was interrupted.
//!
//! The run holds a named lock, so that several processes can start it at once: one works, the others wait and then find
//! nothing to do. Roles come first: if the login may neither create nor use them, the run says so before it changes anything.

use crate::{
    error::{DbResult, checked, code, store_error},
    options::{SessionKind, database_of, identifier, literal},
    outbox,
    pool::connect_once,
    rights,
};
use hooksaga_store::{
    REPAIR_LETTER_HEADS, RoleMode, ServerOptions, StoreError, StoreResult,
    migration::{
        LOWEST_PROGRAM, Migration, MigrationReport, OnMigrationStep, Recorded, check_released, latest,
        pending,
    },
    triggers,
};
use mysql_async::{Conn, prelude::Queryable as _};

/// Every step. A released step is never edited; new steps are added.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: include_str!("../migrations/0001_tables.sql") },
    Migration { version: 2, name: "guards", sql: GUARDS },
];
pub(crate) const GUARDS: &str = include_str!("../migrations/0002_guards.sql");

/// The first table that the first run creates: if it exists, the other tables are hooksaga's.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (\
    version BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, \
    applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)), \
    fingerprint CHAR(16) CHARACTER SET ascii COLLATE ascii_bin NULL, lowest_program BIGINT NULL) ENGINE = InnoDB";

/// Whether an earlier run has begun.
pub(crate) const HAS_TABLE: &str = "SELECT COUNT(*) FROM information_schema.tables \
    WHERE table_schema = DATABASE() AND table_name = 'schema_migrations'";

const RECORDED: &str = "/* schema.recorded */ SELECT version, fingerprint, lowest_program FROM schema_migrations ORDER BY version";
/// The queries for tables of unreleased versions, which lack the last column, or both.
const FINGERPRINTS: &str =
    "/* schema.fingerprints */ SELECT version, fingerprint FROM schema_migrations ORDER BY version";
const VERSIONS: &str = "/* schema.versions */ SELECT version FROM schema_migrations ORDER BY version";

/// The server's error number for a column that does not exist.
const UNKNOWN_COLUMN: u16 = 1054;

/// How long a run waits for another before it says so, in seconds.
const PATIENCE: u32 = 600;

/// Creates or upgrades the schema, the roles and their rights. Safe to run twice, and from several processes and on
/// several databases of a server at once.
pub async fn migrate(options: ServerOptions) -> StoreResult<MigrationReport> {
    migrate_telling(options, &|_| {}).await
}

/// Migrates as `migrate` does; `on_step` is called after each step.
pub async fn migrate_telling(
    options: ServerOptions,
    on_step: OnMigrationStep<'_>,
) -> StoreResult<MigrationReport> {
    let database = database_of(&options)?;
    let mut connection = connect_once(SessionKind::Login.configuration(&options)?).await?;
    check_server(&mut connection).await?;
    let lock = literal(&format!("hooksaga.migrate.{}", rights::prefix(&database)));
    let got: Option<Option<i64>> =
        checked(connection.query_first(format!("SELECT GET_LOCK({lock}, {PATIENCE})")).await)?;
    if got.flatten() != Some(1) {
        return Err(StoreError::Unavailable(format!(
            "another `hooksaga migrate` on this database has not ended within {PATIENCE} s"
        )));
    }

    let ready = checked(connection.query_first::<i64, _>(HAS_TABLE).await)? == Some(1);
    if ready {
        check_released(&recorded(&mut connection).await.map_err(StoreError::from)?, MIGRATIONS)?;
    }
    let (applied, roles) = match options.roles {
        RoleMode::Switch => {
            let created = rights::ensure(&mut connection, &options, &database).await?;
            let applied = apply_steps(&mut connection, &database, on_step).await?;
            outbox::install(&mut connection, &options, &database).await?;
            rights::grant_rights(&mut connection, &database).await?;
            (applied, created)
        }
        RoleMode::Off => {
            let applied = apply_steps(&mut connection, &database, on_step).await?;
            outbox::install(&mut connection, &options, &database).await?;
            (applied, "off: every component uses the login's own rights".to_owned())
        }
    };
    // Ending the session would release it too, but only when the server has noticed.
    checked(connection.query_drop(format!("DO RELEASE_LOCK({lock})")).await)?;
    checked(connection.disconnect().await)?;
    Ok(MigrationReport { applied, version: latest(MIGRATIONS), roles })
}

async fn check_server(connection: &mut Conn) -> StoreResult<()> {
    let version: Option<String> = checked(connection.query_first("SELECT VERSION()").await)?;
    let version = version.unwrap_or_default();
    if is_old(&version) {
        return Err(StoreError::Setup(format!(
            "the database server is {version}: hooksaga needs MySQL 8.0.22 or MariaDB 10.6, or newer"
        )));
    }
    Ok(())
}

/// Whether a server is too old for the statements: they need SKIP LOCKED, JSON_TABLE, enforced CHECKs, defaults that are
/// expressions, and FOR SHARE without a right to write. A version that cannot be parsed counts as new enough.
fn is_old(version: &str) -> bool {
    let numbers: Vec<u32> = version
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse().ok())
        .take(3)
        .collect();
    let oldest = if version.contains("MariaDB") { [10, 6, 0] } else { [8, 0, 22] };
    numbers.len() == 3 && numbers.as_slice() < oldest.as_slice()
}

async fn apply_steps(
    connection: &mut Conn,
    database: &str,
    on_step: OnMigrationStep<'_>,
) -> StoreResult<Vec<String>> {
    refuse_foreign_tables(connection).await?;
    run(connection, TABLE).await?;
    let sql = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() \
               AND table_name = 'schema_migrations' AND column_name = 'lowest_program'";
    if checked(connection.query_first::<i64, _>(sql).await)? == Some(0) {
        run(connection, "ALTER TABLE schema_migrations ADD COLUMN lowest_program BIGINT NULL").await?;
    }
    let current = version(connection).await?;
    let steps = pending(current, MIGRATIONS)?;
    let mut applied = Vec::new();
    for step in steps {
        for statement in statements(step.sql) {
            run(connection, statement).await?;
        }
        let sql = format!(
            "INSERT INTO schema_migrations (version, name, fingerprint, lowest_program) \
             VALUES ({}, {}, {}, {LOWEST_PROGRAM})",
            step.version,
            literal(step.name),
            literal(&step.fingerprint())
        );
        run(connection, &sql).await?;
        let step = step.label();
        on_step(&step);
        applied.push(step);
    }
    if applied.is_empty() {
        adopt_triggers(connection, database).await?;
    }
    Ok(applied)
}

/// Refuses foreign tables with the name of one of ours: IF NOT EXISTS would take them for ours.
async fn refuse_foreign_tables(connection: &mut Conn) -> StoreResult<()> {
    let sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()";
    let there: Vec<String> = checked(connection.query(sql).await)?;
    if there.iter().any(|name| name == "schema_migrations") {
        return Ok(());
    }
    match there.iter().find(|name| MIGRATIONS[0].sql.contains(&format!("CREATE TABLE IF NOT EXISTS {name} ")))
    {
        Some(name) => Err(StoreError::Setup(format!(
            "the database has a table {} that is not hooksaga's: give hooksaga a database of its own",
            identifier(name)
        ))),
        None => Ok(()),
    }
}

/// Triggers run with the rights of the login that created them, and every write fails once that login is deleted. So a
/// migration by another login creates them again as its own. It also creates those that a restore left out.
///
/// The last of them is created after the lists are repaired: as long as it is missing, the next migration begins again.
async fn adopt_triggers(connection: &mut Conn, database: &str) -> StoreResult<()> {
    let sql = format!(
        "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = {} AND definer = CURRENT_USER()",
        literal(database)
    );
    let own: Vec<String> = checked(connection.query(sql).await)?;
    if triggers(GUARDS).all(|trigger| own.iter().any(|name| name == trigger.name)) {
        return Ok(());
    }
    let guards = statements(GUARDS);
    // Each is dropped, and then made.
    let (others, last) = guards.split_at(guards.len().saturating_sub(2));
    for statement in last.iter().take(1).chain(others) {
        run(connection, statement).await?;
    }
    repair_heads(connection).await?;
    for statement in last {
        run(connection, statement).await?;
    }
    Ok(())
}

/// Repairs the rows that letter_heads missed while its triggers were missing. Returns how many rows were wrong.
pub(crate) async fn repair_heads(connection: &mut Conn) -> StoreResult<u64> {
    run(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    let mut rows = 0;
    for statement in REPAIR_LETTER_HEADS {
        run(connection, statement).await?;
        rows += connection.affected_rows();
    }
    Ok(rows)
}

async fn run(connection: &mut Conn, statement: &str) -> StoreResult<()> {
    connection.query_drop(statement).await.map_err(|error| match (code(&error), store_error(&error)) {
        (_, StoreError::Denied(text)) => StoreError::Setup(format!(
            "the database login may not create the schema ({text}): grant it ALL on this database"
        )),
        (_, other) => other,
    })
}

/// The schema's version; 0 if there is none.
async fn version(connection: &mut Conn) -> StoreResult<i64> {
    let sql = "SELECT COALESCE(MAX(version), 0) FROM schema_migrations";
    Ok(checked(connection.query_first(sql).await)?.unwrap_or(0))
}

/// Every step that was applied, in order.
pub(crate) async fn recorded(connection: &mut Conn) -> DbResult<Vec<Recorded>> {
    let is_missing = |error: &mysql_async::Error| code(error) == Some(UNKNOWN_COLUMN);
    let rows: Vec<(i64, Option<String>, Option<i64>)> = match connection.query(RECORDED).await {
        Err(error) if is_missing(&error) => match connection.query(FINGERPRINTS).await {
            Err(error) if is_missing(&error) => {
                let versions: Vec<i64> = connection.query(VERSIONS).await?;
                versions.into_iter().map(|version| (version, None, None)).collect()
            }
            rows => {
                let rows: Vec<(i64, Option<String>)> = rows?;
                rows.into_iter().map(|(version, fingerprint)| (version, fingerprint, None)).collect()
            }
        },
        rows => rows?,
    };
    let step = |(version, fingerprint, lowest_program)| Recorded { version, fingerprint, lowest_program };
    Ok(rows.into_iter().map(step).collect())
}

/// The statements of a script. A statement ends with a semicolon at the end of a line, unless the line is a comment or is
/// between the lines `BEGIN` and `END;` of a trigger.
pub(crate) fn statements(script: &str) -> Vec<&str> {
    let mut statements = Vec::new();
    let (mut start, mut at, mut in_body) = (0, 0, false);
    for line in script.split_inclusive('\n') {
        at += line.len();
        let text = line.trim_end();
        in_body = (in_body || text == "BEGIN") && text != "END;";
        if text.ends_with(';') && !in_body && !text.starts_with("--") {
            statements.push(script[start..at].trim());
            start = at;
        }
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_split_into_their_statements() {
        let script = "-- a; b\nCREATE x (\n    y\n);\n\nCREATE TRIGGER t\nBEGIN\n    IF a THEN\n        b;\n    END IF;\nEND;\nDROP z;\n";
        let found = statements(script);
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[1].starts_with("CREATE TRIGGER") && found[1].ends_with("END;"));
        assert_eq!(found[2], "DROP z;");
        let guards = statements(GUARDS);
        assert!(guards.iter().all(|sql| sql.contains("DROP TRIGGER") || sql.contains("CREATE TRIGGER")));
        assert_eq!(guards.len(), 2 * triggers(GUARDS).count());
        assert_eq!(statements(MIGRATIONS[0].sql).len(), 35);
    }

    #[test]
    fn old_servers_are_recognised() {
        for old in ["5.7.44-log", "8.0.21", "10.5.29-MariaDB", "5.5.5-10.4.2-MariaDB"] {
            assert!(is_old(old), "{old}");
        }
        for new in ["8.0.22", "8.4.0-commercial", "9.1.0", "10.6.0-MariaDB", "11.4.2-MariaDB-log", "mystery"]
        {
            assert!(!is_old(new), "{new}");
        }
    }
}
