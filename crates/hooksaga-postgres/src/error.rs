//! Turns errors of PostgreSQL and the pool into the store's: one line each, without passwords and without the contents of
//! rows (for that reason the server's DETAIL is left out).

use deadpool_postgres::{HookError, PoolError, TimeoutType};
use hooksaga_store::{StoreError, StoreResult, database_tls::handshake_failure};
use std::{error::Error as _, io};
use tokio_postgres::error::{DbError as ServerError, SqlState};

/// A failure inside a store call, before it is decided whether to try again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    #[error(transparent)]
    Driver(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of work inside a transaction.
pub(crate) type DbResult<T> = Result<T, DbError>;

impl From<DbError> for StoreError {
    fn from(failure: DbError) -> Self {
        match failure {
            DbError::Driver(error) => store_error(&error),
            DbError::Store(error) => error,
        }
    }
}

impl DbError {
    /// A row that this version cannot read.
    pub(crate) fn unreadable(what: impl std::fmt::Display) -> Self {
        Self::Store(StoreError::Other(what.to_string()))
    }

    /// A query of the API's reader took too long, and the server ended it.
    pub(crate) fn of_a_query(self) -> Self {
        if self.code() == Some(&SqlState::QUERY_CANCELED) {
            return Self::Store(StoreError::TooSlow("ended by the server".to_owned()));
        }
        self
    }

    fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Driver(error) => error.code(),
            Self::Store(_) => None,
        }
    }

    /// Somebody has kept a lock for too long.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        self.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Nothing was written, and the same statements may succeed at once.
    pub(crate) fn is_retryable(&self) -> bool {
        self.code().is_some_and(|code| {
            [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
        }) || self.is_stale_plan()
    }

    /// The pool's open connections are of no more use: their server became a standby or goes away, or their
    /// prepared statements are older than the schema.
    pub(crate) fn spoils_connections(&self) -> bool {
        self.code().is_some_and(|code| {
            *code == SqlState::READ_ONLY_SQL_TRANSACTION || code.code().starts_with("57P")
        }) || self.is_stale_plan()
    }

    fn is_stale_plan(&self) -> bool {
        // "cached plan must not change result type": a migration ran under a prepared statement.
        match self {
            Self::Driver(error) => error.as_db_error().is_some_and(|error| {
                *error.code() == SqlState::FEATURE_NOT_SUPPORTED && error.message().contains("cached plan")
            }),
            Self::Store(_) => false,
        }
    }
}

/// The store's error for one of the driver's.
pub fn store_error(error: &tokio_postgres::Error) -> StoreError {
    if let Some(error) = error.as_db_error() {
        return from_database(error);
    }
    let text = describe(error);
    let is_io = error.source().is_some_and(|source| source.downcast_ref::<io::Error>().is_some());
    let kind = error.to_string();
    match kind.as_str() {
        "error performing TLS handshake" => {
            let problem = error.source().map_or_else(|| text.clone(), |cause| one_line(&cause.to_string()));
            handshake_failure(&problem)
        }
        "authentication error" | "invalid configuration" => {
            StoreError::Setup(format!("cannot log in to the database ({text}): check database.url"))
        }
        "error connecting to server" | "timeout waiting for server" => StoreError::Unavailable(text),
        _ if is_io || error.is_closed() => StoreError::Unavailable(text),
        _ => StoreError::Other(text),
    }
}

fn from_database(error: &ServerError) -> StoreError {
    let text = one_line(error.message());
    let code = error.code().code();
    match code {
        "42501" => StoreError::Denied(text),
        "42P01" | "42703" | "42704" | "42883" | "3F000" => StoreError::Schema(format!(
            "the database has no hooksaga schema of this version ({text}): run `hooksaga migrate`"
        )),
        "3D000" => StoreError::Setup(format!("{text}: create it, or name another in database.url")),
        // 22023: "role … does not exist", from the switch to the component's role.
        "22023" if text.contains("\"role\"") || text.contains("role \"") => StoreError::Setup(format!(
            "cannot switch to a component's role ({text}): run `hooksaga migrate`, or set database.roles = \"off\""
        )),
        "08P01" if text.contains("startup parameter") => StoreError::Setup(format!(
            "a connection pooler refuses the settings of a session ({text}): set ignore_startup_parameters = options \
             there (PgBouncer, with pool_mode = session)"
        )),
        // Somebody's lock; the limit of a statement.
        "55P03" | "57014" => StoreError::TimedOut(text),
        // A full disk; a read-only database, or a hot standby after a failover.
        "53100" | "25006" => StoreError::Unwritable(text),
        // For a quota and a limit on the size of files the server has no code of its own.
        "XX000" if text.contains("Disk quota exceeded") || text.contains("File too large") => {
            StoreError::Unwritable(text)
        }
        // A server that goes away, or lost against others: later it works.
        "25P03" | "40001" | "40P01" => StoreError::Unavailable(text),
        _ => match code.get(..2) {
            Some("23") => StoreError::Refused(match error.constraint() {
                Some(constraint) => format!("{text} ({constraint})"),
                None => text,
            }),
            Some("28") if text.contains("client certificate") => {
                StoreError::Setup(format!("{text}: name one with sslcert and sslkey in database.url"))
            }
            Some("28") if text.contains("no encryption") => StoreError::Setup(format!(
                "{text}: the server wants TLS; write sslmode=verify-full in database.url"
            )),
            Some("28") => StoreError::Setup(format!("{text}: check user and password in database.url")),
            Some("08" | "53" | "57") => StoreError::Unavailable(text),
            _ => StoreError::Other(format!("{text} ({code})")),
        },
    }
}

/// The boundary's error for a connection that the pool did not hand out.
pub(crate) fn from_pool(error: &PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            from_connecting(error)
        }
        PoolError::Timeout(TimeoutType::Wait) => {
            StoreError::Unavailable("no connection became free in time: all are busy".to_owned())
        }
        PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => {
            StoreError::Unavailable("the server did not respond in time to a new connection".to_owned())
        }
        other => StoreError::Unavailable(one_line(&other.to_string())),
    }
}

/// The boundary's error for a connection that did not come about. A role that the login may not take on shows
/// here as a missing right, and is a matter of set-up.
pub(crate) fn from_connecting(error: &tokio_postgres::Error) -> StoreError {
    match store_error(error) {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database login may not do this ({text}): run `hooksaga migrate`, or hand the output of \
             `hooksaga migrate --print-roles` to an administrator"
        )),
        other => other,
    }
}

/// A URL that cannot be parsed. The parser's text names the key at fault, never a value.
pub(crate) fn from_url(key: &str, error: &tokio_postgres::Error) -> StoreError {
    StoreError::Setup(format!(
        "{key} is not a usable PostgreSQL URL ({}): write it like postgres://LOGIN@HOST/DATABASE",
        describe(error)
    ))
}

/// The error with its cause.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.source() {
        Some(cause) => one_line(&format!("{error}: {cause}")),
        None => error.to_string(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A result of the driver outside the pools.
pub(crate) fn checked<T>(result: Result<T, tokio_postgres::Error>) -> StoreResult<T> {
    result.map_err(|error| store_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_hangs_is_not_a_pool_that_is_busy() {
        let text = |what| from_pool(&PoolError::Timeout(what)).to_string();
        assert!(text(TimeoutType::Wait).contains("all are busy"));
        assert!(text(TimeoutType::Create).contains("did not respond"));
    }
}
