//! Options that several lists share, and how their values are read.

use super::{QueryString, Remote};
use crate::{config::parse_duration, output::Now};
use clap::Args;
use hooksaga_saga::{EventType, Invalid, Tenant, is_visible_ascii};

/// How much of a list.
#[derive(Args, Debug)]
pub(in crate::cli) struct PageArgs {
    /// How many, newest first; 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(in crate::cli) limit: u32,

    /// Continue where an earlier list ended
    #[arg(long, value_name = "CURSOR", value_parser = visible)]
    pub(in crate::cli) cursor: Option<String>,
}

/// What every list takes.
#[derive(Args, Debug)]
pub(in crate::cli) struct CommonListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(in crate::cli) tenant: Option<Tenant>,

    #[command(flatten)]
    pub(in crate::cli) page: PageArgs,

    #[command(flatten)]
    pub(in crate::cli) remote: Remote,
}

/// One row, by its id.
#[derive(Args, Debug)]
pub(in crate::cli) struct One {
    /// The id that `list` shows
    #[arg(value_name = "ID", value_parser = id)]
    pub(in crate::cli) id: i64,

    #[command(flatten)]
    pub(in crate::cli) remote: Remote,
}

/// When something was created.
#[derive(Args, Debug)]
pub(in crate::cli) struct Period {
    /// Created then or later: an RFC 3339 time, or how long ago, such as 2h
    #[arg(long, value_name = "TIME", value_parser = since_or_time)]
    pub(in crate::cli) since: Option<String>,

    /// Created before: an RFC 3339 time, or how long ago, such as 30m
    #[arg(long, value_name = "TIME", value_parser = since_or_time)]
    pub(in crate::cli) until: Option<String>,
}

impl Period {
    pub(in crate::cli) fn add_to(&self, query: QueryString) -> QueryString {
        query.with("created_after", self.since.as_deref()).with("created_before", self.until.as_deref())
    }
}

/// Which events something is about.
#[derive(Args, Debug)]
pub(in crate::cli) struct OfEvents {
    /// Only those with this event type
    #[arg(long = "type", value_name = "TYPE", value_parser = event_type)]
    event_type: Option<EventType>,

    /// Only those with this external_id
    #[arg(long, value_name = "ID", value_parser = visible)]
    external_id: Option<String>,

    /// Only those with this correlation id
    #[arg(long, value_name = "ID", value_parser = visible)]
    correlation_id: Option<String>,

    #[command(flatten)]
    period: Period,
}

impl OfEvents {
    pub(in crate::cli) fn add_to(self, query: QueryString) -> QueryString {
        let query = query
            .with("event_type", self.event_type)
            .with("external_id", self.external_id)
            .with("correlation_id", self.correlation_id);
        self.period.add_to(query)
    }
}

/// A time: RFC 3339 as the API takes it, or a span before now.
pub(in crate::cli) fn since_or_time(text: &str) -> Result<String, String> {
    let wrong =
        || "write an RFC 3339 time such as 2026-01-31T12:00:00Z, or how long ago, such as 2h".to_owned();
    if let Ok(span) = parse_duration(text) {
        return Now::local().before(span).ok_or_else(wrong);
    }
    text.parse::<jiff::Timestamp>().map(|_| text.to_owned()).map_err(|_| wrong())
}

/// An id that a list has shown.
pub(in crate::cli) fn id(text: &str) -> Result<i64, String> {
    text.parse()
        .ok()
        .filter(|id| *id > 0)
        .ok_or_else(|| "an id is a positive number, as the lists show it".to_owned())
}

/// An event's id, also as receivers see it: `evt_17`.
pub(in crate::cli) fn event_id(text: &str) -> Result<i64, String> {
    id(text.strip_prefix("evt_").unwrap_or(text))
}

pub(in crate::cli) fn tenant(text: &str) -> Result<Tenant, String> {
    text.parse().map_err(|invalid: Invalid| format!("a tenant {invalid}"))
}

pub(in crate::cli) fn event_type(text: &str) -> Result<EventType, String> {
    text.parse().map_err(|invalid: Invalid| format!("an event type {invalid}"))
}

/// Visible ASCII without blanks: what every other identifier is made of.
pub(in crate::cli) fn visible(text: &str) -> Result<String, String> {
    if !is_visible_ascii(text, usize::MAX) {
        return Err("it must consist of visible ASCII characters, without blanks".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_both_forms() {
        assert_eq!(since_or_time("2026-01-31T12:00:00+01:00").as_deref(), Ok("2026-01-31T12:00:00+01:00"));
        let hour_ago = since_or_time("1h").expect("a span");
        assert!(["1h ago", "59m ago"].contains(&Now::local().relative(&hour_ago).as_str()), "{hour_ago}");
        for wrong in ["", "yesterday", "12:00", "-1h"] {
            assert!(since_or_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_are_positive_and_an_events_may_have_its_prefix() {
        assert_eq!((event_id("evt_17"), event_id("17"), id("17")), (Ok(17), Ok(17), Ok(17)));
        for wrong in ["0", "-1", "x", "evt_", "99999999999999999999"] {
            assert!(event_id(wrong).is_err(), "{wrong}");
        }
        assert!(id("evt_17").is_err());
    }
}
