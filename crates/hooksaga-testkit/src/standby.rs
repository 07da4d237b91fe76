//! A PostgreSQL primary with a synchronous standby. The test kills, freezes and promotes: there is no manager.

use crate::postgres::PostgresServer;

/// Two running servers. A commit on the primary waits until the standby has it.
#[derive(Debug)]
pub struct PostgresPair {
    pub primary: PostgresServer,
    pub standby: PostgresServer,
}

impl PostgresPair {
    pub fn start() -> Self {
        let primary = PostgresServer::start_with_settings(&["synchronous_standby_names=*"]);
        let standby = PostgresServer::start_as_standby_of(&primary);
        Self { primary, standby }
    }

    /// A URL with both hosts in it, for the primary's database `postgres`.
    pub fn url(&self, standby_first: bool) -> String {
        let (primary, standby) = (self.primary.port(), self.standby.port());
        let (first, second) = if standby_first { (standby, primary) } else { (primary, standby) };
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres")
    }
}
