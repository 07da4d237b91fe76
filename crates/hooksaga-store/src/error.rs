//! What a store call can fail with.

/// The result of a store call.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store call failed, sorted by what the caller can do about it.
///
/// Deadlocks and serialization failures are retried inside the back ends; what reaches a caller is final
/// for that call. The texts carry no secret and no payload.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, starting, or too busy: the same call may succeed later.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The role may not do this: a bug here, or grants that do not fit this version.
    #[error("the database refuses this to the role: {0}")]
    Denied(String),
    /// A constraint or trigger refused the write: an invariant would have been broken.
    #[error("the schema refuses this write: {0}")]
    Refused(String),
    /// The schema is missing, older or newer than this program: one line that says what to do.
    #[error("{0}")]
    Schema(String),
    /// The configuration or environment of the database is unusable: one line that says what to do.
    #[error("{0}")]
    Setup(String),
    /// Anything else, such as a row that this version cannot read.
    #[error("unexpected database error: {0}")]
    Other(String),
}

impl StoreError {
    /// Whether the same call may succeed later without anyone's help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}
