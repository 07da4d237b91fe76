//! Batches of rows as JSON texts: one parameter, whatever their number, that `JSON_TABLE` turns into a table (MySQL 8
//! and MariaDB 10.6 have it alike). So every statement has one text, is prepared once per connection, and its plan
//! is always driven by the given rows in their order.
//!
//! Text goes in as hexadecimal, read back with UNHEX: no escapes, and no character set in between. Identifiers are
//! compared as what they are stored as: see [`identifier!`].

use crate::time::SqlTime;
use hooksaga_saga::Timestamp;
use std::fmt::Write as _;

/// At this length a new document begins, so that none comes near `max_allowed_packet`.
const DOCUMENT_BYTES: usize = 1 << 20;

/// An identifier in a document, converted to the collation of the columns, so that a comparison can use their indexes.
macro_rules! identifier {
    ($column:literal) => {
        concat!("CONVERT(UNHEX(", $column, ") USING ascii) COLLATE ascii_bin")
    };
}
pub(crate) use identifier;

/// One column of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field<'a> {
    Int(i64),
    At(Timestamp),
    Text(&'a str),
    Null,
}

impl<'a> Field<'a> {
    pub(crate) fn maybe_text(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }

    pub(crate) fn maybe_int(number: Option<impl Into<i64>>) -> Self {
        number.map_or(Self::Null, |number| Self::Int(number.into()))
    }

    pub(crate) fn maybe_at(time: Option<Timestamp>) -> Self {
        time.map_or(Self::Null, Self::At)
    }

    fn write(self, json: &mut String) {
        match self {
            Self::Int(number) => write!(json, "{number}").expect("writing to a String cannot fail"),
            Self::At(at) => {
                json.push('"');
                SqlTime(at).write(json);
                json.push('"');
            }
            Self::Text(text) => {
                json.push('"');
                for byte in text.bytes() {
                    write!(json, "{byte:02x}").expect("writing to a String cannot fail");
                }
                json.push('"');
            }
            Self::Null => json.push_str("null"),
        }
    }
}

/// Rows, as one document or several.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    documents: Vec<String>,
    open: String,
}

impl Batch {
    /// One row per item.
    pub(crate) fn of<'a, T, const N: usize>(
        items: impl IntoIterator<Item = T>,
        row: impl Fn(T) -> [Field<'a>; N],
    ) -> Vec<String> {
        let mut batch = Self::default();
        for item in items {
            batch.push(&row(item));
        }
        batch.close();
        batch.documents
    }

    /// One row per id.
    pub(crate) fn ids(ids: impl IntoIterator<Item = i64>) -> Vec<String> {
        Self::of(ids, |id| [Field::Int(id)])
    }

    fn push(&mut self, row: &[Field<'_>]) {
        if self.open.len() > DOCUMENT_BYTES {
            self.close();
        }
        self.open.push(if self.open.is_empty() { '[' } else { ',' });
        for (i, field) in row.iter().enumerate() {
            self.open.push(if i == 0 { '[' } else { ',' });
            field.write(&mut self.open);
        }
        self.open.push(']');
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.open.push(']');
            self.documents.push(std::mem::take(&mut self.open));
        }
    }
}

/// Numbers for an `IN (…)` in the text of a statement; never empty, because SQL does not allow that.
pub(crate) fn list(ids: impl IntoIterator<Item = i64>) -> String {
    let mut text = String::new();
    for id in ids {
        if !text.is_empty() {
            text.push(',');
        }
        write!(text, "{id}").expect("writing to a String cannot fail");
    }
    if text.is_empty() {
        text.push_str("NULL");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_arrays_in_an_array() {
        let rows = [(1, Some("a\"b")), (-2, None)];
        let documents = Batch::of(rows, |(id, text)| {
            [Field::Int(id), Field::maybe_text(text), Field::At(Timestamp::from_micros(1))]
        });
        let expected =
            r#"[[1,"612262","1970-01-01 00:00:00.000001"],[-2,null,"1970-01-01 00:00:00.000001"]]"#;
        assert_eq!(documents, [expected]);
        assert_eq!(Batch::of([] as [i64; 0], |id| [Field::Int(id)]), [] as [String; 0]);
    }

    #[test]
    fn a_document_does_not_grow_without_bound() {
        let text = "x".repeat(4096);
        let documents = Batch::of(0..1000, |id| [Field::Int(id), Field::Text(&text)]);
        assert!(documents.len() > 7, "{}", documents.len());
        assert!(documents.iter().all(|document| document.len() < DOCUMENT_BYTES + 9000));
        assert!(documents.iter().all(|document| document.starts_with("[[") && document.ends_with("]]")));
    }

    #[test]
    fn a_list_is_never_empty() {
        assert_eq!(list([1, -2, 3]), "1,-2,3");
        assert_eq!(list([]), "NULL");
    }
}
