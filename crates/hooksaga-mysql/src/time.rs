//! Times as DATETIME(6) in UTC, exact to the microsecond: as parameters, in results (binary and text), and as text in
//! the batches that go into SQL as JSON.

use hooksaga_saga::Timestamp;
use mysql_async::{FromValueError, Value, prelude::FromValue};
use std::{fmt::Write as _, time::Duration};

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// The earliest time that DATETIME takes: 1000-01-01.
const EARLIEST: i64 = -30_610_224_000 * SECOND;

/// A [`Timestamp`] as DATETIME(6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) Timestamp);

/// A point in the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    /// Within the day.
    micros: i64,
}

impl Civil {
    /// The proleptic Gregorian calendar, counted from 0000-03-01 in eras of 400 years, so that the leap day is the
    /// last of a year.
    fn from_micros(micros: i64) -> Self {
        let days = micros.div_euclid(DAY) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        Self {
            year: year_of_era + era * 400 + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            micros: micros.rem_euclid(DAY),
        }
    }

    fn as_micros(self) -> i64 {
        let year = self.year - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let shifted_month = (self.month + 9) % 12;
        let day_of_year = (153 * shifted_month + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (era * 146_097 + day_of_era - 719_468) * DAY + self.micros
    }
}

impl Time {
    fn civil(self) -> Civil {
        Civil::from_micros(self.0.as_micros().clamp(EARLIEST, Timestamp::MAX.as_micros()))
    }

    /// `2026-01-31 23:59:59.000001`, appended.
    pub(crate) fn write(self, text: &mut String) {
        let Civil { year, month, day, micros } = self.civil();
        let (seconds, fraction) = (micros / SECOND, micros % SECOND);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(text, "{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02}.{fraction:06}")
            .expect("writing to a String cannot fail");
    }

    /// As a literal in the text of a statement.
    pub(crate) fn literal(self) -> String {
        let mut text = String::from("'");
        self.write(&mut text);
        text.push('\'');
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
        let mut fraction = text.get(20..).unwrap_or("").to_owned();
        fraction.push_str("000000");
        let fraction: i64 = fraction.get(..6)?.parse().ok()?;
        let seconds = number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
        Some(Self::from_civil(Civil {
            year: number(0..4)?,
            month: number(5..7)?,
            day: number(8..10)?,
            micros: seconds * SECOND + fraction,
        }))
    }

    fn from_civil(civil: Civil) -> Self {
        Self(Timestamp::from_micros(civil.as_micros()))
    }
}

impl From<Time> for Value {
    fn from(time: Time) -> Self {
        let Civil { year, month, day, micros } = time.civil();
        let seconds = micros / SECOND;
        let small = |number: i64| u8::try_from(number).unwrap_or(0);
        Self::Date(
            u16::try_from(year).unwrap_or(9999),
            small(month),
            small(day),
            small(seconds / 3600),
            small(seconds / 60 % 60),
            small(seconds % 60),
            u32::try_from(micros % SECOND).unwrap_or(0),
        )
    }
}

impl TryFrom<Value> for Time {
    type Error = FromValueError;

    fn try_from(value: Value) -> Result<Self, FromValueError> {
        let time = match &value {
            Value::Date(year, month, day, hours, minutes, seconds, micros) => {
                let seconds = i64::from(*hours) * 3600 + i64::from(*minutes) * 60 + i64::from(*seconds);
                Some(Self::from_civil(Civil {
                    year: (*year).into(),
                    month: (*month).into(),
                    day: (*day).into(),
                    micros: seconds * SECOND + i64::from(*micros),
                }))
            }
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok().and_then(Self::parse),
            _ => None,
        };
        time.ok_or(FromValueError(value))
    }
}

impl FromValue for Time {
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
        Time(Timestamp::from_micros(micros)).write(&mut text);
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
            let time = Time(Timestamp::from_micros(micros));
            assert_eq!(Time::try_from(Value::from(time)).ok(), Some(time));
            assert_eq!(Time::parse(&text(micros)), Some(time), "{}", text(micros));
            // Far apart, and at another place of the day and the year each time.
            micros += 1_234_567_890_123_457;
        }
    }

    #[test]
    fn short_fractions_and_other_values_are_understood() {
        let time = |text: &str| Time::try_from(Value::Bytes(text.into())).ok().map(|time| time.0.as_micros());
        assert_eq!(time("1970-01-01 00:00:01"), Some(1_000_000));
        assert_eq!(time("1970-01-01 00:00:01.5"), Some(1_500_000));
        assert_eq!(time("yesterday"), None);
        assert!(Time::try_from(Value::Int(1)).is_err());
    }

    #[test]
    fn absurd_delays_stay_in_range() {
        assert_eq!(micros(Duration::MAX), 100 * 366 * 24 * 3600 * 1_000_000);
        assert_eq!(micros(Duration::from_micros(7)), 7);
    }
}
