//! Cursors. They are opaque to clients, and contain the kind of list and the id below which the next page begins (keyset
//! paging: every page costs the same, however far down the list it is, and new rows do not shift it).

use crate::problem::{Kind, Problem};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

/// The list that a cursor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    Events = b'e' as isize,
    Subscriptions = b's' as isize,
    Deliveries = b'd' as isize,
    DeadLetters = b'l' as isize,
    Redrives = b'r' as isize,
    Audit = b'a' as isize,
    Keys = b'k' as isize,
}

pub(crate) fn encode(list: ListKind, before: i64) -> String {
    let mut bytes = [0; 9];
    bytes[0] = list as u8;
    bytes[1..].copy_from_slice(&before.to_be_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// What the cursors of a list look like, as a regular expression: nine bytes, of which the first is the list's, and the next
/// begins with a zero bit, since no id is negative.
pub(crate) fn pattern(list: ListKind) -> String {
    let of = |second: u8| BASE64_URL_SAFE_NO_PAD.encode([list as u8, second, 0]);
    let first = of(0);
    let seconds: String = (0..8).filter_map(|high| of(high << 4).chars().nth(1)).collect();
    format!("^{}[{seconds}][A-Za-z0-9_-]{{10}}$", &first[..1])
}

pub(crate) fn decode(list: ListKind, cursor: &str) -> Result<i64, Problem> {
    let before = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|bytes| {
        let (kind, id) = bytes.split_first()?;
        let before = i64::from_be_bytes(id.try_into().ok()?);
        (*kind == list as u8 && before >= 0).then_some(before)
    });
    before.ok_or_else(|| {
        Problem::with_field(Kind::BadCursor, "cursor", "must be a next_cursor that this list has given out")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_the_cursors_of_its_list() {
        assert_eq!(pattern(ListKind::Events), "^Z[QRSTUVWX][A-Za-z0-9_-]{10}$");
        for id in [0, 1, 1 << 40, i64::MAX] {
            let cursor = encode(ListKind::Events, id);
            assert!(cursor.len() == 12 && cursor.starts_with('Z'), "{cursor}");
            assert!("QRSTUVWX".contains(&cursor[1..2]), "{cursor}");
        }
    }

    #[test]
    fn cursors_come_back_and_belong_to_one_list() {
        for id in [0, 1, 42, i64::MAX] {
            let cursor = encode(ListKind::Events, id);
            assert_eq!(decode(ListKind::Events, &cursor).ok(), Some(id));
            assert!(decode(ListKind::Deliveries, &cursor).is_err());
        }
        for bad in ["", "x", "ZQ", "====", "ZQAAAAAAAAABAA", "ZYAAAAAAAAAA"] {
            assert!(decode(ListKind::Events, bad).is_err(), "{bad}");
        }
    }
}
