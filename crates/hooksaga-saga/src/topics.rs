//! Which event types a subscription wants: a list of topics, each a type, `prefix.*` or `*`.

use crate::{EventType, Invalid, names};
use std::{fmt, str::FromStr, sync::Arc};

names::text! {
    /// One event type, every type that begins with a dotted prefix (`order.*`), or every type (`*`).
    Topic,
}

impl Topic {
    const ANY: &'static str = "*";

    /// Whether events of this type belong to it. Test events belong to none.
    pub fn matches(&self, event_type: &EventType) -> bool {
        if event_type.is_test() {
            return false;
        }
        match self.as_str().strip_suffix('*') {
            // What is left of `order.*` ends with its dot, and of `*` is nothing: both are what a type begins with.
            Some(beginning) => event_type.as_str().starts_with(beginning),
            None => self.as_str() == event_type.as_str(),
        }
    }
}

impl FromStr for Topic {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const RULE: Invalid = Invalid::new(
            "must be an event type (1 to 100 characters of A-Z a-z 0-9 _ . : -), a prefix of one followed by .*, or *",
        );
        let name = text.strip_suffix(".*").unwrap_or(text);
        let fits = text.len() <= names::MAX_NAME;
        if text == Self::ANY || (fits && names::is_name(name)) { Ok(Self(text.into())) } else { Err(RULE) }
    }
}

impl EventType {
    /// Every topic that an event of this type belongs to: the type itself, each of its dotted prefixes as
    /// `prefix.*`, and `*`. None for a test event.
    pub fn matching_topics(&self) -> Vec<Topic> {
        if self.is_test() {
            return Vec::new();
        }
        let text = self.as_str();
        let topic = |text: &str| Topic(text.into());
        let prefixes = text.match_indices('.').filter(|(dot, _)| *dot > 0);
        // `prefix.*` may be longer than a topic can be: then nobody has it.
        let prefixes = prefixes
            .map(|(dot, _)| format!("{}*", &text[..=dot]))
            .filter(|prefix| prefix.len() <= names::MAX_NAME);
        let mut topics = vec![topic(text)];
        topics.extend(prefixes.map(|prefix| topic(&prefix)));
        topics.push(topic(Topic::ANY));
        topics
    }
}

/// The topics of one subscription: 1 to 50, distinct, sorted by byte.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Topics {
    topics: Arc<[Topic]>,
    text: Arc<str>,
}

impl Topics {
    /// The most topics that a subscription has.
    pub const MAX: usize = 50;
    /// The longest canonical text.
    pub const MAX_LEN: usize = 1_000;

    /// The topics of a list, in any order, duplicates included.
    pub fn new(topics: impl IntoIterator<Item = Topic>) -> Result<Self, Invalid> {
        let mut topics: Vec<Topic> = topics.into_iter().collect();
        topics.sort_unstable();
        topics.dedup();
        if !(1..=Self::MAX).contains(&topics.len()) {
            return Err(Invalid::new("must list 1 to 50 different topics"));
        }
        let text = topics.iter().map(Topic::as_str).collect::<Vec<_>>().join(",");
        if text.len() > Self::MAX_LEN {
            return Err(Invalid::new(
                "must have at most 1000 characters in all topics together, with a comma between two",
            ));
        }
        Ok(Self { topics: topics.into(), text: text.into() })
    }

    /// The canonical text: the topics, joined with commas. One type alone is its own text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The topics, sorted by byte.
    pub fn iter(&self) -> std::slice::Iter<'_, Topic> {
        self.topics.iter()
    }

    /// Whether events of this type belong to any of them.
    pub fn matches(&self, event_type: &EventType) -> bool {
        self.iter().any(|topic| topic.matches(event_type))
    }
}

impl<'a> IntoIterator for &'a Topics {
    type Item = &'a Topic;
    type IntoIter = std::slice::Iter<'a, Topic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Reads topics that are joined with commas, in any order.
impl FromStr for Topics {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::new(text.split(',').map(str::parse).collect::<Result<Vec<Topic>, Invalid>>()?)
    }
}

impl From<Topic> for Topics {
    fn from(topic: Topic) -> Self {
        Self { text: topic.as_str().into(), topics: [topic].into() }
    }
}

impl fmt::Display for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}
