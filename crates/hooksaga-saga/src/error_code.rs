//! Why an attempt failed, as a short code that is stored, shown and filtered by.

use crate::{Invalid, is_visible_ascii};
use std::{borrow::Cow, fmt, str::FromStr};

/// The error code of a failed attempt.
///
/// An open set: a code written by a newer copy of the server is carried through unchanged by an older one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(Cow<'static, str>);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: Self = Self(Cow::Borrowed(stringify!($name)));)+

            /// Every code with a fixed name: all but those of [`ErrorCode::http`].
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

codes! {
    /// The callback returned 3xx; redirects are not followed.
    REDIRECT,
    /// No complete response before the deadline.
    TIMEOUT,
    /// No TCP connection.
    CONNECT_FAILED,
    /// The host name did not resolve.
    DNS_FAILED,
    /// The TLS handshake or the certificate failed.
    TLS_FAILED,
    /// The address is one that must never be called.
    BLOCKED_ADDRESS,
    /// The response was not HTTP, or the connection closed before one.
    RESPONSE_INVALID,
    /// The job's lease ran out too often: whoever takes it dies.
    LEASE_EXHAUSTED,
    /// The subscription was deleted before this delivery was made. Final.
    SUBSCRIPTION_DELETED,
    /// A fault of this server.
    INTERNAL,
    /// The response to a verification lacked the challenge.
    CHALLENGE_MISMATCH,
}

impl ErrorCode {
    /// The longest code that the database stores.
    pub const MAX_LEN: usize = 100;

    /// The callback returned this 4xx or 5xx (or some other unexpected) status.
    pub fn http(status: u16) -> Self {
        Self(Cow::Owned(format!("HTTP_{status}")))
    }

    /// A code read back from storage; cut at the stored length, so that it can always be written again.
    pub fn from_stored(mut text: String) -> Self {
        if let Some((end, _)) = text.char_indices().nth(Self::MAX_LEN) {
            text.truncate(end);
        }
        Self(Cow::Owned(text))
    }

    /// The code's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether no further attempt makes sense: the endpoint says that it is gone, or its subscription is deleted.
    /// Such a failure ends the delivery, whatever its limit.
    pub fn is_final(&self) -> bool {
        self.means_gone() || *self == Self::SUBSCRIPTION_DELETED
    }

    /// Whether the endpoint could not be reached in time: what shrinks its admission window.
    pub fn means_unreachable(&self) -> bool {
        [Self::TIMEOUT, Self::CONNECT_FAILED, Self::DNS_FAILED, Self::TLS_FAILED].contains(self)
    }
}

/// Reads a code that somebody asks for: an open set, so any short code will do.
impl FromStr for ErrorCode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const RULE: Invalid = Invalid::new("must be 1 to 100 visible ASCII characters without blanks");
        if is_visible_ascii(text, Self::MAX_LEN) { Ok(Self(Cow::Owned(text.to_owned()))) } else { Err(RULE) }
    }
}

impl AsRef<str> for ErrorCode {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
