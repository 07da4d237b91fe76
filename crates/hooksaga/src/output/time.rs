//! Times for people: how long ago or how soon, and RFC 3339 in UTC.

use jiff::Timestamp;
use std::time::Duration;

/// The moment that relative times refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now(Timestamp);

impl Now {
    /// This machine's clock. Only for people to read: nothing is decided by it.
    pub(crate) fn local() -> Self {
        Self(Timestamp::now())
    }

    /// Another clock's time, such as the server's.
    pub(crate) fn parse(time: &str) -> Option<Self> {
        time.parse().ok().map(Self)
    }

    #[cfg(test)]
    pub(crate) fn at(text: &str) -> Self {
        Self(text.parse().expect("a time"))
    }

    /// `3m ago` or `in 25s`. A text that is not a time is shown unchanged.
    pub(crate) fn relative(self, time: &str) -> String {
        let Ok(at) = time.parse::<Timestamp>() else { return time.to_owned() };
        let seconds = at.as_second() - self.0.as_second();
        match (seconds, short(seconds.unsigned_abs())) {
            (0, _) => "now".to_owned(),
            (1.., span) => format!("in {span}"),
            (_, span) => format!("{span} ago"),
        }
    }

    /// `2026-01-31T12:00:00Z (3m ago)`.
    pub(crate) fn both(self, time: &str) -> String {
        match time.parse::<Timestamp>() {
            Ok(at) => format!("{} ({})", to_seconds(at), self.relative(time)),
            Err(_) => time.to_owned(),
        }
    }

    /// How long it is until then; nothing for the past and for what is no time.
    pub(crate) fn until(self, time: &str) -> Duration {
        let at = time.parse::<Timestamp>().unwrap_or(self.0);
        Duration::try_from(at.duration_since(self.0)).unwrap_or_default()
    }

    /// How long ago it was; nothing for the future and for what is no time.
    pub(crate) fn since(self, time: &str) -> Duration {
        let at = time.parse::<Timestamp>().unwrap_or(self.0);
        Duration::try_from(self.0.duration_since(at)).unwrap_or_default()
    }

    /// The time this long ago, as RFC 3339.
    pub(crate) fn before(self, span: Duration) -> Option<String> {
        self.0.checked_sub(span).ok().map(|time| format!("{time:.6}"))
    }

    /// `12:00:00`.
    pub(crate) fn time_of_day(self) -> String {
        self.0.strftime("%H:%M:%S").to_string()
    }
}

/// Microseconds since 1970 as RFC 3339, to the second.
pub(crate) fn rfc3339(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map_or_else(|_| micros.to_string(), to_seconds)
}

/// A whole minute, one to two minutes earlier: a start for what may have come at that time.
pub(crate) fn a_little_before(time: &str) -> String {
    let Ok(at) = time.parse::<Timestamp>() else { return time.to_owned() };
    minute_before(at, Duration::from_secs(60))
}

/// A start for what may have been routed at that time, which is later than it came: a whole minute ten to eleven minutes earlier, but
/// nothing before `beginning`.
pub(crate) fn well_before(time: &str, beginning: &str) -> String {
    let Ok(at) = time.parse::<Timestamp>() else { return time.to_owned() };
    let start = minute_before(at, Duration::from_secs(600));
    let earliest = beginning
        .parse::<Timestamp>()
        .is_ok_and(|beginning| start.parse::<Timestamp>().is_ok_and(|start| start < beginning));
    if earliest { beginning.to_owned() } else { start }
}

fn minute_before(at: Timestamp, span: Duration) -> String {
    at.checked_sub(span).unwrap_or(at).strftime("%Y-%m-%dT%H:%M:00Z").to_string()
}

fn to_seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A span in its largest unit, cut.
fn short(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let (size, unit) = UNITS.into_iter().find(|(size, _)| seconds >= *size).unwrap_or((1, "s"));
    format!("{}{unit}", seconds / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_before_is_some_minutes_and_never_before_the_beginning() {
        let at = "2026-01-31T12:00:30.5Z";
        assert_eq!(well_before(at, "2026-01-01T00:00:00Z"), "2026-01-31T11:50:00Z");
        assert_eq!(well_before(at, "2026-01-31T11:55:00.123456Z"), "2026-01-31T11:55:00.123456Z");
        assert_eq!(well_before(at, "whenever"), "2026-01-31T11:50:00Z");
        assert_eq!(well_before("whenever", at), "whenever");
    }

    #[test]
    fn relative_times_are_short() {
        let now = Now::at("2026-01-31T12:00:00Z");
        for (time, expected) in [
            ("2026-01-31T12:00:00.900000Z", "now"),
            ("2026-01-31T11:59:59Z", "1s ago"),
            ("2026-01-31T11:56:01Z", "3m ago"),
            ("2026-01-31T09:00:00+01:00", "4h ago"),
            ("2026-01-28T12:00:00Z", "3d ago"),
            ("2026-01-31T12:00:25Z", "in 25s"),
            ("2026-01-31T13:30:00Z", "in 1h"),
            ("whenever", "whenever"),
        ] {
            assert_eq!(now.relative(time), expected, "{time}");
        }
        assert_eq!(now.both("2026-01-31T11:59:00.5Z"), "2026-01-31T11:59:00Z (1m ago)");
        assert_eq!(now.until("2026-01-31T12:00:01.5Z"), Duration::from_millis(1500));
        assert_eq!(now.until("2026-01-31T11:00:00Z"), Duration::ZERO);
        assert_eq!(now.before(Duration::from_secs(3600)).as_deref(), Some("2026-01-31T11:00:00.000000Z"));
        assert_eq!(now.before(Duration::from_secs(u64::MAX)), None);
    }

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(rfc3339(1_700_000_000_123_456), "2023-11-14T22:13:20Z");
    }
}
