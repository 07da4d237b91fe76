//! The roles' rights: `migrations/roles.sql`, compared with the rights that each role has on the server. Missing rights are
//! granted. A role that has more rights than it should have loses all of them and gets its own back. So a run that has nothing
//! to do changes nothing, and running components never lack a right.

use crate::{
    error::{checked, code, one_line, store_error},
    options::{identifier, literal},
    rights::role_name,
};
use hooksaga_store::{Role, StoreError, StoreResult};
use mysql_async::{Conn, Error, prelude::Queryable as _};
use std::{collections::BTreeSet, fmt};

const RIGHTS: &str = include_str!("../../migrations/roles.sql");

/// One right: on a table, on one column of it, or on a procedure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    /// The table or procedure; `*` for a right on the whole database or server.
    table: String,
    verb: String,
    column: Option<String>,
}

/// One GRANT of the file.
struct Grant<'a> {
    role: &'a str,
    table: &'a str,
    rights: &'a str,
    is_procedure: bool,
}

/// Gives every role exactly its rights on this database.
pub(crate) async fn grant_rights(connection: &mut Conn, database: &str) -> StoreResult<()> {
    for &role in Role::ALL {
        let name = literal(&role_name(database, role));
        let grants: Vec<Grant<'_>> = grants(role).collect();
        let wanted: BTreeSet<Right> =
            grants.iter().flat_map(|grant| parse(grant.rights, grant.table)).collect();
        let mut held = held(connection, &name).await?;
        if held.difference(&wanted).next().is_some() {
            run(connection, &format!("REVOKE ALL PRIVILEGES, GRANT OPTION FROM {name}")).await?;
            held.clear();
        }
        for grant in grants {
            if parse(grant.rights, grant.table).iter().any(|right| !held.contains(right)) {
                let kind = if grant.is_procedure { "PROCEDURE " } else { "" };
                let table = format!("{}.{}", identifier(database), identifier(grant.table));
                run(connection, &format!("GRANT {} ON {kind}{table} TO {name}", grant.rights)).await?;
            }
        }
    }
    Ok(())
}

/// The rights that a session lacks that runs as this role, such as `UPDATE (status) ON webhook_delivery_jobs`.
pub(crate) async fn lacking(connection: &mut Conn, role: Role) -> StoreResult<Vec<String>> {
    let version: Option<String> = checked(connection.query_first("SELECT VERSION()").await)?;
    // MariaDB shows the rights of the role that is in force; MySQL needs the role's name.
    let mut show = "SHOW GRANTS".to_owned();
    if !version.unwrap_or_default().contains("MariaDB") {
        let current: Option<String> = checked(connection.query_first("SELECT CURRENT_ROLE()").await)?;
        if let Some(role) = current.filter(|role| role != "NONE") {
            show = format!("SHOW GRANTS FOR CURRENT_USER() USING {role}");
        }
    }
    let lines: Vec<String> = checked(connection.query(show).await)?;
    let held: BTreeSet<Right> = lines.iter().filter_map(|line| shown(line)).flatten().collect();
    let wanted: BTreeSet<Right> = grants(role).flat_map(|grant| parse(grant.rights, grant.table)).collect();
    Ok(wanted.iter().filter(|right| !right.is_in(&held)).map(ToString::to_string).collect())
}

impl Right {
    /// Whether it was granted by itself, or with the whole table or database.
    fn is_in(&self, held: &BTreeSet<Self>) -> bool {
        let also = |table: &str, verb: &str| {
            held.contains(&Self { table: table.to_owned(), verb: verb.to_owned(), column: None })
        };
        held.contains(self)
            || [self.table.as_str(), "*"]
                .into_iter()
                .any(|table| also(table, &self.verb) || also(table, "ALL PRIVILEGES"))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.column {
            Some(column) => write!(f, "{} ({column}) ON {}", self.verb, self.table),
            None => write!(f, "{} ON {}", self.verb, self.table),
        }
    }
}

/// What the file gives to a role, and what every role has.
fn grants(role: Role) -> impl Iterator<Item = Grant<'static>> {
    let of_role = RIGHTS.lines().filter_map(grant_of).filter(move |grant| grant.role == role.as_str());
    let every = Grant { role: "", table: "schema_migrations", rights: "SELECT", is_procedure: false };
    of_role.chain([every])
}

/// `GRANT rights ON table TO role;`, or `… ON PROCEDURE name …`.
fn grant_of(line: &'static str) -> Option<Grant<'static>> {
    let rest = line.strip_prefix("GRANT ")?.strip_suffix(';')?;
    let (rest, role) = rest.rsplit_once(" TO ")?;
    let (rights, table) = rest.rsplit_once(" ON ")?;
    let procedure = table.strip_prefix("PROCEDURE ");
    Some(Grant { role, table: procedure.unwrap_or(table), rights, is_procedure: procedure.is_some() })
}

/// The rights that the server shows. If the login may not see them, the role counts as having none.
async fn held(connection: &mut Conn, name: &str) -> StoreResult<BTreeSet<Right>> {
    let lines: Vec<String> = match connection.query(format!("SHOW GRANTS FOR {name}")).await {
        Ok(lines) => lines,
        Err(error) if matches!(code(&error), Some(1044 | 1045 | 1141 | 1142 | 1143 | 1227)) => Vec::new(),
        Err(error) => return Err(store_error(&error)),
    };
    Ok(lines.iter().filter_map(|line| shown(line)).flatten().collect())
}

/// A line of SHOW GRANTS that is about rights: ``GRANT SELECT, UPDATE (`a`, `b`) ON `db`.`table` TO `role` ``.
fn shown(line: &str) -> Option<BTreeSet<Right>> {
    let rest = line.strip_prefix("GRANT ")?;
    let (rest, _) = rest.rsplit_once(" TO ")?;
    let (rights, place) = rest.rsplit_once(" ON ")?;
    if rights == "USAGE" {
        return None;
    }
    let table = place.rsplit_once('.').map_or(place, |(_, table)| table);
    Some(parse(rights, table.trim_matches('`')))
}

/// `SELECT, INSERT (a, b)` as single rights.
fn parse(rights: &str, table: &str) -> BTreeSet<Right> {
    let mut found = BTreeSet::new();
    let mut rest = rights;
    while !rest.is_empty() {
        let comma = rest.find(',').unwrap_or(rest.len());
        let open = rest.find('(').unwrap_or(rest.len());
        let (verb, columns, tail) = if open < comma {
            let close = rest.find(')').unwrap_or(rest.len() - 1);
            (&rest[..open], Some(&rest[open + 1..close]), &rest[close + 1..])
        } else {
            (&rest[..comma], None, &rest[comma..])
        };
        let right = |column: Option<&str>| Right {
            table: table.to_owned(),
            verb: verb.trim().to_uppercase(),
            column: column.map(|column| column.trim().trim_matches('`').to_owned()),
        };
        match columns {
            None => drop(found.insert(right(None))),
            Some(columns) => found.extend(columns.split(',').map(|column| right(Some(column)))),
        }
        rest = tail.trim_start_matches([',', ' ']);
    }
    found
}

async fn run(connection: &mut Conn, sql: &str) -> StoreResult<()> {
    connection.query_drop(sql).await.map_err(|error| not_allowed(&error))
}

fn not_allowed(error: &Error) -> StoreError {
    match store_error(error) {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database login may not pass rights on ({}): grant it ALL on this database WITH GRANT OPTION, or set \
             database.roles = \"off\"",
            one_line(&text)
        )),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_rights_and_every_line_is_understood() {
        for role in Role::ALL {
            assert!(grants(*role).count() > 1, "{role}");
        }
        let written = RIGHTS.lines().filter(|line| line.starts_with("GRANT")).count();
        assert_eq!(written, RIGHTS.lines().filter_map(grant_of).count());
    }

    #[test]
    fn rights_are_the_same_in_the_file_and_as_either_server_shows_them() {
        let file = parse("SELECT, INSERT (a, b), UPDATE (c)", "t");
        assert_eq!(file.len(), 4);
        for line in [
            "GRANT SELECT, INSERT (`b`, `a`), UPDATE (`c`) ON `db`.`t` TO `x_role`@`%`",
            "GRANT UPDATE (`c`), SELECT, INSERT (`a`, `b`) ON `db`.`t` TO `x_role`",
        ] {
            assert_eq!(shown(line).as_ref(), Some(&file));
        }
        let execute = "GRANT EXECUTE ON PROCEDURE `db`.`p` TO `x_role`";
        assert_eq!(shown(execute), Some(parse("EXECUTE", "p")));
        assert_eq!(shown("GRANT USAGE ON *.* TO `x_role`"), None);
        assert_eq!(shown("GRANT `other` TO `x_role`"), None);
        assert!(file.iter().all(|right| right.is_in(&file)));
        for wide in
            ["GRANT ALL PRIVILEGES ON `db`.* TO `u`", "GRANT SELECT, INSERT, UPDATE ON `db`.`t` TO `u`"]
        {
            let wide = shown(wide).unwrap_or_default();
            assert!(file.iter().all(|right| right.is_in(&wide)), "{wide:?}");
        }
        let narrow = shown("GRANT SELECT, INSERT (`a`), UPDATE (`c`) ON `db`.`t` TO `u`").unwrap_or_default();
        let lacking: Vec<String> =
            file.iter().filter(|right| !right.is_in(&narrow)).map(ToString::to_string).collect();
        assert_eq!(lacking, ["INSERT (b) ON t"]);
        let wide = shown("GRANT ALL PRIVILEGES ON `db`.* TO `x_role`").into_iter().flatten().next();
        assert_eq!(
            wide.map(|right| (right.table, right.verb)),
            Some(("*".to_owned(), "ALL PRIVILEGES".to_owned()))
        );
    }
}
