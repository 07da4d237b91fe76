//! How to reach a database server: the options of both server back ends.

use crate::Role;
use std::{collections::BTreeMap, fmt};

/// Whether connections take on their component's role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoleMode {
    /// Each component's connections switch to its role right at the start of the session.
    #[default]
    Switch,
    /// No roles: for hosted databases where they cannot be created.
    Off,
}

/// How to reach the database.
#[derive(Clone)]
pub struct ServerOptions {
    /// `postgres://…`, as tokio-postgres reads it (several hosts and `target_session_attrs` included), or `mysql://…` or
    /// `mariadb://…`, with mysql_async's parameters. What is about TLS both back ends read with
    /// [`TlsParameters`](crate::database_tls::TlsParameters).
    pub url: String,
    /// A login of its own for some or all roles; such connections do not switch.
    pub role_urls: BTreeMap<Role, String>,
    pub roles: RoleMode,
    /// Each role has a pool of its own (on PostgreSQL the orchestrator one for each of its two loops), and opens connections
    /// only as it needs them.
    pub max_connections_per_role: usize,
}

impl fmt::Debug for ServerOptions {
    /// Without the URLs: they hold passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("role_urls", &self.role_urls.keys().collect::<Vec<_>>())
            .field("roles", &self.roles)
            .field("max_connections_per_role", &self.max_connections_per_role)
            .finish_non_exhaustive()
    }
}

impl ServerOptions {
    /// The login of a URL alone.
    pub fn login(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            role_urls: BTreeMap::new(),
            roles: RoleMode::Off,
            max_connections_per_role: 1,
        }
    }

    /// Whether this role's connections come from `url`, rather than a URL of their own.
    pub fn shares_login(&self, role: Role) -> bool {
        !self.role_urls.contains_key(&role)
    }

    /// Whether this role's connections log in as somebody else and then switch to it.
    pub fn switches(&self, role: Role) -> bool {
        self.roles == RoleMode::Switch && self.shares_login(role)
    }

    /// Where this role's connections log in, and the configuration's key for that.
    pub fn url_of(&self, role: Role) -> (String, &str) {
        match self.role_urls.get(&role) {
            Some(url) => (format!("database.role_urls.{role}"), url),
            None => ("database.url".to_owned(), &self.url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(roles: RoleMode) -> ServerOptions {
        let role_urls = BTreeMap::from([(Role::KeyAdmin, "mysql://keys:hunter2@h/db".to_owned())]);
        ServerOptions { role_urls, roles, ..ServerOptions::login("mysql://u:hunter2@h/db") }
    }

    #[test]
    fn a_role_with_its_own_login_does_not_switch() {
        let switching = options(RoleMode::Switch);
        assert!(switching.switches(Role::ApiReader) && !switching.switches(Role::KeyAdmin));
        assert!(!options(RoleMode::Off).switches(Role::ApiReader));
        assert_eq!(switching.url_of(Role::KeyAdmin).0, "database.role_urls.key_admin");
        assert_eq!(switching.url_of(Role::ApiReader).0, "database.url");
    }

    #[test]
    fn debug_shows_no_url() {
        let text = format!("{:?}", options(RoleMode::Switch));
        assert!(!text.contains("hunter2") && text.contains("KeyAdmin"), "{text}");
    }
}
