//! Collects everything that is wrong with a request, so that a client hears all of it at once.

use crate::problem::{FieldError, Kind, Problem};

/// More than this many errors are counted, not listed: the response stays readable and bounded.
const MAX_LISTED: usize = 4000;

/// A field name from the client is shown up to this many characters.
const MAX_NAME: usize = 100;

/// What is wrong so far.
#[derive(Debug, Default)]
pub(crate) struct FieldErrors {
    listed: Vec<FieldError>,
    unlisted: usize,
    /// How many of the errors say that something is too large.
    too_large: usize,
}

impl FieldErrors {
    pub(crate) fn add(&mut self, field: &str, detail: impl Into<String>) {
        if self.listed.len() == MAX_LISTED {
            self.unlisted += 1;
            return;
        }
        let field = match field.char_indices().nth(MAX_NAME) {
            Some((end, _)) => format!("{}…", &field[..end]),
            None => field.to_owned(),
        };
        self.listed.push(FieldError { field, detail: detail.into() });
    }

    /// A value that is over its size limit: 413, unless the request has other faults too.
    pub(crate) fn add_too_large(&mut self, field: &str, detail: impl Into<String>) {
        self.too_large += 1;
        self.add(field, detail);
    }

    /// Whether something is wrong with this field already.
    pub(crate) fn mentions(&self, field: &str) -> bool {
        self.listed.iter().any(|error| error.field.starts_with(field))
    }

    /// Notes the error of a result.
    pub(crate) fn note<T>(&mut self, field: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|detail| self.add(field, detail)).ok()
    }

    /// Nothing if nothing is wrong.
    pub(crate) fn check(self) -> Result<(), Problem> {
        let count = self.listed.len() + self.unlisted;
        let Some(first) = self.listed.first() else { return Ok(()) };
        let kind = if self.too_large == count { Kind::TooLarge } else { Kind::Invalid };
        let detail = match count {
            1 => format!("{}: {}", first.field, first.detail),
            _ => format!("{}: {} (and {} more)", first.field, first.detail, count - 1),
        };
        Err(Problem::new(kind, detail).with_errors(self.listed))
    }
}

/// What a handler gets when a value was missing although no error was noted: a fault of this program, told
/// as such instead of a panic.
pub(crate) fn complete<T>(errors: FieldErrors, value: Option<T>) -> Result<T, Problem> {
    errors.check()?;
    value.ok_or_else(|| Problem::new(Kind::Internal, "the request could not be read"))
}
