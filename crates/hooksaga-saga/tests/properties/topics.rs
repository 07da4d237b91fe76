//! Topics: what they accept, what they match, and their canonical text.

use hooksaga_saga::{EventType, Topic, Topics};
use proptest::{collection::vec, prelude::*};

/// Types with many dots, in odd places too, so that prefixes meet.
fn event_types() -> impl Strategy<Value = EventType> {
    prop_oneof!["[ab.]{1,8}", "[a-c]{1,3}(\\.[a-c]{1,3}){0,4}", "[A-Za-z0-9_.:-]{1,100}", "[a.]{98,100}"]
        .prop_map(|text| text.parse().unwrap())
}

fn topics() -> impl Strategy<Value = Topic> {
    let prefix = event_types().prop_filter("room for the star", |prefix| prefix.as_str().len() <= 98);
    prop_oneof![
        3 => event_types().prop_map(|event_type| event_type.as_str().parse().unwrap()),
        3 => prefix.prop_map(|prefix| format!("{prefix}.*").parse().unwrap()),
        1 => Just("*".parse().unwrap()),
    ]
}

#[test]
fn bad_topics() {
    let rule = "must be an event type (1 to 100 characters of A-Z a-z 0-9 _ . : -), a prefix of one followed by .*, or *";
    let (long, long_prefix) = ("x".repeat(101), format!("{}.*", "x".repeat(99)));
    for text in [
        "",
        "a.*.b",
        "a*",
        ".*",
        "*.",
        "**",
        "*.*",
        "*.a",
        "a.**",
        " ",
        "a b",
        "a,b",
        "ä",
        "ä.*",
        &long,
        &long_prefix,
    ] {
        let refused = text.parse::<Topic>().unwrap_err();
        assert_eq!(refused.to_string(), rule, "{text:?}");
    }
    for text in ["a", "*", "a.*", "a.b.*", "a..*", ".", "..*", "-:_.*", &long[3..], &long_prefix[1..]] {
        assert_eq!(text.parse::<Topic>().unwrap().as_str(), text);
    }
}

#[test]
fn what_an_order_belongs_to() {
    let topics = |text: &str| {
        let event_type: EventType = text.parse().unwrap();
        event_type.matching_topics().iter().map(Topic::to_string).collect::<Vec<_>>()
    };
    assert_eq!(topics("order.line.added"), ["order.line.added", "order.*", "order.line.*", "*"]);
    assert_eq!(topics("order"), ["order", "*"]);
    assert_eq!(topics("order."), ["order.", "order.*", "*"]);
    assert_eq!(topics(".order"), [".order", "*"]);
    let matches =
        |topic: &str, event_type: &str| topic.parse::<Topic>().unwrap().matches(&event_type.parse().unwrap());
    assert!(matches("order.*", "order.created") && matches("order.*", "order.line.added"));
    assert!(!matches("order.*", "order") && !matches("order.*", "orders.created"));
    assert!(!matches("order.*", "Order.created") && !matches("order", "order.created"));
    assert!(matches("*", "order"));
}

#[test]
fn lists() {
    let of = |texts: &[&str]| Topics::new(texts.iter().map(|text| text.parse().unwrap()));
    let topics = of(&["b", "a.*", "b", "*", "B"]).unwrap();
    assert_eq!((topics.as_str(), topics.to_string()), ("*,B,a.*,b", "*,B,a.*,b".to_owned()));
    assert_eq!(topics.iter().map(Topic::as_str).collect::<Vec<_>>(), ["*", "B", "a.*", "b"]);
    assert!(topics.matches(&"a.x".parse().unwrap()));
    assert!(!of(&["a.*", "b"]).unwrap().matches(&"a".parse().unwrap()));
    assert_eq!(of(&["order.created"]).unwrap().as_str(), "order.created");
    assert_eq!(Topics::from("a".parse::<Topic>().unwrap()), of(&["a"]).unwrap());
    assert_eq!(of(&[]).unwrap_err().to_string(), "must list 1 to 50 different topics");
    for text in ["", ",", "a,", "a,,b", "a, b"] {
        assert!(text.parse::<Topics>().is_err(), "{text:?}");
    }
}

#[test]
fn at_most_50_topics_and_1000_characters() {
    let numbered = |count: usize, length: usize| {
        Topics::new((0..count).map(|n| format!("{n:0length$}").parse().unwrap()))
    };
    assert!(numbered(50, 19).is_ok(), "50 × 19 and 49 commas: 999");
    assert_eq!(numbered(51, 2).unwrap_err().to_string(), "must list 1 to 50 different topics");
    let too_long = "must have at most 1000 characters in all topics together, with a comma between two";
    assert_eq!(numbered(50, 20).unwrap_err().to_string(), too_long);
    assert!(numbered(10, 99).is_ok(), "10 × 99 and 9 commas: 999");
    assert!(numbered(11, 90).is_ok(), "11 × 90 and 10 commas: 1000");
    assert_eq!(numbered(11, 91).unwrap_err().to_string(), too_long);
    let twice = (0..100).map(|n| (n % 50).to_string().parse().unwrap());
    assert!(Topics::new(twice).is_ok(), "duplicates do not count");
}

proptest! {
    /// TN-4: the index lookup and the comparison agree.
    #[test]
    fn matching_topics_are_those_that_match(topic in topics(), event_type in event_types()) {
        let listed = event_type.matching_topics();
        prop_assert_eq!(topic.matches(&event_type), listed.contains(&topic), "{} {}", topic, event_type);
        for topic in &listed {
            prop_assert!(topic.matches(&event_type));
            prop_assert_eq!(&topic.as_str().parse::<Topic>().unwrap(), topic);
        }
        prop_assert!(listed.len() <= 101);
    }

    /// The canonical text says the same as the list, in any order and with duplicates.
    #[test]
    fn the_canonical_text_round_trips(list in vec(topics(), 1..8), event_type in event_types()) {
        let topics = Topics::new(list.clone()).unwrap();
        prop_assert_eq!(&topics.as_str().parse::<Topics>().unwrap(), &topics);
        let again = list.iter().chain(&list).rev().cloned();
        prop_assert_eq!(&Topics::new(again).unwrap(), &topics);
        prop_assert!(topics.iter().is_sorted_by(|a, b| a.as_str() < b.as_str()));
        prop_assert!(list.iter().all(|topic| topics.iter().any(|kept| kept == topic)));
        prop_assert_eq!(topics.matches(&event_type), list.iter().any(|topic| topic.matches(&event_type)));
        prop_assert_eq!((&topics).into_iter().count(), topics.as_str().split(',').count());
    }
}
