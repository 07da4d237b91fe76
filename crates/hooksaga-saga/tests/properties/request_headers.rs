//! Request headers: what is accepted can be sent, sealed and read back; what is refused is refused in every case.

use hooksaga_saga::{RequestHeaderName, RequestHeaderValue, RequestHeaders};
use proptest::prelude::*;

fn name(text: &str) -> Option<RequestHeaderName> {
    text.parse().ok()
}

fn value(text: &str) -> Option<RequestHeaderValue> {
    text.parse().ok()
}

/// Each letter in a case of its own.
fn recased(text: &str, upper: &[bool]) -> String {
    let case = |(letter, upper): (char, &bool)| {
        if *upper { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() }
    };
    text.chars().zip(upper.iter().cycle()).map(case).collect()
}

proptest! {
    #[test]
    fn a_name_is_a_token_in_lower_case(text in ".{0,120}") {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        match name(&text) {
            Some(name) => {
                prop_assert_eq!(name.as_str(), text.to_ascii_lowercase());
                prop_assert!((1..=100).contains(&text.len()) && text.bytes().all(token));
            }
            None => prop_assert!(!("x-".len() + 1..=100).contains(&text.len()) || !text.starts_with("x-")
                || !text.bytes().all(token)),
        }
    }

    #[test]
    fn what_a_delivery_sets_itself_is_refused_in_every_case(
        refused in prop::sample::select(vec![
            "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection",
            "keep-alive", "upgrade", "te", "trailer", "expect", "user-agent", "proxy-authorization", "proxy-x",
            "webhook-id", "webhook-signature", "hooksaga-attempt", "hooksaga-x",
        ]),
        upper in prop::collection::vec(any::<bool>(), 1..24),
    ) {
        prop_assert_eq!(name(&recased(refused, &upper)), None);
        let other = format!("x-{refused}");
        prop_assert!(name(&other).is_some());
    }

    #[test]
    fn a_value_is_visible_ascii_with_inner_blanks(text in "[ -~]{0,40}", odd in "\\PC{0,20}") {
        let trimmed = !text.starts_with(' ') && !text.ends_with(' ') && !text.is_empty();
        prop_assert_eq!(value(&text).is_some(), trimmed);
        if let Some(value) = value(&odd) {
            prop_assert!(odd.is_ascii());
            prop_assert_eq!(value.reveal(), odd);
        }
        for control in ['\n', '\r', '\0', '\t', '\u{7f}'] {
            let with_control = format!("a{control}{text}b");
            prop_assert_eq!(value(&with_control), None);
        }
    }

    #[test]
    fn what_is_revealed_is_read_back_and_names_are_listed(
        pairs in prop::collection::btree_map("x-[a-z0-9!#$%&'*+.^_`|~-]{1,20}", "[!-~]([ -~]{0,30}[!-~])?", 0..=16),
    ) {
        let parsed = pairs.iter().map(|(n, v)| (name(n).expect("a name"), value(v).expect("a value")));
        let headers = RequestHeaders::new(parsed).expect("distinct, and few");
        prop_assert_eq!(RequestHeaders::from_revealed(&headers.reveal()), Some(headers.clone()));
        prop_assert_eq!(headers.names(), pairs.keys().cloned().collect::<Vec<_>>().join(","));
        let shown = format!("{headers:?}");
        for secret in pairs.values().filter(|secret| secret.len() > 12) {
            prop_assert!(!shown.contains(secret.as_str()));
        }
    }
}

#[test]
fn there_are_at_most_16_and_none_twice() {
    let pair = |text: &str| (name(text).expect("a name"), value("v").expect("a value"));
    let many = |count: usize| RequestHeaders::new((0..count).map(|n| pair(&format!("x-{n}"))));
    assert!(many(16).is_ok());
    assert!(many(17).is_err());
    assert!(RequestHeaders::new([pair("X-Key"), pair("x-kEY")]).is_err());
    assert!(value(&"v".repeat(1000)).is_some() && value(&"v".repeat(1001)).is_none());
    assert!(name(&"n".repeat(100)).is_some() && name(&"n".repeat(101)).is_none());
}
