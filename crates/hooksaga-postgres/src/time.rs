//! Times in PostgreSQL's binary form, exact to the microsecond: no text, no float, no time zone between.

use bytes::{BufMut as _, BytesMut};
use hooksaga_saga::Timestamp;
use std::{error::Error, time::Duration};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// 2000-01-01T00:00:00Z, PostgreSQL's epoch, in microseconds after the Unix epoch.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// A [`Timestamp`] as a `timestamptz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SqlTime(pub(crate) Timestamp);

impl ToSql for SqlTime {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64(self.0.as_micros().saturating_sub(POSTGRES_EPOCH));
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for SqlTime {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        // `infinity` is the largest number there is, and becomes the latest time.
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(POSTGRES_EPOCH);
        Ok(Self(Timestamp::from_micros(micros)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// A delay as a parameter that SQL multiplies with `interval '1 microsecond'`; at most a century, so that no
/// sum with the present can leave the range of `timestamptz`.
pub(crate) fn micros(delay: Duration) -> i64 {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
    i64::try_from(delay.min(CENTURY).as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(micros: i64) -> i64 {
        let mut bytes = BytesMut::new();
        let result = SqlTime(Timestamp::from_micros(micros)).to_sql(&Type::TIMESTAMPTZ, &mut bytes);
        assert!(matches!(result, Ok(IsNull::No)));
        SqlTime::from_sql(&Type::TIMESTAMPTZ, &bytes).map(|time| time.0.as_micros()).unwrap_or(i64::MIN)
    }

    #[test]
    fn times_keep_their_microseconds() {
        for micros in [0, 1, POSTGRES_EPOCH - 1, POSTGRES_EPOCH, 1_700_000_000_123_457] {
            assert_eq!(round_trip(micros), micros);
        }
        assert_eq!(round_trip(Timestamp::MAX.as_micros()), Timestamp::MAX.as_micros());
    }

    #[test]
    fn infinity_is_the_latest_time() {
        let infinity = i64::MAX.to_be_bytes();
        let time = SqlTime::from_sql(&Type::TIMESTAMPTZ, &infinity).ok();
        assert_eq!(time, Some(SqlTime(Timestamp::MAX)));
    }

    #[test]
    fn absurd_delays_stay_in_range() {
        assert_eq!(micros(Duration::MAX), 100 * 366 * 24 * 3600 * 1_000_000);
        assert_eq!(micros(Duration::from_micros(7)), 7);
    }
}
