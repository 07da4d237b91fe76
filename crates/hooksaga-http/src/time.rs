//! Times as the API writes and reads them: RFC 3339, UTC, microseconds.

use hooksaga_saga::Timestamp;
use jiff::{SignedDuration, civil::DateTime};
use serde::{Serialize, Serializer};
use std::{borrow::Cow, fmt};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type},
    },
};

/// Times are civil times of UTC here: unlike the library's own timestamps, these reach to the end of the year 9999,
/// which is as far as the databases do.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// A point in time in a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApiTime(pub(crate) Timestamp);

impl From<Timestamp> for ApiTime {
    fn from(time: Timestamp) -> Self {
        Self(time)
    }
}

impl ApiTime {
    /// As a civil time of UTC.
    pub(crate) fn civil(self) -> DateTime {
        EPOCH.saturating_add(SignedDuration::from_micros(self.0.as_micros()))
    }
}

impl fmt::Display for ApiTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}Z", self.civil())
    }
}

impl Serialize for ApiTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PartialSchema for ApiTime {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .examples(["2026-01-31T12:00:00.123456Z"])
            .into()
    }
}

impl ToSchema for ApiTime {
    fn name() -> Cow<'static, str> {
        "Time".into()
    }
}

/// Reads a time of a filter. Fractions finer than a microsecond are rounded up, which changes neither "at or
/// after" nor "before" for times that are whole microseconds.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    let wrong = || {
        let hint = if text.contains(' ') { " (in a query, write + as %2B)" } else { "" };
        format!("must be an RFC 3339 time such as 2026-01-31T12:00:00Z{hint}")
    };
    let (date_time, offset) = split_rfc_3339(text).ok_or_else(wrong)?;
    let date_time: DateTime = date_time.parse().map_err(|_| wrong())?;
    let nanos = (date_time.duration_since(EPOCH) - offset).as_nanos();
    let micros = nanos.div_euclid(1000) + i128::from(nanos.rem_euclid(1000) != 0);
    i64::try_from(micros).map(Timestamp::from_micros).map_err(|_| wrong())
}

/// Splits `YYYY-MM-DDTHH:MM:SS`, perhaps with a fraction, from `Z` or an offset. The parser behind accepts more
/// forms than RFC 3339 has.
fn split_rfc_3339(text: &str) -> Option<(&str, SignedDuration)> {
    let fits = |pattern: &[u8], text: &[u8]| {
        pattern.len() == text.len()
            && pattern.iter().zip(text).all(|(pattern, byte)| match pattern {
                b'd' => byte.is_ascii_digit(),
                other => other.eq_ignore_ascii_case(byte),
            })
    };
    let (date_time, rest) = match text.strip_suffix(['Z', 'z']) {
        Some(date_time) => (date_time, None),
        None => text
            .split_at_checked(text.len().checked_sub(6)?)
            .map(|(date_time, rest)| (date_time, Some(rest)))?,
    };
    let offset = match rest.and_then(|rest| rest.split_at_checked(1)) {
        None => SignedDuration::ZERO,
        Some((sign, offset)) if fits(b"dd:dd", offset.as_bytes()) => {
            let (hours, minutes) = (offset[..2].parse::<i64>().ok()?, offset[3..].parse::<i64>().ok()?);
            let offset = SignedDuration::from_secs((hours * 60 + minutes) * 60);
            match sign {
                "+" if hours < 24 && minutes < 60 => offset,
                "-" if hours < 24 && minutes < 60 => -offset,
                _ => return None,
            }
        }
        Some(_) => return None,
    };
    let (whole, fraction) = date_time.split_once('.').unwrap_or((date_time, "0"));
    let fraction_fits =
        (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    (fits(b"dddd-dd-ddTdd:dd:dd", whole.as_bytes()) && fraction_fits).then_some((date_time, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_microsecond_rounded_up() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:01.5Z", 1_500_000),
            ("1970-01-01t00:00:00.000001z", 1),
            ("1970-01-01T00:00:00.000000001Z", 1),
            ("1969-12-31T23:59:59.999999999Z", 0),
            ("1970-01-01T02:00:00+02:00", 0),
            ("1969-12-31T22:30:00-01:30", 0),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000_000),
            ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
            ("9999-12-31T23:59:59-23:59", 253_402_300_799_999_999),
        ] {
            assert_eq!(parse(text).map(Timestamp::as_micros), Ok(micros), "{text}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "now",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-01-01 00:00:00Z",
            "1970-01-01T00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-01-01T25:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+02",
            "1970-01-01T00:00:00+24:00",
            "1970-01-01T00:00:00+00:60",
            "1970-01-01T00:00:00 00:00",
            "1970-01-01T00:00:00Z00:00",
            "1970-01-01T00:00:00.0000000001Z",
            "1970-01-01T00:00:00,5Z",
            "1970-01-01T00:00:00Z[UTC]",
            "-000001-01-01T00:00:00Z",
            "1970-01-01T00:00:00 02:00",
            "2026-02-30T00:00:00Zé",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_written_with_six_digits() {
        let json =
            |micros| serde_json::to_string(&ApiTime(Timestamp::from_micros(micros))).expect("a string");
        assert_eq!(json(0), "\"1970-01-01T00:00:00.000000Z\"");
        assert_eq!(json(Timestamp::MAX.as_micros()), "\"9999-12-31T23:59:59.999999Z\"");
        assert_eq!(json(1_700_000_000_120_000), "\"2023-11-14T22:13:20.120000Z\"");
    }
}
