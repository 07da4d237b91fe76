//! Which callback URLs are accepted.

use hooksaga_saga::CallbackUrl;
use proptest::prelude::*;

fn accepts(url: &str) -> bool {
    CallbackUrl::parse(url, false).is_ok()
}

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
        "https://0x22.example/",
        "https://example.0xyz/",
    ] {
        assert_eq!(CallbackUrl::parse(url, false).unwrap().as_str(), url);
    }
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
        "https://0x5db8d822/",
        "https://0X5DB8D822./",
        "https://0x5d.0xb8.0xd8.0x22/",
        "https://93.184.216.0x22/",
        "https://example.0x/",
        "https://0135.0270.0330.042/",
        "https://[::1/",
        "https://::1/",
        "https://[127.0.0.1]/",
        "https://[fe80::1%25eth0]/",
        "https://exam{ple.com/",
        "https://example.com/<a>",
        "https://example.com/?q=\"",
        "https://example.com/`",
    ] {
        assert!(!accepts(url), "{url:?}");
    }
}

#[test]
fn http_needs_a_switch() {
    assert!(CallbackUrl::parse("http://127.0.0.1:9000/", true).is_ok());
    let refused = CallbackUrl::parse("http://127.0.0.1:9000/", false).unwrap_err();
    assert_eq!(refused.to_string(), "must begin with https:// (http is allowed in development mode only)");
    assert!(CallbackUrl::parse("ftp://127.0.0.1/", true).is_err());
}

#[test]
fn the_length_limit_is_500_characters() {
    let url = |length: usize| format!("https://example.com/{}", "a".repeat(length - 20));
    assert!(accepts(&url(500)));
    assert!(!accepts(&url(501)));
}

#[test]
fn a_label_has_at_most_63_characters() {
    assert!(accepts(&format!("https://{}.example/", "a".repeat(63))));
    assert!(!accepts(&format!("https://{}.example/", "a".repeat(64))));
}

proptest! {
    /// Any text: a rule or the text itself, never a panic.
    #[test]
    fn any_text(text in "(https?://)?\\PC{0,60}", allow_http: bool) {
        match CallbackUrl::parse(&text, allow_http) {
            Ok(url) => prop_assert_eq!(url.as_str(), text),
            Err(invalid) => prop_assert!(invalid.rule().starts_with("must ")),
        }
    }

    #[test]
    fn ordinary_urls(host in "[a-z][a-z0-9]{0,20}(\\.[a-z]{2,10}){1,3}", port in 1_u16.., path in "(/[a-zA-Z0-9._~-]{0,20}){0,4}") {
        let url = format!("https://{host}:{port}{path}");
        prop_assert!(accepts(&url), "{}", url);
    }
}
