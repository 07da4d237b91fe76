//! Times as DATETIME(6) in UTC, exact to the microsecond: as parameters, in results (binary and text), and as text in
//! the batches that go into SQL as JSON.

use hooksaga_saga::Timestamp;
use jiff::{SignedDuration, civil::DateTime};
use mysql_async::{FromValueError, Value, prelude::FromValue};
use std::{fmt::Write as _, time::Duration};

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
/// The earliest time that DATETIME takes: 1000-01-01.
const EARLIEST: i64 = -30_610_224_000 * 1_000_000;

/// A [`Timestamp`] as DATETIME(6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SqlTime(pub(crate) Timestamp);

impl SqlTime {
    fn civil(self) -> DateTime {
        let micros = self.0.as_micros().clamp(EARLIEST, Timestamp::MAX.as_micros());
        EPOCH.saturating_add(SignedDuration::from_micros(micros))
    }

    /// `2026-01-31 23:59:59.000001`, appended.
    pub(crate) fn write(self, text: &mut String) {
        let civil = self.civil();
        write!(text, "{} {:.6}", civil.date(), civil.time()).expect("writing to a String cannot fail");
    }

    /// As a literal in the text of a statement.
    pub(crate) fn literal(self) -> String {
        let mut text = String::from("'");
        self.write(&mut text);
        text.push('\'');
        text
    }

    fn from_civil(civil: DateTime) -> Option<Self> {
        let micros = civil.duration_since(EPOCH).as_micros();
        i64::try_from(micros).ok().map(|micros| Self(Timestamp::from_micros(micros)))
    }
}

impl From<SqlTime> for Value {
    fn from(time: SqlTime) -> Self {
        let civil = time.civil();
        // None is negative: the earliest time is in the year 1000.
        let small = |number: i8| number.unsigned_abs();
        Self::Date(
            civil.year().unsigned_abs(),
            small(civil.month()),
            small(civil.day()),
            small(civil.hour()),
            small(civil.minute()),
            small(civil.second()),
            civil.subsec_nanosecond().unsigned_abs() / 1000,
        )
    }
}

impl TryFrom<Value> for SqlTime {
    type Error = FromValueError;

    fn try_from(value: Value) -> Result<Self, FromValueError> {
        let civil = match &value {
            Value::Date(year, month, day, hours, minutes, seconds, micros) => {
                let small = |number: u8| i8::try_from(number).ok();
                let read = || {
                    let nanos = i32::try_from(*micros).ok()?.checked_mul(1000)?;
                    DateTime::new(
                        i16::try_from(*year).ok()?,
                        small(*month)?,
                        small(*day)?,
                        small(*hours)?,
                        small(*minutes)?,
                        small(*seconds)?,
                        nanos,
                    )
                    .ok()
                };
                read()
            }
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        civil.and_then(Self::from_civil).ok_or(FromValueError(value))
    }
}

impl FromValue for SqlTime {
    type Intermediate = Self;
}

/// A delay as a parameter of `INTERVAL ? MICROSECOND`; at most a century, so that no sum with the present leaves the
/// range of DATETIME.
pub(crate) fn micros(delay: Duration) -> i64 {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
    i64::try_from(delay.min(CENTURY).as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(micros: i64) -> String {
        let mut text = String::new();
        SqlTime(Timestamp::from_micros(micros)).write(&mut text);
        text
    }

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        assert_eq!(text(0), "1970-01-01 00:00:00.000000");
        assert_eq!(text(-1), "1969-12-31 23:59:59.999999");
        assert_eq!(text(951_782_400_000_001), "2000-02-29 00:00:00.000001");
        assert_eq!(text(1_709_251_199_123_456), "2024-02-29 23:59:59.123456");
        assert_eq!(text(Timestamp::MAX.as_micros()), "9999-12-31 23:59:59.999999");
        assert_eq!(text(i64::MIN), "1000-01-01 00:00:00.000000");
    }

    #[test]
    fn times_keep_their_microseconds_in_both_forms() {
        let mut micros = EARLIEST;
        while micros < Timestamp::MAX.as_micros() {
            let time = SqlTime(Timestamp::from_micros(micros));
            assert_eq!(SqlTime::try_from(Value::from(time)).ok(), Some(time));
            assert_eq!(
                SqlTime::try_from(Value::Bytes(text(micros).into())).ok(),
                Some(time),
                "{}",
                text(micros)
            );
            // Far apart, and at another place of the day and the year each time.
            micros += 1_234_567_890_123_457;
        }
    }

    #[test]
    fn short_fractions_and_other_values_are_understood() {
        let time =
            |text: &str| SqlTime::try_from(Value::Bytes(text.into())).ok().map(|time| time.0.as_micros());
        assert_eq!(time("1970-01-01 00:00:01"), Some(1_000_000));
        assert_eq!(time("1970-01-01 00:00:01.5"), Some(1_500_000));
        assert_eq!(time("yesterday"), None);
        assert!(SqlTime::try_from(Value::Int(1)).is_err());
    }

    #[test]
    fn absurd_delays_stay_in_range() {
        assert_eq!(micros(Duration::MAX), 100 * 366 * 24 * 3600 * 1_000_000);
        assert_eq!(micros(Duration::from_micros(7)), 7);
    }
}
