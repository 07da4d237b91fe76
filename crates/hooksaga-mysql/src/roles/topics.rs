//! Topics: those of a subscription, and those that match an event type.

use hooksaga_saga::EventType;

/// The longest topic that the schema takes.
const LONGEST: usize = 100;

/// The topics of a canonical text.
pub(crate) fn topics(canonical: &str) -> impl Iterator<Item = &str> {
    canonical.split(',')
}

/// Every topic that matches this type: itself, each of its dotted prefixes with a star, and the star. None for a test event.
pub(crate) fn matching(event_type: &str) -> Vec<String> {
    if event_type == EventType::TEST {
        return Vec::new();
    }
    let prefixes = event_type.match_indices('.').filter(|(dot, _)| *dot > 0);
    let prefixes = prefixes.map(|(dot, _)| format!("{}*", &event_type[..=dot]));
    let mut topics = vec![event_type.to_owned()];
    // What is longer than a topic can be, nobody has.
    topics.extend(prefixes.filter(|prefix| prefix.len() <= LONGEST));
    topics.push("*".to_owned());
    topics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_looked_up_under_itself_its_prefixes_and_the_star() {
        assert_eq!(matching("order"), ["order", "*"]);
        assert_eq!(matching("order.paid.eu"), ["order.paid.eu", "order.*", "order.paid.*", "*"]);
        assert_eq!(matching("a."), ["a.", "a.*", "*"]);
        assert_eq!(matching(".a"), [".a", "*"]);
        let long = format!("{}.", "a".repeat(99));
        assert_eq!(matching(&long), [long.as_str(), "*"]);
        assert!(matching("hooksaga.test").is_empty());
        assert_eq!(matching("a..b"), ["a..b", "a.*", "a..*", "*"]);
    }

    #[test]
    fn a_canonical_text_is_split_at_its_commas() {
        assert_eq!(topics("*,a,b.*").collect::<Vec<_>>(), ["*", "a", "b.*"]);
    }
}
