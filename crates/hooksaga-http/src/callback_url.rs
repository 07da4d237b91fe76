//! Which callback URLs are accepted: those that a delivery can be sent to without a doubt about where it goes.
//!
//! Whether the address behind the host may be called is decided at each delivery, not here: names change
//! what they point to.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) const MAX_LENGTH: usize = 500;

/// Checks a callback URL; plain http only if `allow_http`.
pub(crate) fn check(url: String, allow_http: bool) -> Result<String, String> {
    problem(&url, allow_http).map_or(Ok(url), |problem| Err(problem.to_owned()))
}

fn problem(url: &str, allow_http: bool) -> Option<&'static str> {
    if url.chars().count() > MAX_LENGTH {
        return Some("must be at most 500 characters");
    }
    if !url.is_ascii() {
        return Some(
            "must be ASCII: write an international host name in punycode (xn--…) and percent-encode other characters",
        );
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some("must not contain blanks or control characters: percent-encode them");
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some("must be an absolute URL that begins with https://");
    };
    match scheme.to_ascii_lowercase().as_str() {
        "https" => {}
        "http" if allow_http => {}
        "http" => return Some("must begin with https:// (http is allowed in development mode only)"),
        _ => return Some("must begin with https://"),
    }
    if rest.contains('#') {
        return Some("must not have a fragment (#…)");
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Some("must not have user information (user:password@)");
    }
    let (host, port) = split_port(authority);
    if !host_is_valid(host) {
        return Some("must have a valid host: a DNS name, an IPv4 address or an IPv6 address in brackets");
    }
    if port.is_some_and(|port| !port_is_valid(port)) {
        return Some("must have a port from 1 to 65535, or none");
    }
    // What the delivery client parses with: nothing that it refuses may be stored.
    match url.parse::<http::Uri>() {
        Ok(uri) if uri.host().is_some_and(|host| !host.is_empty()) => None,
        _ => Some("is not a valid URL: percent-encode special characters"),
    }
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
    // What ends like an IPv4 address must be one: resolvers disagree about everything else.
    if last_label.bytes().all(|byte| byte.is_ascii_digit()) {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    name.len() <= 253 && name.split('.').all(label_is_valid)
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
    fn good_urls_are_kept_as_they_are() {
        for url in [
            "https://example.com",
            "HTTPS://Example.com/Hook",
            "https://example.com./hook",
            "https://example.com:8443/a/b?c=d&e=%20",
            "https://example.com?x=1",
            "https://192.0.2.1/hook",
            "https://[2001:db8::1]:8443/hook",
            "https://[::1]/",
            "https://xn--bcher-kva.example/",
            "https://my_service.internal/hook",
            "https://localhost:9000/",
        ] {
            assert_eq!(check(url.to_owned(), false).as_deref(), Ok(url));
        }
        assert!(check("http://127.0.0.1:9000/".to_owned(), true).is_ok());
    }

    #[test]
    fn bad_urls_are_refused() {
        for url in [
            "",
            "/hook",
            "example.com/hook",
            "https:",
            "https://",
            "https:///hook",
            "https://?x",
            "https://:443/",
            "http://example.com/",
            "ftp://example.com/",
            "javascript://example.com/",
            "https://user@example.com/",
            "https://user:pw@example.com/",
            "https://good.example\\@evil.example/",
            "https://example.com/#frag",
            "https://example.com#",
            "https://example.com:/",
            "https://example.com:0/",
            "https://example.com:65536/",
            "https://example.com:+443/",
            "https://example.com:44a/",
            "https://exa mple.com/",
            "https://example.com/a b",
            "https://example.com/\u{7f}",
            "https://example.com/\n",
            "https://bücher.example/",
            "https://example.com/ü",
            "https://exa%6dple.com/",
            "https://-a.example/",
            "https://a-.example/",
            "https://a..example/",
            "https://.example/",
            "https://256.1.1.1/",
            "https://1.2.3/",
            "https://127.1/",
            "https://2130706433/",
            "https://127.0.0.1./",
            "https://[::1/",
            "https://::1/",
            "https://[127.0.0.1]/",
            "https://[fe80::1%25eth0]/",
            "https://exam{ple.com/",
        ] {
            assert!(check(url.to_owned(), false).is_err(), "{url:?}");
        }
    }

    #[test]
    fn the_length_limit_is_500_characters() {
        let url = |length: usize| format!("https://example.com/{}", "a".repeat(length - 20));
        assert!(check(url(500), false).is_ok());
        assert!(check(url(501), false).is_err());
    }

    #[test]
    fn a_label_has_at_most_63_characters() {
        assert!(check(format!("https://{}.example/", "a".repeat(63)), false).is_ok());
        assert!(check(format!("https://{}.example/", "a".repeat(64)), false).is_err());
    }
}
