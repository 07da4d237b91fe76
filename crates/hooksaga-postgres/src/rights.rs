//! The components' roles. Roles belong to the whole cluster, so several databases may create them at once.

use crate::error::{checked, store_error};
use hooksaga_store::{Role, ServerOptions, StoreError, StoreResult};
use std::{fmt::Write as _, time::Duration};
use tokio_postgres::{Client, Error, error::SqlState};

const RIGHTS: &str = include_str!("../migrations/roles.sql");
/// Other databases of the cluster may be migrating: each of them can get in the way a few times.
const TRIES: u32 = 50;

/// One right of a role, as `migrations/roles.sql` grants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    pub(crate) verb: &'static str,
    /// The table or sequence.
    pub(crate) object: &'static str,
    /// Empty: every column.
    pub(crate) column: &'static str,
}

/// What the file grants to a role, beside what every role has.
pub(crate) fn of_role(role: Role) -> Vec<Right> {
    let every = Right { verb: "SELECT", object: "schema_migrations", column: "" };
    let mut rights = vec![every];
    for grant in grants() {
        if words(grant.roles).any(|name| name == role.as_str()) {
            rights.extend(grant.each());
        }
    }
    rights
}

/// One GRANT of the file: `GRANT rights ON objects TO roles;`.
struct Grant {
    rights: &'static str,
    objects: &'static str,
    roles: &'static str,
}

/// A statement begins with its line; comments and the script that takes everything away do not begin with GRANT.
fn grants() -> impl Iterator<Item = Grant> {
    let statements = RIGHTS.split_inclusive(';').filter_map(|text| {
        let at = text.find("GRANT ").filter(|at| *at == 0 || text[..*at].ends_with('\n'))?;
        text[at..].strip_prefix("GRANT ")?.strip_suffix(';')
    });
    statements.filter_map(|text| {
        let (rest, roles) = text.rsplit_once(" TO ").or_else(|| text.rsplit_once("\n    TO "))?;
        let at = rest.rfind(" ON ")?;
        Some(Grant { rights: &rest[..at], objects: &rest[at + 4..], roles })
    })
}

impl Grant {
    fn each(&self) -> impl Iterator<Item = Right> {
        let objects: Vec<&str> = words(self.objects.trim_start_matches("SEQUENCE ")).collect();
        single(self.rights).into_iter().flat_map(move |(verb, column)| {
            objects.clone().into_iter().map(move |object| Right { verb, object, column })
        })
    }
}

/// The words between commas.
fn words(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.split(',').map(str::trim)
}

/// `SELECT, INSERT (a, b)` as single rights.
fn single(rights: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    let mut rest = rights.trim();
    while !rest.is_empty() {
        let end = rest.find([',', '(']).unwrap_or(rest.len());
        let verb = rest[..end].trim();
        rest = &rest[end..];
        if let Some(inner) = rest.strip_prefix('(') {
            let close = inner.find(')').unwrap_or(inner.len());
            found.extend(words(&inner[..close]).map(|column| (verb, column)));
            rest = inner.get(close + 1..).unwrap_or("");
        } else {
            found.push((verb, ""));
        }
        rest = rest.trim_start_matches([',', ' ', '\n']);
    }
    found
}

/// Makes the roles that are missing, and lets the login switch to those that have no login of their own.
/// Returns what happened, for people.
pub(crate) async fn ensure(client: &Client, options: &ServerOptions) -> StoreResult<String> {
    let mut created = 0;
    for &role in Role::ALL {
        if !exists(client, role).await? {
            // Somebody else may have made it a moment ago, from another database.
            let made = [SqlState::DUPLICATE_OBJECT, SqlState::UNIQUE_VIOLATION];
            match run(client, &format!("CREATE ROLE {role} NOLOGIN")).await {
                Ok(()) => created += 1,
                Err(error) if error.code().is_some_and(|code| made.contains(code)) => {}
                Err(error) => return Err(not_allowed(&error, role)),
            }
        }
        // Ingestion's role also has to be switched to here: it owns the outbox.
        let wanted = options.shares_login(role) || role == Role::EventIngestWriter;
        if wanted && !may_switch(client, role).await? {
            run(client, &membership(role)).await.map_err(|error| not_allowed(&error, role))?;
        }
    }
    let all = Role::ALL.len();
    Ok(if created == 0 {
        format!("{all} there already, rights renewed")
    } else {
        format!("{created} of {all} created, rights granted")
    })
}

/// Gives every role exactly its rights on this database.
pub(crate) async fn grant_rights(client: &Client) -> StoreResult<()> {
    let script = format!("BEGIN; {RIGHTS} COMMIT");
    run(client, &script).await.map_err(|error| match store_error(&error) {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database login does not own the tables ({text}): run `hooksaga migrate` with the login that \
             created them"
        )),
        other => other,
    })
}

/// The SQL that makes the roles and lets `login` switch to them, for an administrator. The rights on the tables
/// are granted by `hooksaga migrate` afterwards, as the tables' owner.
pub fn role_sql(database: &str, login: &str) -> String {
    let mut sql = String::from(
        "-- Run as a superuser (or, up to PostgreSQL 15, with CREATEROLE), once per cluster; again does no harm.\n\
         -- Then run `hooksaga migrate`, which grants the rights on the tables.\n\
         -- For a login per role (database.role_urls), additionally: ALTER ROLE … LOGIN PASSWORD '…';\n",
    );
    for role in Role::ALL {
        let _ = write!(
            sql,
            "DO $$ BEGIN\n    CREATE ROLE {role} NOLOGIN;\n\
             EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;\nEND $$;\n"
        );
    }
    let names = Role::ALL.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(", ");
    let _ = write!(
        sql,
        "GRANT CONNECT ON DATABASE {} TO {names};\n\
         DO $$ BEGIN\n    \
             EXECUTE 'GRANT {names} TO ' || quote_ident({})\n        \
                 || CASE WHEN current_setting('server_version_num')::int >= 160000\n             \
                         THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END;\n\
         END $$;\n",
        identifier(database),
        literal(login),
    );
    sql
}

/// PostgreSQL 16 and newer: the right to switch is granted by itself, and without the role's rights being held
/// all the time; also to whoever made the role, who may only administer it. Before 16 membership is all there is.
fn membership(role: Role) -> String {
    format!(
        "DO $$ BEGIN EXECUTE 'GRANT {role} TO ' || quote_ident(current_user) || \
         CASE WHEN current_setting('server_version_num')::int >= 160000 \
         THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END; END $$"
    )
}

async fn exists(client: &Client, role: Role) -> StoreResult<bool> {
    let sql = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)";
    checked(checked(client.query_one(sql, &[&role.as_str()]).await)?.try_get(0))
}

async fn may_switch(client: &Client, role: Role) -> StoreResult<bool> {
    let sql = "SELECT pg_has_role(current_user, $1::text::name, \
               CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)";
    checked(checked(client.query_one(sql, &[&role.as_str()]).await)?.try_get(0))
}

fn not_allowed(error: &Error, role: Role) -> StoreError {
    match store_error(error) {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database login may not set up the role {role} ({text}): hand the output of \
             `hooksaga migrate --print-roles` to an administrator, then run `hooksaga migrate` again; or set \
             database.roles = \"off\""
        )),
        other => other,
    }
}

/// Runs a script of catalog changes, and again while another database's run is in its way: such changes fail
/// with "tuple concurrently updated" or a deadlock instead of waiting.
pub(crate) async fn run(client: &Client, script: &str) -> Result<(), Error> {
    let mut tried = 1;
    loop {
        let error = match client.batch_execute(script).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if !in_the_way(&error) || tried == TRIES {
            return Err(error);
        }
        // The script may have opened a transaction, which has failed with it.
        client.batch_execute("ROLLBACK").await?;
        tokio::time::sleep(Duration::from_millis(u64::from(tried.min(20)))).await;
        tried += 1;
    }
}

fn in_the_way(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        let concurrent = *error.code() == SqlState::INTERNAL_ERROR && error.message().contains("concurrently");
        concurrent
            || *error.code() == SqlState::T_R_DEADLOCK_DETECTED
            || *error.code() == SqlState::T_R_SERIALIZATION_FAILURE
            // Two grants of the same membership.
            || (*error.code() == SqlState::UNIQUE_VIOLATION && error.constraint().is_some_and(|name| name.contains("auth_members")))
    })
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_administrators_sql_quotes_what_it_is_given() {
        let sql = role_sql("my\"db", "o'hara");
        assert!(sql.contains(r#"GRANT CONNECT ON DATABASE "my""db" TO"#), "{sql}");
        assert!(sql.contains("quote_ident('o''hara')"), "{sql}");
        assert!(Role::ALL.iter().all(|role| sql.contains(&format!("CREATE ROLE {role} NOLOGIN"))), "{sql}");
    }

    #[test]
    fn every_grant_is_understood() {
        let written = RIGHTS.lines().filter(|line| line.starts_with("GRANT ")).count();
        assert_eq!(grants().count(), written);
        for right in Role::ALL.iter().flat_map(|role| of_role(*role)) {
            assert!(["SELECT", "INSERT", "UPDATE", "DELETE", "USAGE"].contains(&right.verb), "{right:?}");
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            let plain = |name: &str| name.bytes().all(is_plain);
            assert!(!right.object.is_empty() && plain(right.object) && plain(right.column), "{right:?}");
        }
        let worker = of_role(Role::JobWorker);
        let right = |verb, object, column| Right { verb, object, column };
        for held in [
            right("SELECT", "subscription_headers", ""),
            right("UPDATE", "webhook_delivery_jobs", "retry_at"),
            right("UPDATE", "rate_limits", "full_at"),
            right("DELETE", "workers", ""),
        ] {
            assert!(worker.contains(&held), "{held:?} in {worker:?}");
        }
        assert!(of_role(Role::EventIngestWriter).contains(&right("USAGE", "events_id_seq", "")));
    }

    #[test]
    fn every_role_has_rights() {
        for role in Role::ALL {
            assert!(RIGHTS.contains(&format!(" TO {role};")), "{role}");
        }
    }
}
