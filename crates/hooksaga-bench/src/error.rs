//! Why a measurement ended without figures.

use hooksaga_store::StoreError;
use std::fmt;

#[derive(Debug)]
pub enum BenchError {
    /// The scratch database failed.
    Store(StoreError),
    /// Anything else, in words.
    Other(String),
}

pub type BenchResult<T = ()> = Result<T, BenchError>;

impl BenchError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::Other(text.into())
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<StoreError> for BenchError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
