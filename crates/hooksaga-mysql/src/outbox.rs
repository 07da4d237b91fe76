//! The transactional outbox: `hooksaga_append`, which an application calls inside its own transaction (docs/OUTBOX.md).
//!
//! It runs with the rights of its definer, ingestion's role. On MariaDB a login that may switch to a role may create a procedure
//! with that role as its definer. On MySQL it needs a separate right (SET_USER_ID, from 8.2 SET_ANY_DEFINER); without that, and
//! without roles, the procedure has the rights of the login that migrates.
//!
//! It is replaced only if it differs: MySQL has no OR REPLACE, and dropping a procedure drops the grants on it.

use crate::{
    error::{checked, code, store_error},
    options::literal,
    rights::role_name,
};
use hooksaga_store::{Role, RoleMode, ServerOptions, StoreError, StoreResult, migration::fingerprint};
use mysql_async::{Conn, prelude::Queryable as _};

const PROCEDURE: &str = include_str!("../migrations/outbox.sql");
const MARIADB_JSON: &str = include_str!("../migrations/outbox_json_mariadb.sql");
const MYSQL_JSON: &str = include_str!("../migrations/outbox_json_mysql.sql");

const LOOK: &str = "/* outbox.look */ SELECT routine_comment, definer, CURRENT_USER() FROM information_schema.routines \
    WHERE routine_schema = DATABASE() AND routine_name = 'hooksaga_append' AND routine_type = 'PROCEDURE'";

/// The server's number for a right that is missing and is not a table's.
const MISSING_RIGHT: u16 = 1227;

/// Creates the procedure, or replaces another version of it.
pub(crate) async fn install(
    connection: &mut Conn,
    options: &ServerOptions,
    database: &str,
) -> StoreResult<()> {
    let version: Option<String> = checked(connection.query_first("SELECT VERSION()").await)?;
    let is_mariadb = version.unwrap_or_default().contains("MariaDB");
    let role = (options.roles == RoleMode::Switch).then(|| role_name(database, Role::EventIngestWriter));
    let body = body(is_mariadb);
    let comment = format!("hooksaga {}", fingerprint(&body));

    let there: Option<(String, String, String)> = checked(connection.query_first(LOOK).await)?;
    if let Some((found, definer, login)) = &there
        && *found == comment
        && is_definer(definer, login, role.as_deref(), is_mariadb)
    {
        return Ok(());
    }
    if there.is_some() && !is_mariadb {
        tracing::warn!(
            "hooksaga_append was recreated, and MySQL drops its grants with that: grant EXECUTE to its callers again"
        );
        checked(connection.query_drop("DROP PROCEDURE IF EXISTS hooksaga_append").await)?;
    }
    let create = |definer: &str| body.replace("@comment@", &comment).replace("@definer@", definer);
    let Some(role) = role else {
        return denied(connection.query_drop(create("CURRENT_USER")).await);
    };
    let role = literal(&role);
    if is_mariadb {
        checked(connection.query_drop(format!("SET ROLE {role}")).await)?;
        let created = connection.query_drop(create("CURRENT_ROLE")).await;
        checked(connection.query_drop("SET ROLE NONE").await)?;
        return denied(created);
    }
    match connection.query_drop(create(&format!("{role}@'%'"))).await {
        Err(error) if code(&error) == Some(MISSING_RIGHT) => {
            tracing::warn!(
                "hooksaga_append runs with the rights of the login that migrates: grant it SET_USER_ID (from MySQL 8.2 \
                 SET_ANY_DEFINER) and run `hooksaga migrate` again, and it has those of {role} only"
            );
            denied(connection.query_drop(create("CURRENT_USER")).await)
        }
        created => denied(created),
    }
}

/// The statement for a server, without its definer and comment.
fn body(is_mariadb: bool) -> String {
    let (or_replace, isolation, valid) = match is_mariadb {
        true => ("OR REPLACE", "@@session.tx_isolation", MARIADB_JSON),
        false => ("", "@@session.transaction_isolation", MYSQL_JSON),
    };
    let (_, procedure) = PROCEDURE.split_once("\n\n").expect("the comment ends with an empty line");
    procedure
        .replace("@or_replace@", or_replace)
        .replace("@isolation@", isolation)
        .replace("@valid@", valid.trim_end())
}

/// Whether the procedure has the right definer: the role, or the login if there is no role or (MySQL) if the role could not be
/// set as the definer.
fn is_definer(definer: &str, login: &str, role: Option<&str>, is_mariadb: bool) -> bool {
    let name = definer.rsplit_once('@').map_or(definer, |(name, _)| name);
    role == Some(name) || (definer == login && (role.is_none() || !is_mariadb))
}

fn denied(result: Result<(), mysql_async::Error>) -> StoreResult<()> {
    result.map_err(|error| match store_error(&error) {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database login may not create the procedure hooksaga_append ({text}): grant it ALL on this database"
        )),
        other => other,
    })
}
