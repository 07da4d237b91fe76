//! Forms are accepted from our own pages only.
//!
//! The session cookie is `SameSite=Strict` already; this check holds where it cannot (an embedded portal), and where a
//! neighbour under the same domain counts as the same site.

use http::{HeaderMap, header};

/// Whether a browser sent this from a page of ours. Browsers say so with every form; whoever says nothing is refused.
pub(super) fn is_own(headers: &HeaderMap, public_url: &str) -> bool {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin";
    }
    let Some(origin) = text(header::ORIGIN.as_str()) else { return false };
    let Some((_, authority)) = origin.split_once("://") else { return false };
    // Behind a proxy the host may be another one: then the configured address counts.
    let same_host = text(header::HOST.as_str()).is_some_and(|host| host.eq_ignore_ascii_case(authority));
    same_host || origin.eq_ignore_ascii_case(origin_of(public_url))
}

/// Scheme and authority of a URL.
fn origin_of(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    &url[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(headers: &[(&'static str, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_str(value).expect("a value"))
        });
        is_own(&headers.collect(), "https://hooks.example.com/base")
    }

    #[test]
    fn only_our_own_pages_may_post() {
        assert!(own(&[("sec-fetch-site", "same-origin")]));
        assert!(own(&[("origin", "https://hooks.example.com")]));
        assert!(own(&[("origin", "http://10.0.0.1:8080"), ("host", "10.0.0.1:8080")]));
        assert!(!own(&[]), "a browser says where it comes from");
        assert!(!own(&[("host", "hooks.example.com")]));
        assert!(!own(&[("sec-fetch-site", "same-site"), ("origin", "https://hooks.example.com")]));
        assert!(!own(&[("sec-fetch-site", "cross-site")]));
        assert!(!own(&[("sec-fetch-site", "none")]));
        assert!(!own(&[("origin", "null"), ("host", "hooks.example.com")]));
        assert!(!own(&[("origin", "https://evil.example"), ("host", "hooks.example.com")]));
        assert!(!own(&[("origin", "https://hooks.example.com.evil.example")]));
    }
}
