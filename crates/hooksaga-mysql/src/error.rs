//! Turns errors of the server and the driver into the store's: one line each, without passwords and without the contents of
//! rows.

use hooksaga_store::{StoreError, StoreResult, database_tls::handshake_failure};
use mysql_async::{DriverError, Error, IoError, ServerError};
use std::io;

/// Galera: the node is not in the cluster's group.
const OUTSIDE_GROUP: u16 = 1047;

/// A failure inside a store call, before it is decided whether to try again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    #[error(transparent)]
    Driver(#[from] Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another open transaction holds a key that this one wants to insert; this one has locked nothing.
    #[error("{0}")]
    Held(String),
    /// The server did not give consecutive ids to the rows of one statement; the next try inserts them one by one.
    #[error("the ids of a multi-row insert are not one run")]
    Renumbered,
}

/// The result of work inside a transaction.
pub(crate) type DbResult<T> = Result<T, DbError>;

impl From<DbError> for StoreError {
    fn from(failure: DbError) -> Self {
        match failure {
            DbError::Driver(error) => store_error(&error),
            DbError::Store(error) => error,
            DbError::Held(what) => StoreError::Contended(what),
            DbError::Renumbered => {
                StoreError::Unavailable("the ids of a multi-row insert are not one run".to_owned())
            }
        }
    }
}

/// Why another try may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryAdvice {
    /// The database ended this transaction in favour of another. In a Galera Cluster that happens if transactions on two
    /// nodes write the same row: the second one to commit fails.
    AtOnce,
    /// Another transaction has not ended yet.
    WhileHeld,
    /// It has waited for a lock for long already, or was interrupted.
    Once,
    No,
}

impl DbError {
    /// A row that this version cannot read.
    pub(crate) fn unreadable(what: impl std::fmt::Display) -> Self {
        Self::Store(StoreError::Other(what.to_string()))
    }

    /// A query of the API's reader took too long, and the server ended it.
    pub(crate) fn of_a_query(self) -> Self {
        match self.code() {
            // MariaDB; MySQL.
            Some(1969 | 3024) => Self::Store(StoreError::TooSlow("ended by the server".to_owned())),
            _ => self,
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Driver(error) => code(error),
            Self::Store(_) | Self::Held(_) | Self::Renumbered => None,
        }
    }

    /// A lock was not free: the statement did not want to wait for it, or waited too long.
    pub(crate) fn is_locked_out(&self) -> bool {
        matches!(self.code(), Some(1205 | 3572))
    }

    /// A unique key is taken. If existing rows are looked up before an insert, another transaction has inserted one in
    /// between, and the next lookup finds it.
    pub(crate) fn is_duplicate(&self) -> bool {
        matches!(self.code(), Some(1062 | 1586))
    }

    /// Galera: the node is not in the cluster's group at the moment. Other nodes may be.
    pub(crate) fn is_outside_group(&self) -> bool {
        self.code() == Some(OUTSIDE_GROUP)
    }

    pub(crate) fn again(&self) -> RetryAdvice {
        match self {
            Self::Held(_) => return RetryAdvice::WhileHeld,
            Self::Renumbered => return RetryAdvice::AtOnce,
            Self::Driver(_) | Self::Store(_) => {}
        }
        match self.code() {
            // Deadlock, and Galera's conflict at commit; MariaDB: record has changed since last read.
            Some(1213 | 1020) => RetryAdvice::AtOnce,
            // It passes if the group only changes; nothing was done.
            Some(OUTSIDE_GROUP) => RetryAdvice::AtOnce,
            // Prepared statement needs to be re-prepared; table definition has changed: a migration ran meanwhile.
            Some(1615 | 1412) => RetryAdvice::AtOnce,
            // Interrupted: on Galera also by what another node has committed.
            Some(1205 | 1317) => RetryAdvice::Once,
            _ => RetryAdvice::No,
        }
    }
}

/// The server's number for an error, if it is the server's.
pub(crate) fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Server(error) => Some(error.code),
        _ => None,
    }
}

/// The store's error for one of the driver's.
pub fn store_error(error: &Error) -> StoreError {
    match error {
        Error::Server(error) => from_server(error),
        Error::Io(IoError::Tls(error)) => handshake_failure(&one_line(&error.to_string())),
        // The TLS library's own errors travel inside those of the socket.
        Error::Io(IoError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            handshake_failure(&one_line(&error.to_string()))
        }
        Error::Io(IoError::Io(error)) => StoreError::Unavailable(one_line(&error.to_string())),
        Error::Driver(DriverError::ConnectionClosed | DriverError::PoolDisconnected) => {
            StoreError::Unavailable("the connection was closed".to_owned())
        }
        Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            handshake_failure("the server does not support TLS")
        }
        Error::Driver(DriverError::PacketTooLarge) => too_large(),
        // These carry rows and values in their texts.
        Error::Driver(DriverError::FromRow { .. } | DriverError::FromValue { .. }) => {
            StoreError::Other("a row does not have the expected columns".to_owned())
        }
        Error::Driver(DriverError::UnexpectedPacket { .. } | DriverError::PacketOutOfOrder) => {
            StoreError::Unavailable("the server sent an unexpected response".to_owned())
        }
        other => StoreError::Other(one_line(&other.to_string())),
    }
}

fn too_large() -> StoreError {
    StoreError::Setup(
        "a statement is larger than the server's max_allowed_packet: set that to at least four times \
         server.max_payload_bytes (SET GLOBAL max_allowed_packet = …, and in the server's configuration)"
            .to_owned(),
    )
}

fn from_server(error: &ServerError) -> StoreError {
    let text = one_line(&error.message);
    match error.code {
        // Denied for a table, a column, a routine; a right that is not a table's.
        1142 | 1143 | 1370 | 1227 => StoreError::Denied(text),
        1044 => StoreError::Denied(format!("{text}: neither this login nor its role has rights there")),
        1045 | 1251 | 1524 | 1698 => {
            StoreError::Setup(format!("{text}: check user and password in database.url"))
        }
        1049 => StoreError::Setup(format!("{text}: create it, or name another in database.url")),
        1046 => StoreError::Setup(
            "database.url names no database: write it like mysql://LOGIN@HOST/DATABASE".to_owned(),
        ),
        // No such role, or not this login's.
        1959 | 3523 | 3530 => StoreError::Setup(format!(
            "cannot switch to a component's role ({text}): run `hooksaga migrate`, or set database.roles = \"off\""
        )),
        // No such table, column, index.
        1146 | 1054 | 1176 => StoreError::Schema(format!(
            "the database has no hooksaga schema of this version ({text}): run `hooksaga migrate`"
        )),
        // Duplicate key; NULL; CHECK (MySQL, MariaDB); a trigger's no; too long, out of range, no such value; a value
        // for a generated column.
        1062 | 1586 | 1048 | 3819 | 4025 | 1644 | 1406 | 1264 | 1265 | 1366 | 1364 | 1906 | 3105 => {
            StoreError::Refused(text)
        }
        1153 | 1301 => too_large(),
        1419 => StoreError::Setup(
            "the database server keeps a binary log and does not let this login create triggers: have an \
             administrator set log_bin_trust_function_creators = 1, or run `hooksaga migrate` with a login that \
             has SUPER"
                .to_owned(),
        ),
        1449 => StoreError::Setup(format!(
            "the login that created the triggers is gone ({text}): run `hooksaga migrate` with a login that stays"
        )),
        1665 => StoreError::Setup(format!(
            "{text} (hooksaga works in READ COMMITTED): set the server's binlog_format to ROW or MIXED"
        )),
        // Locks; the limit of a statement (MariaDB, MySQL).
        1205 | 3572 | 1969 | 3024 => StoreError::TimedOut(text),
        // Out of space; read-only (a replica after a failover).
        1021 | 1114 | 1290 | 1836 | 1792 => StoreError::Unwritable(text),
        // Errors of the file system, with its own number: no space left, over quota, read-only.
        1026 | 1030 if matches!(of_the_file_system(&text), Some("28" | "122" | "30")) => {
            StoreError::Unwritable(text)
        }
        // Galera at COMMIT: the group was lost, and whether the others have it is not known.
        1180 => StoreError::Unavailable(text),
        1105 if text.contains("WSREP") => StoreError::Unavailable(text),
        // Too many connections, shutdown, killed, out of memory, conflicts; Galera: not ready.
        1040 | 1203 | 1053 | 1927 | 1317 | 1037 | 1038 | 1041 | 1213 | 1020 | 1047 | 1152 | 1158 | 1159
        | 1160 | 1161 | 1615 | 1412 | 1226 | 2002 | 2006 | 2013 => StoreError::Unavailable(text),
        _ => match error.state.as_str() {
            "45000" | "23000" => StoreError::Refused(text),
            _ => StoreError::Other(format!("{text} ({})", error.code)),
        },
    }
}

/// The file system's error number, as MariaDB or MySQL quotes it. The text may contain other numbers, of files.
fn of_the_file_system(text: &str) -> Option<&str> {
    let (_, after) =
        ["(Errcode: ", "(OS errno ", "Got error "].iter().find_map(|said| text.split_once(said))?;
    after.split(|c: char| !c.is_ascii_digit()).next()
}

/// The store's error for a connection that failed to open. If rights are missing already here, the set-up is wrong.
pub(crate) fn from_connecting(error: &Error) -> StoreError {
    match store_error(error) {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database login may not do this ({text}): run `hooksaga migrate`, or hand the output of \
             `hooksaga migrate --print-roles` to an administrator"
        )),
        other => other,
    }
}

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A result of the driver outside the pools.
pub(crate) fn checked<T>(result: Result<T, Error>) -> StoreResult<T> {
    result.map_err(|error| store_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: u16, message: &str) -> DbError {
        let (message, state) = (message.to_owned(), "HY000".to_owned());
        DbError::Driver(Error::Server(ServerError { code, message, state }))
    }

    #[test]
    fn conflicts_of_a_cluster_are_tried_again_and_what_may_have_been_done_is_not() {
        let deadlock = "Deadlock found when trying to get lock; try restarting transaction";
        let unprepared = "WSREP has not yet prepared node for application use";
        for (code, text, again) in [
            (1213, deadlock, RetryAdvice::AtOnce),
            (1047, unprepared, RetryAdvice::AtOnce),
            (1317, "Query execution was interrupted", RetryAdvice::Once),
            (1205, "Lock wait timeout exceeded; try restarting transaction", RetryAdvice::Once),
            (1180, "Got error 6 \"No such device or address\" during COMMIT", RetryAdvice::No),
            (
                1105,
                "WSREP replication failed. Check your wsrep connection state and retry the query.",
                RetryAdvice::No,
            ),
        ] {
            let failure = server(code, text);
            assert_eq!(failure.again(), again, "{code}");
            let error = StoreError::from(failure);
            assert!(error.is_transient(), "clients are told to come back: {error:?}");
        }
        assert!(!StoreError::from(server(1105, "something else")).is_transient());
    }

    /// Errors as the servers return them; each kind has its own message and its own waiting time.
    #[test]
    fn time_limits_and_refused_writes_are_named_as_what_they_are() {
        let [slow, full, other] = ["TimedOut", "Unwritable", "Other"];
        for (code, text, kind) in [
            (1205, "Lock wait timeout exceeded; try restarting transaction", slow),
            (
                3572,
                "Statement aborted because lock(s) could not be acquired immediately and NOWAIT is set.",
                slow,
            ),
            (1969, "Query execution was interrupted (max_statement_time exceeded)", slow),
            (3024, "Query execution was interrupted, maximum statement execution time exceeded", slow),
            (
                1290,
                "The MariaDB server is running with the --read-only option so it cannot execute this statement",
                full,
            ),
            (1792, "Cannot execute statement in a READ ONLY transaction", full),
            (1836, "Running in read-only mode", full),
            (1114, "The table 'events' is full", full),
            (1021, "Disk full (/tmp/#sql-1.MAI); waiting for someone to free some space...", full),
            (1026, "Error writing file 'events' (Errcode: 28 \"No space left on device\")", full),
            (1026, "Error writing file 'events' (Errcode: 122 \"Disk quota exceeded\")", full),
            (1030, "Got error 30 \"Read-only file system\" from storage engine InnoDB", full),
            (1030, "Got error 28 \"No space left on device\" from storage engine InnoDB", full),
            (1026, "Error writing file 'events' (OS errno 28 - No space left on device)", full),
            // The same numbers of errors, and something else is wrong.
            (1030, "Got error 130 \"Incorrect file format\" from storage engine InnoDB", other),
            (1026, "Error writing file 'events-28x5' (Errcode: 5 \"Input/output error\")", other),
        ] {
            let error = StoreError::from(server(code, text));
            let is_that = match kind {
                "TimedOut" => matches!(error, StoreError::TimedOut(_)),
                "Unwritable" => matches!(error, StoreError::Unwritable(_)),
                _ => matches!(error, StoreError::Other(_)),
            };
            assert!(is_that, "{code} {text}: {error:?}");
        }
    }
}
