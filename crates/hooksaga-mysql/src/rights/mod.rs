//! The components' roles.
//!
//! Roles belong to the whole server, and a role has its rights in every database at once. So every database has roles
//! of its own: a login that may switch to the roles of one database gets no rights in another. So different logins can
//! migrate two databases, although on MariaDB only the login that created a role can grant it.

mod fence;
mod grants;

pub use fence::Fence;
pub(crate) use grants::{grant_rights, lacking};

use crate::{
    error::{checked, store_error},
    options::literal,
};
use hooksaga_store::{Role, ServerOptions, StoreError, StoreResult};
use mysql_async::{Conn, Error, prelude::Queryable as _};
use std::fmt::Write as _;

/// A role's name on MySQL has at most 32 characters: the longest role has 21, and one joins the two parts.
const PREFIX_LENGTH: usize = 10;

/// The first part of the names of a database's roles: the database's name if that is short and plain, else a hash of it.
pub(crate) fn prefix(database: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if (1..=PREFIX_LENGTH).contains(&database.len()) && database.chars().all(plain) {
        return database.to_owned();
    }
    // FNV-1a: it is the same in every version of this program, and on every machine.
    let hash = database.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("h{:09x}", hash >> 28)
}

/// A role's name on the server.
pub fn role_name(database: &str, role: Role) -> String {
    format!("{}_{role}", prefix(database))
}

/// Creates the roles that are missing, and lets the login switch to those that have no login of their own. Returns messages
/// about what it did.
pub(crate) async fn ensure(
    connection: &mut Conn,
    options: &ServerOptions,
    database: &str,
) -> StoreResult<String> {
    let me = account(connection).await?;
    let grants: Vec<String> = checked(connection.query("SHOW GRANTS FOR CURRENT_USER()").await)?;
    let mut made = 0;
    for &role in Role::ALL {
        let name = role_name(database, role);
        let quoted = literal(&name);
        // Both servers show a role that is granted as `name`@… or `name`, before the word TO.
        let granted = grants.iter().any(|grant| {
            grant.split(" TO ").next().is_some_and(|before| before.contains(&format!("`{name}`")))
        });
        if granted {
            continue;
        }
        let create = connection.query_drop(format!("CREATE ROLE IF NOT EXISTS {quoted}")).await;
        create.map_err(|error| not_allowed(&error, &name))?;
        made += 1;
        // Ingestion's role also has to be switched to here: it defines the outbox.
        if options.shares_login(role) || role == Role::EventIngestWriter {
            let pass_on = connection.query_drop(format!("GRANT {quoted} TO {me}")).await;
            pass_on.map_err(|error| not_allowed(&error, &name))?;
        }
    }
    let all = Role::ALL.len();
    let example = role_name(database, Role::RouterWorker);
    Ok(match made {
        0 => format!("{all} there already ({example}, …), rights renewed"),
        _ => format!("{made} of {all} set up ({example}, …), rights granted"),
    })
}

/// The account that the server sees, quoted.
async fn account(connection: &mut Conn) -> StoreResult<String> {
    let account: Option<String> = checked(connection.query_first("SELECT CURRENT_USER()").await)?;
    let account = account.unwrap_or_default();
    let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
    Ok(format!("{}@{}", literal(user), literal(host)))
}

fn not_allowed(error: &Error, name: &str) -> StoreError {
    match store_error(error) {
        // MariaDB says "invalid role specification" when the role is somebody else's.
        StoreError::Denied(text) | StoreError::Setup(text) => StoreError::Setup(format!(
            "the database login may not set up the role {name} ({text}): hand the output of \
             `hooksaga migrate --print-roles` to an administrator, then run `hooksaga migrate` again; or set \
             database.roles = \"off\""
        )),
        other => other,
    }
}

/// The SQL that creates the roles and lets `login` switch to them, for an administrator. `hooksaga migrate` grants the rights on
/// the tables afterwards, with a login that has them WITH GRANT OPTION.
pub fn role_sql(database: &str, login: &str) -> String {
    let mut sql = format!(
        "-- Run with the right to create roles (CREATE USER, or CREATE ROLE and ROLE_ADMIN); again does no harm.\n\
         -- Then run `hooksaga migrate`, which grants the rights on the tables: its login needs ALL on the database\n\
         -- WITH GRANT OPTION. Put the login's own host in the place of '%' if it has one.\n\
         -- For a login per role (database.role_urls), additionally, for each role:\n\
         --   CREATE USER 'router'@'%' IDENTIFIED BY '…';\n\
         --   GRANT '{0}' TO 'router'@'%';\n\
         --   SET DEFAULT ROLE '{0}' TO 'router'@'%';     -- MySQL; on MariaDB: … FOR 'router'@'%'\n",
        role_name(database, Role::RouterWorker)
    );
    for &role in Role::ALL {
        let name = literal(&role_name(database, role));
        let _ = writeln!(sql, "CREATE ROLE IF NOT EXISTS {name};");
        let _ = writeln!(sql, "GRANT {name} TO {}@'%';", literal(login));
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roles_fit_and_differ_by_database() {
        for database in ["hooksaga", "a", &"x".repeat(64), "My DB", "wähl", "hooksaga_staging"] {
            for role in Role::ALL {
                let name = role_name(database, *role);
                assert!(name.len() <= 32 && name.ends_with(role.as_str()), "{name}");
            }
        }
        assert_eq!(role_name("hooksaga", Role::RouterWorker), "hooksaga_router_worker");
        assert_ne!(prefix("hooksaga_staging"), prefix("hooksaga_testing"));
        assert_eq!(prefix("hooksaga_staging").len(), PREFIX_LENGTH);
    }

    #[test]
    fn the_administrators_sql_quotes_what_it_is_given() {
        let sql = role_sql("hooksaga", "o'hara");
        assert!(sql.contains("GRANT 'hooksaga_key_admin' TO 'o''hara'@'%';"), "{sql}");
        assert!(
            Role::ALL.iter().all(|role| sql.contains(&format!("IF NOT EXISTS 'hooksaga_{role}'"))),
            "{sql}"
        );
    }
}
