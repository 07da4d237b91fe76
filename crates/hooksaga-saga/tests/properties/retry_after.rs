//! The `Retry-After` header.

use super::timestamps;
use hooksaga_saga::{Timestamp, retry_after};
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};

/// Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
const EXAMPLE: Timestamp = Timestamp::from_micros(784_111_777_000_000);

fn before_the_example(seconds: u64) -> Timestamp {
    Timestamp::from_micros(EXAMPLE.as_micros() - i64::try_from(seconds * 1_000_000).unwrap())
}

#[test]
fn the_three_forms_of_a_date() {
    for text in
        ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
    {
        assert_eq!(retry_after(text, before_the_example(1)), Some(EXAMPLE), "{text}");
        assert_eq!(retry_after(text, EXAMPLE), None, "{text}: it has passed");
    }
}

#[test]
fn seconds() {
    let now = before_the_example(120);
    assert_eq!(retry_after("120", now), Some(EXAMPLE));
    assert_eq!(retry_after(" 120\t", now), Some(EXAMPLE));
    assert_eq!(retry_after("0", now), Some(now));
    assert_eq!(retry_after("99999999999999999999999", now), Some(Timestamp::MAX));
}

#[test]
fn anything_else_is_ignored() {
    for text in [
        "",
        " ",
        "-1",
        "+1",
        "1.5",
        "1s",
        "soon",
        "0x10",
        "１２",
        "1 2",
        "Sun, 06 Nov 1994",
        "Mon, 06 Nov 1994 08:49:37 GMT",
        "Wed, 31 Feb 2999 00:00:00 GMT",
    ] {
        assert_eq!(retry_after(text, Timestamp::from_micros(0)), None, "{text:?}");
    }
}

proptest! {
    #[test]
    fn never_before_now_and_never_a_panic(text in "\\PC{0,40}", now in timestamps()) {
        prop_assert!(retry_after(&text, now).is_none_or(|at| at >= now));
    }

    #[test]
    fn any_number_of_seconds(seconds: u64, now in timestamps()) {
        prop_assert_eq!(retry_after(&seconds.to_string(), now), Some(now.after(Duration::from_secs(seconds))));
    }

    #[test]
    fn any_date(seconds in 1_u64..253_402_300_800) {
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        let expected = Timestamp::from_micros(0).after(Duration::from_secs(seconds));
        prop_assert_eq!(retry_after(&date, Timestamp::from_micros(0)), Some(expected));
    }
}
