//! Reading one HTTP/1.1 request, and what arrived.

use std::time::Instant;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufStream},
    net::TcpStream,
};

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

/// The next request; nothing when the connection is closed or what comes is no request.
pub(super) async fn read(stream: &mut BufStream<TcpStream>) -> Option<Arrival> {
    let start = line(stream).await?;
    let mut words = start.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let header = line(stream).await?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(Some(0), |(_, value)| value.parse().ok())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Arrival { at: Instant::now(), method, path, headers, body })
}

async fn line(stream: &mut BufStream<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line).await.ok()?;
    (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
}
