//! What arrived.

use crate::server::ReceivedRequest;
use std::time::Instant;

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub method: String,
    pub path: String,
    /// Names in lower case, in the order received.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Arrival {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Whether it is a verification challenge rather than a delivery.
    pub fn is_challenge(&self) -> bool {
        self.header("webhook-id").is_some_and(|id| id.starts_with("ver_"))
    }

    /// The challenge in it.
    pub(super) fn challenge(&self) -> Option<&str> {
        let (_, rest) = self.text().split_once(r#""challenge":""#)?;
        rest.split_once('"').map(|(challenge, _)| challenge)
    }
}

impl From<ReceivedRequest> for Arrival {
    fn from(request: ReceivedRequest) -> Self {
        // The head ends with an empty line.
        let mut lines = request.head.lines().filter(|line| !line.is_empty());
        let mut words = lines.next().unwrap().split(' ').map(ToOwned::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self { at: Instant::now(), method, path, headers: lines.map(header).collect(), body: request.body }
    }
}
