//! What a store call can fail with.

use std::time::Duration;

/// How long a query of the API's reader may take; then it is ended ([`StoreError::TooSlow`]).
pub const QUERY_LIMIT: Duration = Duration::from_secs(5);

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
    /// A query was ended after [`QUERY_LIMIT`]: a narrower one may succeed.
    #[error("the query took too long: {0}")]
    TooSlow(String),
    /// The database is there, but the call ran into a time limit, its own or that for a lock: a smaller one, or the same one
    /// later, may succeed.
    #[error("the database took too long: {0}")]
    TimedOut(String),
    /// The database is there and can be read, but takes no writes: its disk is full, or it is read-only. It may be writable
    /// later without this program's help.
    #[error("the database takes no writes: {0}")]
    Unwritable(String),
    /// Somebody else's transaction, which has not ended, holds what this call wants: the same call may succeed later, and
    /// others are not concerned.
    #[error("held up by another transaction: {0}")]
    Contended(String),
    /// The role may not do this: a bug here, or grants that do not fit this version.
    #[error("permission denied for the role: {0}")]
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
    /// What is the case, and what an operator does about it.
    pub fn with_advice(&self) -> (String, Option<String>) {
        let advice = match self {
            Self::Schema(line) | Self::Setup(line) => return split_advice(line),
            Self::Unavailable(_) => {
                "check that the database runs and that database.url is right, then try again"
            }
            Self::TooSlow(_) => "ask for less, or try again when the database has less to do",
            Self::TimedOut(_) => {
                "try again; if it stays so, look for long transactions and for what keeps the database busy"
            }
            Self::Unwritable(_) => "free space on the database's disk, or make it writable, then try again",
            Self::Contended(_) => {
                "try again; if it stays so, end the transaction that holds it (pg_stat_activity; SHOW PROCESSLIST)"
            }
            Self::Denied(_) => "run `hooksaga migrate` with this version, which renews the rights",
            Self::Refused(_) => {
                "nothing was changed; if nobody changed rows or the schema by hand, report this line as a bug"
            }
            Self::Other(_) => {
                "look at the database server's log; if it says nothing, report this line as a bug"
            }
        };
        (self.to_string(), Some(advice.to_owned()))
    }

    /// Whether the same call may succeed later without anyone's help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::TimedOut(_) | Self::Unwritable(_) | Self::Contended(_))
    }

    /// Whether it says something about the rows that the call was about, and not about the database as a whole: the same
    /// call for other rows may succeed.
    pub fn is_of_rows(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::TimedOut(_) | Self::Contended(_) | Self::Other(_))
    }
}

/// Splits one line that says what is the case and, after its last semicolon or colon, what to do.
pub fn split_advice(line: &str) -> (String, Option<String>) {
    match line.rfind("; ").max(line.rfind(": ")) {
        Some(at) => (line[..at].to_owned(), Some(line[at + 2..].to_owned())),
        None => (line.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_into_what_is_and_what_to_do() {
        for (line, found, advice) in [
            ("it is so: change it", "it is so", Some("change it")),
            ("a: b is c; change d", "a: b is c", Some("change d")),
            ("x (a; b): run y", "x (a; b)", Some("run y")),
            ("it is so", "it is so", None),
        ] {
            assert_eq!(split_advice(line), (found.to_owned(), advice.map(str::to_owned)), "{line}");
        }
    }

    #[test]
    fn a_cause_is_never_taken_for_advice() {
        let cause = || "one: two; three".to_owned();
        for error in [
            StoreError::Unavailable(cause()),
            StoreError::TooSlow(cause()),
            StoreError::TimedOut(cause()),
            StoreError::Unwritable(cause()),
            StoreError::Contended(cause()),
            StoreError::Denied(cause()),
            StoreError::Refused(cause()),
            StoreError::Other(cause()),
        ] {
            let (found, advice) = error.with_advice();
            assert_eq!(found, error.to_string());
            assert!(advice.is_some_and(|advice| !advice.contains("three")), "{error:?}");
        }
        let schema = StoreError::Schema("there is none (a: b): run `hooksaga migrate`".to_owned());
        let (found, advice) = schema.with_advice();
        assert_eq!((&*found, advice.as_deref()), ("there is none (a: b)", Some("run `hooksaga migrate`")));
    }

    #[test]
    fn only_what_concerns_the_rows_themselves_is_passed_over() {
        let text = String::new;
        for error in [
            StoreError::Refused(text()),
            StoreError::TimedOut(text()),
            StoreError::Contended(text()),
            StoreError::Other(text()),
        ] {
            assert!(error.is_of_rows(), "{error:?}");
        }
        for error in [
            StoreError::Unavailable(text()),
            StoreError::Unwritable(text()),
            StoreError::Denied(text()),
            StoreError::Schema(text()),
            StoreError::Setup(text()),
        ] {
            assert!(!error.is_of_rows(), "{error:?}");
        }
    }
}
