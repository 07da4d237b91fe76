//! Durations as people write them: `250ms`, `30s`, `5m`, `1h`, `7d`; and sizes in bytes: `65536`, `64KiB`, `8 MiB`.

use std::time::Duration;

const DURATION_FORM: &str =
    "write a duration as a whole number with its unit, such as 250ms, 30s, 5m, 1h or 7d";
const SIZE_FORM: &str = "write a size as a whole number of bytes, or with KiB, MiB or GiB";

/// Reads a duration; the error says how one is written.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: {DURATION_FORM}");
    let (number, unit) = split_unit(text).ok_or_else(wrong)?;
    let millis_per_unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis_per_unit).map(Duration::from_millis).ok_or_else(wrong)
}

/// Writes a duration as a whole number of hours, else of minutes (from two on), else of seconds, else of
/// milliseconds.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, size, least) in [("h", 3_600_000, 1), ("m", 60_000, 2), ("s", 1000, 1)] {
        if millis.is_multiple_of(size) && millis / size >= least {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

/// Reads a size in bytes; the error says how one is written.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: {SIZE_FORM}");
    let (number, unit) = split_unit(text).ok_or_else(wrong)?;
    let bytes_per_unit = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(bytes_per_unit).ok_or_else(wrong)
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_unit() {
        for (text, millis) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused_with_the_form() {
        for text in
            ["", "30", "s", "-1s", "1.5s", "1w", "30 sec", "99999999999999999999h", "18446744073709551615h"]
        {
            let error = parse_duration(text).expect_err(text);
            assert!(error.contains("250ms, 30s, 5m, 1h or 7d"), "{error}");
        }
    }

    #[test]
    fn a_shown_duration_reads_back_as_itself() {
        for text in ["250ms", "30s", "60s", "90s", "5m", "1h", "0ms", "1500ms"] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(show_duration(duration), text);
        }
    }

    #[test]
    fn sizes_are_integers_or_carry_a_binary_unit() {
        for (text, bytes) in [("65536", 65_536), ("64KiB", 65_536), ("8 MiB", 8_388_608), ("1GiB", 1 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["1MB", "one", "-5", "1.5MiB", ""] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
