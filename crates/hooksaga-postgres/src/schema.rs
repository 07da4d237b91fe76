//! The schema: versioned, forward-only steps, each in one transaction.
//!
//! A session lock is held across the run, so that several processes can start it at once: one works, the
//! others wait and then find nothing to do. Roles come first: a login that may neither create nor use them
//! gets an error before anything is changed.

use crate::{
    error::{checked, store_error},
    options::SessionKind,
    outbox,
    pool::connect_once,
    rights,
};
use hooksaga_store::{
    RoleMode, ServerOptions, StoreError, StoreResult,
    migration::{
        LOWEST_PROGRAM, Migration, MigrationReport, OnMigrationStep, Recorded, check_released, latest,
        pending,
    },
};
use tokio_postgres::{Client, Row};

/// Every step. A released step is never edited; new steps are added.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: include_str!("../migrations/0001_tables.sql") },
    Migration { version: 2, name: "guards", sql: GUARDS },
];
pub(crate) const GUARDS: &str = include_str!("../migrations/0002_guards.sql");

/// The lock's number: any that no other program is likely to use ("hooksaga" in ASCII).
const LOCK: i64 = 0x686f_6f6b_7361_6761;
/// The oldest server that the statements are written for.
const OLDEST: i32 = 150_000;

/// Creates or upgrades the schema, the roles and their rights. Safe to run twice, and from several processes
/// and on several databases of a cluster at once.
pub async fn migrate(options: ServerOptions) -> StoreResult<MigrationReport> {
    migrate_telling(options, &|_| {}).await
}

/// Migrates as `migrate` does; `on_step` is called after each step.
pub async fn migrate_telling(
    options: ServerOptions,
    on_step: OnMigrationStep<'_>,
) -> StoreResult<MigrationReport> {
    let client = connect_once(&SessionKind::Login.configuration(&options)?).await?;
    check_server(&client).await?;
    checked(client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await)?;
    // Before anything is created: a newer version's schema is left alone, roles included.
    pending(released_version(&client).await?, MIGRATIONS)?;

    let (applied, roles) = match options.roles {
        RoleMode::Switch => {
            let roles = rights::ensure(&client, &options).await?;
            let applied = apply_steps(&client, on_step).await?;
            rights::grant_rights(&client).await?;
            (applied, roles)
        }
        RoleMode::Off => (
            apply_steps(&client, on_step).await?,
            "off: every component uses the login's own rights".to_owned(),
        ),
    };
    outbox::install(&client, &options).await?;
    // Ending the session would release it too, but only when the server has noticed.
    checked(client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK]).await)?;
    Ok(MigrationReport { applied, version: latest(MIGRATIONS), roles })
}

async fn check_server(client: &Client) -> StoreResult<()> {
    let sql = "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), \
               current_setting('server_version'), current_schema()";
    let row = checked(client.query_one(sql, &[]).await)?;
    let (number, encoding, version, schema): (i32, String, String, Option<String>) = (
        checked(row.try_get(0))?,
        checked(row.try_get(1))?,
        checked(row.try_get(2))?,
        checked(row.try_get(3))?,
    );
    if number < OLDEST {
        return Err(StoreError::Setup(format!(
            "the database server is PostgreSQL {version}: hooksaga needs 15 or newer"
        )));
    }
    if encoding != "UTF8" {
        return Err(StoreError::Setup(format!(
            "the database's encoding is {encoding}: payloads are kept byte for byte only in UTF8; create the \
             database with ENCODING 'UTF8' TEMPLATE template0"
        )));
    }
    if schema.is_none() {
        return Err(StoreError::Setup(
            "no schema of the search path exists or may be used: create one for the database login"
                .to_owned(),
        ));
    }
    Ok(())
}

async fn apply_steps(client: &Client, on_step: OnMigrationStep<'_>) -> StoreResult<Vec<String>> {
    const TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (\
        version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), \
        fingerprint text NOT NULL); \
        ALTER TABLE schema_migrations ADD COLUMN IF NOT EXISTS lowest_program bigint";

    let current = released_version(client).await?;
    let steps = pending(current, MIGRATIONS)?;
    let mut applied = Vec::new();
    for step in steps {
        let script = format!(
            "BEGIN; {TABLE}; {} ; INSERT INTO schema_migrations (version, name, fingerprint, lowest_program) \
             VALUES ({}, '{}', '{}', {LOWEST_PROGRAM}); COMMIT",
            step.sql,
            step.version,
            step.name,
            step.fingerprint()
        );
        if let Err(error) = client.batch_execute(&script).await {
            // The reason is what counts; the session ends in a moment and takes the transaction with it.
            let reason = store_error(&error);
            return Err(match reason {
                StoreError::Denied(text) => StoreError::Setup(format!(
                    "the database login may not create the schema ({text}): grant it CREATE on the schema, or \
                     make it the database's owner"
                )),
                other => other,
            });
        }
        let step = step.label();
        on_step(&step);
        applied.push(step);
    }
    Ok(applied)
}

/// The steps that were applied. Unreleased versions lacked some of the columns: then they are NULL.
pub(crate) const RECORDED: &str = "/* schema.recorded */
SELECT version, to_jsonb(m) ->> 'fingerprint', (to_jsonb(m) ->> 'lowest_program')::bigint
FROM schema_migrations m ORDER BY version";

/// The schema's version; 0 if there is none. Fails if other steps than this program's made it.
async fn released_version(client: &Client) -> StoreResult<i64> {
    let found = checked(client.query_one("SELECT to_regclass('schema_migrations') IS NOT NULL", &[]).await)?;
    if !checked(found.try_get(0))? {
        return Ok(0);
    }
    let recorded = checked(recorded(&checked(client.query(RECORDED, &[]).await)?))?;
    check_released(&recorded, MIGRATIONS)?;
    Ok(recorded.last().map_or(0, |step| step.version))
}

/// What [`RECORDED`] returns.
pub(crate) fn recorded(rows: &[Row]) -> Result<Vec<Recorded>, tokio_postgres::Error> {
    rows.iter()
        .map(|row| {
            Ok(Recorded {
                version: row.try_get(0)?,
                fingerprint: row.try_get(1)?,
                lowest_program: row.try_get(2)?,
            })
        })
        .collect()
}
