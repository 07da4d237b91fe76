//! When a certificate is valid, read from its DER (RFC 5280, section 4.1). Nothing else of it is read.

use jiff::{Timestamp, civil::DateTime, tz::Offset};

const SEQUENCE: u8 = 0x30;
/// The explicit tag of the version, which may be left out.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Validity {
    /// Of one certificate; `None` if it is none.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let whole = Der(certificate).sequence()?;
        let mut fields = whole.clone().sequence()?;
        if fields.0.first() == Some(&VERSION) {
            fields.next()?;
        }
        // Serial number, signature algorithm, issuer.
        for _ in 0..3 {
            fields.next()?;
        }
        let mut validity = fields.sequence()?;
        Some(Self { from: validity.time()?, until: validity.time()? })
    }

    /// While both are valid.
    pub(super) fn and(self, other: Self) -> Self {
        Self { from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

/// Elements that are not read yet.
#[derive(Clone)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and the content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..0x80 => (usize::from(first), rest),
            // The number of bytes that follow, which hold the length.
            _ => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                if bytes.len() > 4 {
                    return None;
                }
                (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
            }
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    fn sequence(mut self) -> Option<Self> {
        self.next().filter(|(tag, _)| *tag == SEQUENCE).map(|(_, content)| Self(content))
    }

    fn time(&mut self) -> Option<Timestamp> {
        let (tag, text) = self.next()?;
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let two = |text: &str| if text.len() == 2 { text.parse::<i8>().ok() } else { None };
        let (year, rest) = match tag {
            UTC_TIME => {
                let (year, rest) = text.split_at_checked(2)?;
                let year = i16::from(two(year)?);
                (if year < 50 { 2000 + year } else { 1900 + year }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = text.split_at_checked(4)?;
                (year.parse().ok()?, rest)
            }
            _ => return None,
        };
        let part = |index: usize| two(rest.get(2 * index..2 * index + 2)?);
        let time = DateTime::new(year, part(0)?, part(1)?, part(2)?, part(3)?, part(4)?, 0).ok()?;
        Offset::UTC.to_timestamp(time).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(from: (i32, u8, u8), until: (i32, u8, u8)) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn both_forms_of_a_time_are_read() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        // From 2050 on times have the longer form.
        for (from, until) in [((1999, 12, 31), (2026, 2, 28)), ((2049, 1, 2), (2051, 3, 4))] {
            let read = Validity::of(&certificate(from, until)).expect("a certificate");
            let shown = |(year, month, day)| at(&format!("{year:04}-{month:02}-{day:02}T00:00:00Z"));
            assert_eq!(read, Validity { from: shown(from), until: shown(until) });
        }
    }

    #[test]
    fn the_narrower_one_counts() {
        let [long, short] = [((2020, 1, 1), (2040, 1, 1)), ((2025, 1, 1), (2026, 1, 1))]
            .map(|(from, until)| Validity::of(&certificate(from, until)).expect("a certificate"));
        assert_eq!(long.and(short), short);
        assert_eq!(short.and(long), short);
    }

    #[test]
    fn what_is_no_certificate_has_no_validity() {
        let whole = certificate((2020, 1, 1), (2040, 1, 1));
        for length in 0..100 {
            assert_eq!(Validity::of(&whole[..length]), None, "{length}");
        }
        for odd in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0x80], b"no DER"] {
            assert_eq!(Validity::of(odd), None, "{odd:?}");
        }
    }
}
