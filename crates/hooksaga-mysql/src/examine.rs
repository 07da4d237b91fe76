//! Examines the database for `hooksaga doctor`. It changes nothing.

use crate::{
    error::{self, checked},
    options::{SessionKind, database_of, identifier},
    pool::{connect_once, in_time},
    rights::{self, Fence},
    schema::{GUARDS, HAS_TABLE, MIGRATIONS, recorded},
    time::SqlTime,
};
use hooksaga_store::{
    ClockReading, Examination, Fault, Role, RoleFault, RoleMode, RolesFound, SchemaVersion, ServerOptions,
    StoreError, StoreResult, Trigger, missing_triggers,
};
use mysql_async::{Conn, prelude::Queryable as _};
use std::time::Instant;

/// Looks at the server, the schema and every role, each in a session of its own.
///
/// # Errors
/// If the server cannot be reached or does not let the login in.
pub async fn examine(options: &ServerOptions) -> StoreResult<Examination> {
    // Where the reader has a login of its own, `database.url` may be one that this process cannot use.
    let session = if options.shares_login(Role::ApiReader) {
        SessionKind::Server
    } else {
        SessionKind::Component(Role::ApiReader)
    };
    let mut connection = connect_once(session.configuration(options)?).await?;
    let clock = in_time(read_clock(&mut connection)).await?;
    let version: Option<String> =
        in_time(async { checked(connection.query_first("SELECT VERSION()").await) }).await?;
    let version = version.unwrap_or_default();
    let server = if version.contains("MariaDB") { version } else { format!("MySQL {version}") };
    let mut hazards = in_time(hazards(&mut connection)).await?;
    let missing = in_time(is_missing(&mut connection, options)).await?;
    let triggers = in_time(missing_guards(&mut connection, missing)).await?;
    checked(connection.disconnect().await)?;

    let schema = match missing {
        true => SchemaVersion::judge(&[], MIGRATIONS),
        false => in_time(look_at_schema(options)).await,
    };
    let roles = match (options.roles, &schema) {
        (RoleMode::Off, _) => RolesFound::Off,
        (RoleMode::Switch, Err(StoreError::Schema(_))) => RolesFound::NotLookedAt,
        // A role that is missing is why the schema cannot be read.
        (RoleMode::Switch, _) => look_at_roles(options).await?,
    };
    hazards.extend(triggers.filter(|_| schema.as_ref().is_ok_and(SchemaVersion::is_this_programs)));
    Ok(Examination { server, clock: Some(clock), schema, roles, hazards })
}

async fn read_clock(connection: &mut Conn) -> StoreResult<ClockReading> {
    let began = Instant::now();
    let time: Option<SqlTime> = checked(connection.query_first("SELECT UTC_TIMESTAMP(6)").await)?;
    let time = time.ok_or_else(|| StoreError::Other("the server returned no time".to_owned()))?;
    Ok(ClockReading::of_call(time.0, began))
}

/// Whether the login itself sees that there is no schema. A login without rights of its own sees no tables.
async fn is_missing(connection: &mut Conn, options: &ServerOptions) -> StoreResult<bool> {
    let database = database_of(options)?;
    if let Err(error) = connection.query_drop(format!("USE {}", identifier(&database))).await {
        return if error::code(&error) == Some(1049) { Err(error::store_error(&error)) } else { Ok(false) };
    }
    Ok(checked(connection.query_first::<i64, _>(HAS_TABLE).await)? == Some(0))
}

/// The triggers that are missing, if the login may create triggers. (To other logins the server shows none.)
async fn missing_guards(connection: &mut Conn, is_missing: bool) -> StoreResult<Option<String>> {
    const MAKES_TRIGGERS: &str = "/* examine.makes_triggers */
SELECT EXISTS (SELECT 1 FROM information_schema.user_privileges p
               WHERE p.privilege_type = 'TRIGGER' AND p.grantee = me.grantee)
    OR EXISTS (SELECT 1 FROM information_schema.schema_privileges p
               WHERE p.privilege_type = 'TRIGGER' AND p.grantee = me.grantee AND DATABASE() LIKE p.table_schema)
FROM (SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))
             AS grantee) me";
    const TRIGGERS: &str = "/* examine.triggers */
SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()";
    if is_missing || checked(connection.query_first::<i64, _>(MAKES_TRIGGERS).await)? != Some(1) {
        return Ok(None);
    }
    let names: Vec<String> = checked(connection.query(TRIGGERS).await)?;
    let is_there = |trigger: &Trigger<'_>| names.iter().any(|name| name == trigger.name);
    Ok(missing_triggers(GUARDS, is_there, "run `hooksaga migrate`, which makes them and repairs the lists"))
}

/// Runs as the reader, which may read the applied migrations.
async fn look_at_schema(options: &ServerOptions) -> StoreResult<SchemaVersion> {
    let mut connection =
        connect_once(SessionKind::Component(Role::ApiReader).configuration(options)?).await?;
    let steps = recorded(&mut connection).await.map_err(StoreError::from)?;
    checked(connection.disconnect().await)?;
    SchemaVersion::judge(&steps, MIGRATIONS)
}

async fn look_at_roles(options: &ServerOptions) -> StoreResult<RolesFound> {
    let mut faults = Vec::new();
    for &role in Role::ALL {
        let fault = match in_time(lacking(options, role)).await {
            Ok(rights) if rights.is_empty() => continue,
            Ok(rights) => Fault::Lacks(rights),
            Err(error) => Fault::Session(error),
        };
        faults.push(RoleFault { role, fault });
    }
    let fence = in_time(Fence::read(options)).await?;
    let weakness = (fence == Fence::OwnRights).then(|| fence.to_string());
    Ok(RolesFound::Checked { tried: Role::ALL.len(), faults, weakness })
}

async fn lacking(options: &ServerOptions, role: Role) -> StoreResult<Vec<String>> {
    let mut connection = connect_once(SessionKind::Component(role).configuration(options)?).await?;
    let mut rights = rights::lacking(&mut connection, role).await?;
    checked(connection.disconnect().await)?;
    rights.truncate(RoleFault::SHOWN);
    Ok(rights)
}

async fn hazards(connection: &mut Conn) -> StoreResult<Vec<String>> {
    let sql = "SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite <> 0";
    let settings: Option<(u64, u64)> = checked(connection.query_first(sql).await)?;
    let (flush, doublewrite) = settings.unwrap_or((1, 1));
    let mut hazards = Vec::new();
    if flush != 1 {
        hazards.push(format!(
            "innodb_flush_log_at_trx_commit is {flush}: a crash of the database server can lose the last second of \
             accepted events; set it to 1"
        ));
    }
    if doublewrite == 0 {
        hazards.push(
            "innodb_doublewrite is off: a crash of the database server can damage tables; set it to ON"
                .to_owned(),
        );
    }
    Ok(hazards)
}
