//! The limits of single values: one function per kind of value, which says what is wrong with it.

use crate::json;
use hooksaga_pipeline::SigningSecret;
use hooksaga_saga::{
    CallbackUrl, EventType, Invalid, RequestHeaderName, RequestHeaderValue, RequestHeaders, Tenant,
    is_visible_ascii,
};
use serde_json::value::RawValue;
use std::{str::FromStr, time::Duration};

/// How deep a payload may be nested.
pub(crate) const MAX_DEPTH: usize = 128;

/// The attempt limits that a subscription may ask for.
pub(crate) const RETRY_LIMITS: std::ops::RangeInclusive<i64> = 1..=100;

/// The attempts per second that a subscription may be limited to.
const RATE_LIMITS: std::ops::RangeInclusive<i64> = 1..=10_000;

/// A value with a parser of its own: what it returns has been checked.
pub(crate) fn parsed<T: FromStr<Err = Invalid>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|invalid: Invalid| invalid.to_string())
}

/// A value from a JSON string, parsed as [`parsed`] does.
pub(crate) fn parsed_json<T: FromStr<Err = Invalid>>(value: &RawValue) -> Result<T, String> {
    json::string(value).and_then(|text| parsed(&text))
}

/// The type of an event that a client may write: those of the server's own are reserved.
pub(crate) fn writable_event_type(value: &RawValue) -> Result<EventType, String> {
    let event_type: EventType = parsed_json(value)?;
    if event_type.is_reserved() {
        return Err(format!(
            "must not begin with {}: those are the server's own",
            EventType::RESERVED_PREFIX
        ));
    }
    Ok(event_type)
}

/// A tenant that a client may write events for.
pub(crate) fn writable_tenant(value: &RawValue) -> Result<Tenant, String> {
    let tenant: Tenant = parsed_json(value)?;
    if tenant.is_reserved() { Err(RESERVED_TENANT.to_owned()) } else { Ok(tenant) }
}

pub(crate) const RESERVED_TENANT: &str = "must not be hooksaga: that tenant is the server's own";

/// Text for people.
pub(crate) fn description(value: &RawValue) -> Result<String, String> {
    let text = json::string(value)?;
    let fits = (1..=MAX_DESCRIPTION).contains(&text.chars().count());
    if fits && !text.chars().any(char::is_control) {
        Ok(text)
    } else {
        Err(format!("must be 1 to {MAX_DESCRIPTION} characters without control characters"))
    }
}

const MAX_DESCRIPTION: usize = 500;

/// A callback URL in a filter: any short text may be asked for.
#[derive(Debug)]
pub(crate) enum AskedUrl {
    Valid(CallbackUrl),
    /// It is no callback URL, so that no subscription has it.
    OfNobody,
}

pub(crate) fn asked_url(text: &str) -> Result<AskedUrl, String> {
    const MAX: usize = CallbackUrl::MAX_LEN;
    if !is_visible_ascii(text, MAX) {
        return Err(format!("must be 1 to {MAX} visible ASCII characters without blanks"));
    }
    Ok(CallbackUrl::parse(text, true).map_or(AskedUrl::OfNobody, AskedUrl::Valid))
}

pub(crate) fn retry_limit(value: &RawValue) -> Result<u32, String> {
    let limit = json::integer(value, RETRY_LIMITS)?;
    u32::try_from(limit).map_err(|_| "is out of range".to_owned())
}

pub(crate) fn rate_limit(value: &RawValue) -> Result<u32, String> {
    let limit = json::integer(value, RATE_LIMITS)?;
    u32::try_from(limit).map_err(|_| "is out of range".to_owned())
}

/// Request headers, an object of names to values. Errors do not contain the values.
pub(crate) fn request_headers(value: &RawValue) -> Result<RequestHeaders, String> {
    let members = json::Object::from_value(value, "headers")?.into_members()?;
    let headers = members.into_iter().map(|(name, value)| {
        // The name is shown as far as it can be one.
        let said: String = name.chars().take(RequestHeaderName::MAX_LEN).collect();
        let header = parsed::<RequestHeaderName>(&name).and_then(|name| Ok((name, parsed_json(value)?)));
        header.map_err(|rule| format!("the header {said:?} {rule}"))
    });
    let headers = headers.collect::<Result<Vec<(_, RequestHeaderValue)>, String>>()?;
    RequestHeaders::new(headers).map_err(|invalid| invalid.to_string())
}

pub(crate) fn secret(text: &str) -> Result<SigningSecret, String> {
    text.parse().map_err(|error: hooksaga_pipeline::InvalidSecret| error.to_string())
}

/// How long a portal session is valid.
pub(crate) fn session_ttl(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => 0,
    };
    let ttl =
        number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).map(Duration::from_millis);
    let range = Duration::from_secs(60)..=Duration::from_secs(24 * 3600);
    ttl.filter(|ttl| range.contains(ttl))
        .ok_or_else(|| "must be a duration from 1m to 24h, such as 90m".to_owned())
}

/// An event's id in a filter, also as receivers see it: `evt_17`.
pub(crate) fn event_id(text: &str) -> Result<i64, String> {
    id(text.strip_prefix("evt_").unwrap_or(text)).map_err(|detail| format!("{detail}, alone or as evt_17"))
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
