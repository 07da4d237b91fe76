//! Which callback URLs are accepted: those whose destination is unambiguous.
//!
//! Whether the address behind the host may be called is decided at each delivery, not here: names change
//! what they point to. The rules are stricter than the URL standard, which repairs what it reads (`https:\\host`,
//! `127.1`, blanks): what two programs may read differently is refused.

use crate::{Invalid, names};
use std::net::{Ipv4Addr, Ipv6Addr};

names::text! {
    /// Where a subscription's deliveries go: an absolute URL with a host, without user information or fragment.
    CallbackUrl,
}

impl CallbackUrl {
    /// The longest URL, in characters.
    pub const MAX_LEN: usize = 500;

    /// Checks a URL that somebody asks for; plain http only if `allow_http`.
    pub fn parse(text: &str, allow_http: bool) -> Result<Self, Invalid> {
        check(text, allow_http).map_err(Invalid::new)?;
        Ok(Self(text.into()))
    }

    /// The name or address that it leads to, an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        split_port(&rest[..end]).0
    }

    /// Whether two URLs have the same scheme, host and port: what credentials are given for. What cannot be read has the
    /// same origin as nothing.
    pub fn same_origin(one: &str, other: &str) -> bool {
        origin(one).is_some_and(|origin_of_one| origin(other) == Some(origin_of_one))
    }
}

fn origin(url: &str) -> Option<(String, String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = split_port(authority);
    let port = match (port, scheme.as_str()) {
        (Some(port), _) => port.parse().ok()?,
        (None, "https") => 443,
        (None, "http") => 80,
        (None, _) => return None,
    };
    Some((scheme, host.to_ascii_lowercase(), port))
}

fn check(url: &str, allow_http: bool) -> Result<(), &'static str> {
    if url.chars().count() > CallbackUrl::MAX_LEN {
        return Err("must be at most 500 characters");
    }
    if !url.is_ascii() {
        return Err(
            "must be ASCII: write an international host name in punycode (xn--…) and percent-encode other characters",
        );
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("must not contain blanks or control characters: percent-encode them");
    }
    let (scheme, rest) = url.split_once("://").ok_or("must be an absolute URL that begins with https://")?;
    match scheme.to_ascii_lowercase().as_str() {
        "https" => {}
        "http" if allow_http => {}
        "http" => return Err("must begin with https:// (http is allowed in development mode only)"),
        _ => return Err("must begin with https://"),
    }
    if rest.contains('#') {
        return Err("must not have a fragment (#…)");
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path_and_query) = rest.split_at(end);
    if authority.contains('@') {
        return Err("must not have user information (user:password@)");
    }
    let (host, port) = split_port(authority);
    if !host_is_valid(host) {
        return Err("must have a valid host: a DNS name, an IPv4 address or an IPv6 address in brackets");
    }
    if port.is_some_and(|port| !port_is_valid(port)) {
        return Err("must have a port from 1 to 65535, or none");
    }
    // What the delivery client refuses: nothing that cannot be sent to may be stored.
    if path_and_query.contains(['"', '<', '>', '`']) {
        return Err("must not contain \" < > or `: percent-encode them");
    }
    Ok(())
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => {
            (&authority[..colon], Some(&authority[colon + 1..]))
        }
        _ => (authority, None),
    }
}

fn port_is_valid(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

fn host_is_valid(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let last_label = name.rsplit('.').next().unwrap_or_default();
    // What ends like an IPv4 address must be one, in the usual form: resolvers disagree about everything else.
    if is_number(last_label) {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    name.len() <= 253 && name.split('.').all(label_is_valid)
}

/// Decimal, octal or hexadecimal, as in the old forms of IPv4 addresses (`0x7f.1`).
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x").or_else(|| label.strip_prefix("0X")) {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn label_is_valid(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_is_the_scheme_the_host_and_the_port() {
        let same = |one: &str, other: &str| {
            let same = CallbackUrl::same_origin(one, other);
            assert_eq!(same, CallbackUrl::same_origin(other, one), "{one} {other}");
            same
        };
        for other in [
            "https://a.example/other?x=1",
            "https://a.example",
            "https://a.example:443/hook",
            "HTTPS://A.example/hook",
            "https://a.example?x",
        ] {
            assert!(same("https://a.example/hook", other), "{other}");
        }
        for other in [
            "http://a.example/hook",
            "http://a.example:443/hook",
            "https://a.example:8443/hook",
            "https://b.example/hook",
            "https://a.example.evil/hook",
            "https://www.a.example/hook",
        ] {
            assert!(!same("https://a.example/hook", other), "{other}");
        }
        assert!(same("http://[::1]:80/", "http://[::1]/other") && !same("http://[::1]/", "http://[::2]/"));
        for unreadable in ["", "a.example", "ftp://a.example/", "https://a.example:99999/"] {
            assert!(!same(unreadable, unreadable), "{unreadable}");
        }
    }
}
