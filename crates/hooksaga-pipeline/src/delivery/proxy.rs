//! Callbacks through an HTTP proxy: a tunnel by CONNECT to an address that was looked up and judged here.
//!
//! The proxy gets an address, never a name: it cannot resolve one to something that the guard has not seen. TLS
//! with the endpoint's own name goes through the tunnel, and plain http as well. The proxy's own address is the
//! operator's choice, and is not judged.

use http::{Uri, uri::Scheme};
use std::{fmt, io, net::SocketAddr, str::FromStr};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The most that a proxy's answer to CONNECT may take.
const MAX_ANSWER: usize = 8 * 1024;

/// Where the proxy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyAddress {
    host: Box<str>,
    port: u16,
}

/// Not the URL of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write it like http://proxy.example:3128, without a user, a path or anything else")]
pub struct InvalidProxy;

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    #[error("the proxy cannot be reached: {0}")]
    Unreachable(io::Error),
    #[error("the proxy closed the connection: {0}")]
    Broken(io::Error),
    #[error("the proxy answered with status {0}")]
    Refused(u16),
    #[error("the proxy does not answer in HTTP/1")]
    NotHttp,
}

impl ProxyAddress {
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for ProxyAddress {
    type Err = InvalidProxy;

    fn from_str(text: &str) -> Result<Self, InvalidProxy> {
        let uri: Uri = text.parse().map_err(|_| InvalidProxy)?;
        let authority = uri.authority().ok_or(InvalidProxy)?;
        let bare =
            matches!(uri.path(), "" | "/") && uri.query().is_none() && !authority.as_str().contains('@');
        match authority.port_u16() {
            Some(port)
                if port > 0
                    && bare
                    && uri.scheme() == Some(&Scheme::HTTP)
                    && !authority.host().is_empty() =>
            {
                Ok(Self { host: authority.host().into(), port })
            }
            _ => Err(InvalidProxy),
        }
    }
}

impl fmt::Display for ProxyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// Makes a connection to a proxy one to this address.
pub(super) async fn tunnel(proxy: &mut TcpStream, target: SocketAddr) -> Result<(), ProxyError> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    proxy.write_all(request.as_bytes()).await.map_err(ProxyError::Broken)?;
    let mut answer = Vec::with_capacity(512);
    let head = loop {
        if let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            break head;
        }
        if answer.len() >= MAX_ANSWER {
            return Err(ProxyError::NotHttp);
        }
        if proxy.read_buf(&mut answer).await.map_err(ProxyError::Broken)? == 0 {
            return Err(ProxyError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
    };
    match status(&answer).ok_or(ProxyError::NotHttp)? {
        // Neither TLS nor HTTP lets the server speak first.
        200..=299 if answer.len() == head + 4 => Ok(()),
        200..=299 => Err(ProxyError::NotHttp),
        other => Err(ProxyError::Refused(other)),
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.1 ").or_else(|| answer.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, after) = rest.split_at_checked(3)?;
    // The parser would take a sign.
    let well_formed = digits.iter().all(u8::is_ascii_digit) && matches!(after.first(), Some(b' ' | b'\r'));
    std::str::from_utf8(digits).ok().filter(|_| well_formed)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back() {
        for text in ["http://proxy.example:3128", "http://10.0.0.1:80", "http://[fd00::1]:8080"] {
            let proxy: ProxyAddress = text.parse().expect("a proxy");
            assert_eq!(proxy.to_string(), text);
            assert_eq!(format!("{text}/").parse(), Ok(proxy));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "proxy:3128",
            "http://proxy",
            "https://proxy:3128",
            "socks5://proxy:1080",
            "http://user:secret@proxy:3128",
            "http://proxy:3128/path",
            "http://proxy:3128/?query",
            "http://proxy:0",
            "http://proxy:99999",
            "http://:3128",
        ] {
            assert_eq!(text.parse::<ProxyAddress>(), Err(InvalidProxy), "{text}");
        }
    }

    #[test]
    fn only_http_has_a_status() {
        assert_eq!(status(b"HTTP/1.1 200 Connection established\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407\r\n\r\n"), Some(407));
        for answer in
            [&b""[..], b"HTTP/1.1 20", b"HTTP/2 200 x", b"HTTP/1.1 2000\r\n", b"HTTP/1.1 +20 x", b"SSH-2.0"]
        {
            assert_eq!(status(answer), None, "{answer:?}");
        }
    }
}
