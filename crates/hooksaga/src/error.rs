//! Why a command failed: one line for people, with what to do about it.

use hooksaga_bench::BenchError;
use hooksaga_store::StoreError;
use std::fmt;

/// A failure that ends the program with exit code 1.
///
/// Its text is one line, whatever it is made of: an operator or a script reads exactly one line on stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliError(String);

/// What a command ends with.
pub(crate) type CliResult<T = ()> = Result<T, CliError>;

impl CliError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Self(lines.join(" "))
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        match (&error, error.with_advice()) {
            // They say themselves what to do.
            (StoreError::Schema(_) | StoreError::Setup(_), _) | (_, (_, None)) => {
                Self::new(error.to_string())
            }
            (_, (found, Some(advice))) => Self::new(format!("{found}; {advice}")),
        }
    }
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Store(error) => error.into(),
            BenchError::Other(text) => Self::new(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_always_one_line() {
        let away = CliError::from(StoreError::Unavailable("connection\nrefused".to_owned())).to_string();
        assert!(away.contains("connection refused; check") && !away.contains('\n'), "{away}");
        assert_eq!(CliError::new("first\n\n   second\r\n").to_string(), "first second");
    }
}
