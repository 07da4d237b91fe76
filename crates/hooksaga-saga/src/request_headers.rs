//! The static request headers of a subscription: which are accepted, and in which form.
//!
//! Their values are credentials. They stay out of `Debug`, and out of every error.

use crate::{Invalid, names};
use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

names::text! {
    /// The name of a request header, in lower case: names are the same whatever their case.
    RequestHeaderName,
}

/// What a delivery sets itself, or what frames a request.
const REFUSED: &[&str] = &[
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "user-agent",
];
const REFUSED_PREFIXES: &[&str] = &["proxy-", "webhook-", "hooksaga-"];

impl RequestHeaderName {
    /// The longest name.
    pub const MAX_LEN: usize = 100;
}

impl FromStr for RequestHeaderName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let name = text.to_ascii_lowercase();
        if !(1..=Self::MAX_LEN).contains(&name.len()) || !name.bytes().all(is_token) {
            return Err(Invalid::new(
                "must be named with 1 to 100 letters, digits or characters of !#$%&'*+-.^_`|~",
            ));
        }
        let refused = REFUSED.contains(&name.as_str())
            || REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if refused {
            return Err(Invalid::new(
                "must have another name: the server sets it itself, or it belongs to the connection (host, \
                 content-length, content-type, content-encoding, transfer-encoding, connection, keep-alive, upgrade, te, \
                 trailer, expect, user-agent, proxy-*, webhook-*, hooksaga-*)",
            ));
        }
        Ok(Self(name.into()))
    }
}

/// A character of a name (RFC 9110, `token`).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The value of a request header: 1 to 1,000 visible ASCII characters, and blanks between them.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestHeaderValue(Arc<str>);

impl RequestHeaderValue {
    /// The longest value.
    pub const MAX_LEN: usize = 1_000;

    /// The value in the clear, to be sent or sealed.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for RequestHeaderValue {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let fits = (1..=Self::MAX_LEN).contains(&text.len());
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if fits && visible && text.trim_matches(' ').len() == text.len() {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::new("must be 1 to 1000 visible ASCII characters, with blanks only between them"))
        }
    }
}

impl fmt::Debug for RequestHeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestHeaderValue(masked)")
    }
}

/// The headers of one subscription, at most 16, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaders(BTreeMap<RequestHeaderName, RequestHeaderValue>);

impl RequestHeaders {
    /// The most headers that a subscription has.
    pub const MAX: usize = 16;

    /// The headers of a list; a name that is there twice, in whatever case, is refused.
    pub fn new(
        headers: impl IntoIterator<Item = (RequestHeaderName, RequestHeaderValue)>,
    ) -> Result<Self, Invalid> {
        let mut found = BTreeMap::new();
        for (name, value) in headers {
            if found.insert(name, value).is_some() {
                return Err(Invalid::new("must not name a header twice, also not in another case"));
            }
            if found.len() > Self::MAX {
                return Err(Invalid::new("must be at most 16 headers"));
            }
        }
        Ok(Self(found))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&RequestHeaderName, &RequestHeaderValue)> {
        self.0.iter()
    }

    /// The names, joined with commas, which no name has.
    pub fn names(&self) -> String {
        self.0.keys().map(RequestHeaderName::as_str).collect::<Vec<_>>().join(",")
    }

    /// All of them as one text in the clear, to be sealed: a line each.
    pub fn reveal(&self) -> String {
        self.iter().map(|(name, value)| format!("{name}: {}\n", value.reveal())).collect()
    }

    /// Reads [`reveal`](Self::reveal)'s text; `None` if it is another one.
    pub fn from_revealed(text: &str) -> Option<Self> {
        let headers = text.lines().map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.parse().ok()?, value.parse().ok()?))
        });
        Self::new(headers.collect::<Option<Vec<_>>>()?).ok()
    }
}
