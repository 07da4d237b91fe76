//! Tenants, event types and ids: one parser each.

use hooksaga_saga::{CorrelationId, EventType, ExternalId, Invalid, Tenant};
use proptest::prelude::*;
use std::str::FromStr;

/// What the parser makes of a text: the text again, or a rule.
fn parsed<T: FromStr<Err = Invalid> + AsRef<str>>(text: &str) -> Result<String, Invalid> {
    text.parse::<T>().map(|value| value.as_ref().to_owned())
}

fn refused<T: FromStr<Err = Invalid> + AsRef<str>>(texts: &[&str], rule: &str) {
    for text in texts {
        assert_eq!(
            parsed::<T>(text).map_err(|invalid| invalid.to_string()),
            Err(rule.to_owned()),
            "{text:?}"
        );
    }
}

#[test]
fn rules() {
    let long = "x".repeat(101);
    let names = ["", " ", "a b", "a/b", "a,b", "*", "a.*", "ä", "ａ", "a\n", &long];
    refused::<Tenant>(&names, "must be 1 to 100 characters of A-Z a-z 0-9 _ . : -");
    refused::<EventType>(&names, "must be 1 to 100 characters of A-Z a-z 0-9 _ . : -");
    let ids = ["", " ", "a b", "ä", "a\u{7f}", "a\n"];
    refused::<ExternalId>(&ids, "must be 1 to 200 visible ASCII characters without blanks");
    refused::<CorrelationId>(&ids, "must be 1 to 100 visible ASCII characters without blanks");
    refused::<CorrelationId>(&[&long], "must be 1 to 100 visible ASCII characters without blanks");
    let longer = "x".repeat(201);
    refused::<ExternalId>(&[&longer], "must be 1 to 200 visible ASCII characters without blanks");
    assert!(parsed::<ExternalId>(&longer[1..]).is_ok());
    assert!(parsed::<CorrelationId>(&long[1..]).is_ok());
    assert!(parsed::<Tenant>(&long[1..]).is_ok());
}

#[test]
fn case_is_kept_and_matters() {
    let upper: EventType = "Order.Created".parse().unwrap();
    assert_eq!(
        (upper.as_str(), upper.to_string(), format!("{upper:?}")),
        ("Order.Created", "Order.Created".into(), "\"Order.Created\"".into())
    );
    assert_ne!(upper, "order.created".parse().unwrap());
}

#[test]
fn what_is_reserved() {
    assert_eq!(Tenant::default(), "default".parse().unwrap());
    let tenant = |text: &str| text.parse::<Tenant>().unwrap();
    assert!(tenant("hooksaga").is_reserved());
    assert!(![Tenant::default(), tenant("hooksaga2"), tenant("Hooksaga")].iter().any(Tenant::is_reserved));
    let event_type = |text: &str| text.parse::<EventType>().unwrap();
    assert!(event_type("hooksaga.test").is_reserved() && event_type("hooksaga.").is_reserved());
    assert!(
        !["hooksaga", "hooksagas.x", "Hooksaga.x", "x.hooksaga."]
            .map(event_type)
            .iter()
            .any(EventType::is_reserved)
    );
}

proptest! {
    #[test]
    fn names_round_trip(text in "[A-Za-z0-9_.:-]{1,100}") {
        prop_assert_eq!(parsed::<Tenant>(&text), Ok(text.clone()));
        prop_assert_eq!(parsed::<EventType>(&text), Ok(text));
    }

    #[test]
    fn ids_round_trip(text in "[!-~]{1,100}") {
        prop_assert_eq!(parsed::<ExternalId>(&text), Ok(text.clone()));
        prop_assert_eq!(parsed::<CorrelationId>(&text), Ok(text));
    }

    /// One bad character anywhere is enough.
    #[test]
    fn one_bad_character(before in "[a-z]{0,9}", bad in "[^A-Za-z0-9_.:-]", after in "[a-z]{0,9}") {
        let text = format!("{before}{bad}{after}");
        prop_assert!(parsed::<EventType>(&text).is_err());
        prop_assert!(parsed::<Tenant>(&text).is_err());
    }

    #[test]
    fn one_bad_character_in_an_id(before in "[!-~]{0,9}", bad in "[^!-~]", after in "[!-~]{0,9}") {
        let text = format!("{before}{bad}{after}");
        prop_assert!(parsed::<ExternalId>(&text).is_err());
        prop_assert!(parsed::<CorrelationId>(&text).is_err());
    }
}
