//! The few differences between the databases in how literals and times are written.

use hooksaga_saga::Timestamp;
use std::fmt::Write as _;

/// Which SQL a back end speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    MySql,
}

impl Dialect {
    /// A literal of the column type `time`.
    pub fn time(self, at: Timestamp) -> String {
        let micros = at.as_micros();
        match self {
            Self::Sqlite => micros.to_string(),
            Self::Postgres => format!("(timestamptz 'epoch' + {micros} * interval '1 microsecond')"),
            Self::MySql => format!("(TIMESTAMP'1970-01-01 00:00:00.000000' + INTERVAL {micros} MICROSECOND)"),
        }
    }

    /// The database's clock, as an expression of the column type `time`.
    pub fn now(self) -> &'static str {
        match self {
            Self::Sqlite => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
            Self::Postgres => "now()",
            Self::MySql => "UTC_TIMESTAMP(6)",
        }
    }

    /// An expression of the column type `time` as a whole number of microseconds since the Unix epoch.
    pub fn micros(self, time: &str) -> String {
        match self {
            Self::Sqlite => format!("({time})"),
            Self::Postgres => format!("(extract(epoch FROM {time}) * 1000000)::bigint"),
            Self::MySql => format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {time})"),
        }
    }

    /// The columns of a job beside the common ones, and their values for the first attempt, read from its saga; each with
    /// a comma before it.
    pub fn more_of_a_job(self) -> (&'static str, &'static str) {
        match self {
            Self::Sqlite | Self::MySql => ("", ""),
            Self::Postgres => (", event_id, attempt", ", event_id, 1"),
        }
    }

    /// A literal of the column type `bytes`.
    pub fn bytes(self, bytes: &[u8]) -> String {
        let mut hex = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            write!(hex, "{byte:02x}").unwrap();
        }
        match self {
            Self::Sqlite | Self::MySql => format!("X'{hex}'"),
            Self::Postgres => format!("'\\x{hex}'::bytea"),
        }
    }

    /// Statements after which the planner knows how full the tables are.
    pub fn analyze(self, tables: &[&str]) -> Vec<String> {
        let verb = match self {
            Self::Sqlite | Self::Postgres => "ANALYZE",
            Self::MySql => "ANALYZE TABLE",
        };
        tables.iter().map(|table| format!("{verb} {table}")).collect()
    }
}
