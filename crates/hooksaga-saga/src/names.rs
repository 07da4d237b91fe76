//! Names that come from clients, as types: a value of one of these types has been validated.
//!
//! Each has one parser, `FromStr`, whose error states the broken rule in one plain sentence. All are ASCII and
//! compared byte for byte; cloning one copies a pointer.

use std::str::FromStr;

/// The rule that a value from outside breaks, in words for the one who sent it: "must be …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(&'static str);

impl Invalid {
    pub(crate) const fn new(rule: &'static str) -> Self {
        Self(rule)
    }

    /// The rule.
    pub const fn rule(self) -> &'static str {
        self.0
    }
}

/// A newtype around shared text with everything but its parser.
macro_rules! text {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(::std::sync::Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl ::std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )+};
}
pub(crate) use text;

text! {
    /// Whose events and subscriptions: a name, nothing that has to be created first.
    Tenant,
    /// What happened: `order.created`.
    EventType,
    /// The sender's own id of an event, unique per tenant.
    ExternalId,
    /// What ties an event's log lines together, from the sender to the callback.
    CorrelationId,
    /// What was done, as audit records are listed by: `subscription.create`.
    AuditAction,
}

/// The longest name of a tenant, and the longest event type.
pub(crate) const MAX_NAME: usize = 100;

pub(crate) fn is_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(known)
}

const NAME_RULE: Invalid = Invalid::new("must be 1 to 100 characters of A-Z a-z 0-9 _ . : -");

impl Tenant {
    /// The tenant of a caller that names none.
    pub const DEFAULT: &'static str = "default";
    /// The tenant of the server's own events.
    pub const RESERVED: &'static str = "hooksaga";

    /// Whether only the server itself may write events for it.
    pub fn is_reserved(&self) -> bool {
        self.as_str() == Self::RESERVED
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl FromStr for Tenant {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if is_name(text) { Ok(Self(text.into())) } else { Err(NAME_RULE) }
    }
}

impl EventType {
    /// How the types of the server's own events begin.
    pub const RESERVED_PREFIX: &'static str = "hooksaga.";
    /// The type of a test event, which goes to the subscription that it is for and matches no topic.
    pub const TEST: &'static str = "hooksaga.test";

    /// The type of a test event.
    pub fn test() -> Self {
        Self(Self::TEST.into())
    }

    /// Whether it is the type of a test event.
    pub fn is_test(&self) -> bool {
        self.as_str() == Self::TEST
    }

    /// Whether only the server itself may write events of it.
    pub fn is_reserved(&self) -> bool {
        self.as_str().starts_with(Self::RESERVED_PREFIX)
    }
}

impl FromStr for EventType {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if is_name(text) { Ok(Self(text.into())) } else { Err(NAME_RULE) }
    }
}

/// Whether a text consists of 1 to `max` visible ASCII characters, without blanks: what identifiers are made of.
pub fn is_visible_ascii(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl FromStr for ExternalId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const RULE: Invalid = Invalid::new("must be 1 to 200 visible ASCII characters without blanks");
        if is_visible_ascii(text, 200) { Ok(Self(text.into())) } else { Err(RULE) }
    }
}

impl FromStr for CorrelationId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const RULE: Invalid = Invalid::new("must be 1 to 100 visible ASCII characters without blanks");
        if is_visible_ascii(text, 100) { Ok(Self(text.into())) } else { Err(RULE) }
    }
}

impl FromStr for AuditAction {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const RULE: Invalid = Invalid::new("must be 1 to 100 visible ASCII characters without blanks");
        if is_visible_ascii(text, 100) { Ok(Self(text.into())) } else { Err(RULE) }
    }
}
