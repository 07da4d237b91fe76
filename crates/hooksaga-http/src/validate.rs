//! The limits of single values: one function per kind of value, which says what is wrong with it.

use hooksaga_pipeline::SigningSecret;
use serde_json::value::RawValue;

use crate::json;

/// How deep a payload may be nested.
pub(crate) const MAX_DEPTH: usize = 128;

/// The attempt limits that a subscription may ask for.
pub(crate) const RETRY_LIMITS: std::ops::RangeInclusive<i64> = 1..=100;

pub(crate) fn event_type(text: String) -> Result<String, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-');
    if (1..=100).contains(&text.len()) && text.bytes().all(known) {
        Ok(text)
    } else {
        Err("must be 1 to 100 characters of A-Z a-z 0-9 _ . : -".to_owned())
    }
}

pub(crate) fn external_id(text: String) -> Result<String, String> {
    visible_ascii(text, 200)
}

pub(crate) fn correlation_id(text: String) -> Result<String, String> {
    visible_ascii(text, 100)
}

/// An error code in a filter: an open set, so any short code will do.
pub(crate) fn error_code(text: String) -> Result<String, String> {
    visible_ascii(text, 100)
}

fn visible_ascii(text: String, max: usize) -> Result<String, String> {
    if (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text)
    } else {
        Err(format!("must be 1 to {max} visible ASCII characters without blanks"))
    }
}

pub(crate) fn retry_limit(value: &RawValue) -> Result<u32, String> {
    let limit = json::integer(value, RETRY_LIMITS)?;
    u32::try_from(limit).map_err(|_| "is out of range".to_owned())
}

pub(crate) fn secret(text: &str) -> Result<SigningSecret, String> {
    text.parse().map_err(|error: hooksaga_pipeline::InvalidSecret| error.to_string())
}

/// An id in a filter.
pub(crate) fn id(text: &str) -> Result<i64, String> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse()
        .ok()
        .filter(|_| canonical)
        .ok_or_else(|| format!("must be an integer from 1 to {}", i64::MAX))
}

pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}
