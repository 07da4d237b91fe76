//! The `Retry-After` header of a response.

use crate::Timestamp;
use std::time::{Duration, UNIX_EPOCH};

/// When the endpoint wants to be asked again: `text` is the header's value, a number of seconds after `now` or an HTTP
/// date in any of its three forms. Nothing for anything else, and for a date that has passed.
///
/// `now` is the database's, like every time that feeds a decision.
pub fn retry_after(text: &str, now: Timestamp) -> Option<Timestamp> {
    let text = text.trim_ascii();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Too many digits for a u64 are still a number of seconds: an absurd one.
        return Some(now.after(Duration::from_secs(text.parse().unwrap_or(u64::MAX))));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let since_1970 = date.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_micros(0).after(since_1970)).filter(|date| *date > now)
}
