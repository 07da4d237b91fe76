//! Examines the database for `hooksaga doctor`. It changes nothing.

use crate::{
    error::checked,
    options::SessionKind,
    pool::connect_once,
    rights::{self, Right},
    schema::{GUARDS, MIGRATIONS, RECORDED, recorded},
    time::SqlTime,
};
use hooksaga_store::{
    ClockReading, Examination, Fault, Role, RoleFault, RoleMode, RolesFound, SchemaVersion, ServerOptions,
    StoreResult, Trigger, missing_triggers,
};
use std::time::Instant;
use tokio_postgres::Client;

/// Looks at the server, the schema and every role, each in a session of its own.
///
/// # Errors
/// If the server cannot be reached or does not let the login in.
pub async fn examine(options: &ServerOptions) -> StoreResult<Examination> {
    // Where the reader has a login of its own, `database.url` may be one that this process cannot use.
    let session = if options.shares_login(Role::ApiReader) {
        SessionKind::Login
    } else {
        SessionKind::Component { role: Role::ApiReader, schema: None }
    };
    let client = connect_once(&session.configuration(options)?).await?;
    let clock = read_clock(&client).await?;
    let sql = "SELECT current_setting('server_version'), quote_ident(current_schema())";
    let row = checked(client.query_one(sql, &[]).await)?;
    let (version, place): (String, Option<String>) = (checked(row.try_get(0))?, checked(row.try_get(1))?);
    let schema = look_at_schema(&client).await;
    let roles = match (options.roles, &schema) {
        (RoleMode::Off, _) => RolesFound::Off,
        (RoleMode::Switch, Err(_)) => RolesFound::NotLookedAt,
        (RoleMode::Switch, Ok(_)) => look_at_roles(options, place.as_deref()).await,
    };
    let mut hazards = hazards(&client).await?;
    if schema.as_ref().is_ok_and(SchemaVersion::is_this_programs) {
        hazards.extend(missing_guards(&client).await?);
    }
    Ok(Examination { server: format!("PostgreSQL {version}"), clock: Some(clock), schema, roles, hazards })
}

async fn read_clock(client: &Client) -> StoreResult<ClockReading> {
    let sql = "SELECT clock_timestamp()";
    // Once to prepare it: that is another round trip.
    let statement = checked(client.prepare(sql).await)?;
    let began = Instant::now();
    let row = checked(client.query_one(&statement, &[]).await)?;
    let time: SqlTime = checked(row.try_get(0))?;
    Ok(ClockReading::of_call(time.0, began))
}

async fn look_at_schema(client: &Client) -> StoreResult<SchemaVersion> {
    let found = checked(client.query_one("SELECT to_regclass('schema_migrations') IS NOT NULL", &[]).await)?;
    let steps = if checked(found.try_get(0))? {
        checked(recorded(&checked(client.query(RECORDED, &[]).await)?))?
    } else {
        Vec::new()
    };
    SchemaVersion::judge(&steps, MIGRATIONS)
}

async fn look_at_roles(options: &ServerOptions, schema: Option<&str>) -> RolesFound {
    let mut faults = Vec::new();
    for &role in Role::ALL {
        let fault = match lacking(options, role, schema).await {
            Ok(rights) if rights.is_empty() => continue,
            Ok(rights) => Fault::Lacks(rights),
            Err(error) => Fault::Session(error),
        };
        faults.push(RoleFault { role, fault });
    }
    RolesFound::Checked { tried: Role::ALL.len(), faults, weakness: None }
}

/// The rights that a session of this role lacks.
async fn lacking(options: &ServerOptions, role: Role, schema: Option<&str>) -> StoreResult<Vec<String>> {
    const MISSING: &str = "/* examine.missing_rights */
SELECT r.verb, r.object, r.name
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS r (verb, object, name, place)
WHERE NOT coalesce(
    CASE
        WHEN r.verb = 'USAGE' THEN has_sequence_privilege(to_regclass(r.object), r.verb)
        WHEN r.name = '' THEN has_table_privilege(to_regclass(r.object), r.verb)
        ELSE (SELECT has_column_privilege(a.attrelid, a.attnum, r.verb) FROM pg_attribute a
              WHERE a.attrelid = to_regclass(r.object) AND a.attname = r.name)
    END, false)
ORDER BY r.place LIMIT $4";
    let client = connect_once(&SessionKind::Component { role, schema }.configuration(options)?).await?;
    let rights = rights::of_role(role);
    let column = |get: fn(&Right) -> &str| rights.iter().map(get).collect::<Vec<&str>>();
    let verbs = column(|right| right.verb);
    let objects = column(|right| right.object);
    let columns = column(|right| right.column);
    let most = i64::try_from(RoleFault::SHOWN).unwrap_or(i64::MAX);
    let rows = checked(client.query(MISSING, &[&verbs, &objects, &columns, &most]).await)?;
    rows.iter()
        .map(|row| {
            let (verb, object, column): (&str, &str, &str) =
                (checked(row.try_get(0))?, checked(row.try_get(1))?, checked(row.try_get(2))?);
            let column = if column.is_empty() { String::new() } else { format!(" ({column})") };
            Ok(format!("{verb}{column} ON {object}"))
        })
        .collect()
}

/// Triggers that are missing or switched off.
async fn missing_guards(client: &Client) -> StoreResult<Option<String>> {
    const TRIGGERS: &str = "/* examine.triggers */
SELECT t.tgname::text, c.relname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('schema_migrations'))";
    let rows = checked(client.query(TRIGGERS, &[]).await)?;
    let names = rows.iter().map(|row| Ok((checked(row.try_get(0))?, checked(row.try_get(1))?)));
    let names: Vec<(String, String)> = names.collect::<StoreResult<_>>()?;
    let is_there = |trigger: &Trigger<'_>| {
        names.iter().any(|(name, table)| (&**name, &**table) == (trigger.name, trigger.table))
    };
    Ok(missing_triggers(
        GUARDS,
        is_there,
        "restore the backup again, completely, and run `hooksaga migrate --after-restore`",
    ))
}

async fn hazards(client: &Client) -> StoreResult<Vec<String>> {
    let sql = "SELECT current_setting('fsync'), current_setting('full_page_writes')";
    let row = checked(client.query_one(sql, &[]).await)?;
    let settings: [(&str, String); 2] =
        [("fsync", checked(row.try_get(0))?), ("full_page_writes", checked(row.try_get(1))?)];
    let off = settings.iter().filter(|(_, value)| value == "off");
    Ok(off
        .map(|(name, _)| {
            format!(
                "{name} is off: a crash of the database server can lose or damage what was accepted; set {name} = on in \
                 postgresql.conf"
            )
        })
        .collect())
}
