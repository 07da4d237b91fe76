//! From SQLite's errors to the store's, sorted by what the caller can do about them.

use hooksaga_store::StoreError;
use rusqlite::{Error as SqliteError, ErrorCode as Code, ffi};

/// What goes wrong inside a transaction. `?` takes both kinds; the engine hands on a [`StoreError`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    #[error(transparent)]
    Driver(#[from] SqliteError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of work inside a transaction.
pub(crate) type DbResult<T> = Result<T, DbError>;

impl From<DbError> for StoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Store(error) => error,
            DbError::Driver(error) => store_error(&error),
        }
    }
}

/// What fails when a file takes no more: a write, a sync, of the folder too, a truncation, growing the shared memory.
const WRITES: [i32; 5] = [
    ffi::SQLITE_IOERR_WRITE,
    ffi::SQLITE_IOERR_FSYNC,
    ffi::SQLITE_IOERR_DIR_FSYNC,
    ffi::SQLITE_IOERR_TRUNCATE,
    ffi::SQLITE_IOERR_SHMSIZE,
];

/// The store's error for one of SQLite's. SQLite's texts name tables, columns and constraints, never
/// values; the SQL text that some of rusqlite's carry is left out all the same. The number is SQLite's extended code, which
/// tells apart what has the same text.
pub fn store_error(error: &SqliteError) -> StoreError {
    let (code, extended, text) = match error {
        SqliteError::SqliteFailure(failure, text) => {
            let text = text.clone().unwrap_or_else(|| failure.to_string());
            (failure.code, failure.extended_code, format!("{text} (SQLite code {})", failure.extended_code))
        }
        SqliteError::SqlInputError { error, msg, .. } => {
            (error.code, error.extended_code, format!("{msg} (SQLite code {})", error.extended_code))
        }
        other => return StoreError::Other(other.to_string()),
    };
    match code {
        // A quota, or a limit on the size of files, for some.
        Code::SystemIoFailure if WRITES.contains(&extended) => StoreError::Unwritable(text),
        Code::AuthorizationForStatementDenied => StoreError::Denied(text),
        Code::ConstraintViolation => StoreError::Refused(text),
        Code::DatabaseBusy | Code::DatabaseLocked => StoreError::TimedOut(text),
        Code::DiskFull => StoreError::Unwritable(text),
        Code::SystemIoFailure | Code::OutOfMemory | Code::CannotOpen | Code::FileLockingProtocolFailed => {
            StoreError::Unavailable(text)
        }
        // Only a read that took too long is interrupted.
        Code::OperationInterrupted => StoreError::TooSlow(text),
        Code::ReadOnly => {
            StoreError::Unwritable(format!("{text}: make its file and folder writable for this user"))
        }
        Code::NotADatabase | Code::DatabaseCorrupt => StoreError::Setup(format!(
            "the database file is damaged or not a database ({text}): restore it from a backup, or name another \
             file in database.url"
        )),
        _ => StoreError::Other(text),
    }
}
