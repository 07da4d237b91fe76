//! From SQLite's errors to the store's, sorted by what the caller can do about them.

use hooksaga_store::StoreError;
use rusqlite::{Error as SqliteError, ErrorCode as Code};

/// What goes wrong inside a transaction. `?` takes both kinds; the engine hands on a [`StoreError`].
#[derive(Debug)]
pub(crate) enum DbError {
    Driver(SqliteError),
    Store(StoreError),
}

/// The result of work inside a transaction.
pub(crate) type DbResult<T> = Result<T, DbError>;

impl From<SqliteError> for DbError {
    fn from(error: SqliteError) -> Self {
        Self::Driver(error)
    }
}

impl From<StoreError> for DbError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<DbError> for StoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Store(error) => error,
            DbError::Driver(error) => store_error(&error),
        }
    }
}

/// The store's error for one of SQLite's. SQLite's texts name tables, columns and constraints, never
/// values; the SQL text that some of rusqlite's carry is left out all the same.
pub fn store_error(error: &SqliteError) -> StoreError {
    let (code, text) = match error {
        SqliteError::SqliteFailure(failure, text) => {
            (failure.code, text.clone().unwrap_or_else(|| failure.to_string()))
        }
        SqliteError::SqlInputError { error, msg, .. } => (error.code, msg.clone()),
        other => return StoreError::Other(other.to_string()),
    };
    match code {
        Code::AuthorizationForStatementDenied => StoreError::Denied(text),
        Code::ConstraintViolation => StoreError::Refused(text),
        Code::DatabaseBusy
        | Code::DatabaseLocked
        | Code::DiskFull
        | Code::SystemIoFailure
        | Code::OutOfMemory
        | Code::CannotOpen
        | Code::FileLockingProtocolFailed
        | Code::OperationInterrupted => StoreError::Unavailable(text),
        Code::ReadOnly => StoreError::Setup(format!(
            "the database cannot be written ({text}): make its file and folder writable for this user"
        )),
        Code::NotADatabase | Code::DatabaseCorrupt => StoreError::Setup(format!(
            "the database file is damaged or no database ({text}): restore it from a backup, or name another \
             file in database.url"
        )),
        _ => StoreError::Other(text),
    }
}
