//! A small HTTP client for the commands that talk to a running server.
//!
//! The server is found through `HOOKSAGA_URL`, the key through `HOOKSAGA_API_KEY` or the embedded server's
//! `root.key`. Every way to fail is one line with what to do.

mod connection;
mod problem;
#[cfg(test)]
pub(crate) mod scripted;

pub(crate) use problem::Problem;

use crate::failure::{Failure, Outcome};
use bytes::Bytes;
use connection::{Connection, Unanswered};
use http::{Method, Request, Response, Uri, header};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use std::{path::Path, time::Duration};

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
const DEFAULT_KEY_FILE: &str = "hooksaga-data/root.key";

/// The server's address, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    tls: bool,
    host: String,
    port: u16,
    /// What stands before every path, without a slash at its end.
    prefix: String,
}

impl Target {
    fn parse(url: &str) -> Outcome<Self> {
        let wrong = || {
            Failure::new(format!(
                "HOOKSAGA_URL {url:?} is not the address of a server: write it like {DEFAULT_URL}"
            ))
        };
        let uri: Uri = url.trim().parse().map_err(|_| wrong())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        Ok(Self {
            tls,
            // An IPv6 address stands in brackets in a URL, and without them everywhere else.
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// A client of one server, with one connection.
pub(crate) struct Client {
    url: String,
    target: Target,
    api_key: String,
    connection: Option<Connection>,
}

/// An answer of the server, of any status.
pub(crate) struct Answer(Response<Bytes>);

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// How long the server asks to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let value = self.0.headers().get(header::RETRY_AFTER)?;
        value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
    }

    /// What the server finds wrong, if it is no success.
    pub(crate) fn problem(&self) -> Problem {
        Problem::read(self.0.body())
    }

    /// The body of a success; the problem of anything else.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Outcome<T> {
        if !self.0.status().is_success() {
            return Err(Failure::new(self.problem().line(self.status())));
        }
        serde_json::from_slice(self.0.body()).map_err(|error| {
            Failure::new(format!("the server's answer is not what this version of hooksaga expects: {error}"))
        })
    }

    /// The body as it came.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.0.body()).into_owned()
    }
}

impl Client {
    pub(crate) fn new(url: &str, api_key: &str) -> Outcome<Self> {
        let api_key = api_key.trim().to_owned();
        if api_key.is_empty() || !api_key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::new(
                "the API key is empty or has characters that no key has: check HOOKSAGA_API_KEY",
            ));
        }
        let url = url.trim().trim_end_matches('/').to_owned();
        Ok(Self { target: Target::parse(&url)?, url, api_key, connection: None })
    }

    /// The client of the server that flags and environment name.
    pub(crate) fn from_environment(url: Option<String>) -> Outcome<Self> {
        let url =
            url.or_else(|| std::env::var("HOOKSAGA_URL").ok()).unwrap_or_else(|| DEFAULT_URL.to_owned());
        let api_key = match std::env::var("HOOKSAGA_API_KEY") {
            Ok(key) => key,
            Err(_) => read_key_file(Path::new(DEFAULT_KEY_FILE))?,
        };
        Self::new(&url, &api_key)
    }

    pub(crate) async fn get(&mut self, path: &str) -> Outcome<Answer> {
        self.request(&Method::GET, path, Bytes::new()).await
    }

    /// Posts a JSON body.
    pub(crate) async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Outcome<Answer> {
        self.request(&Method::POST, path, body.into()).await
    }

    async fn request(&mut self, method: &Method, path: &str, body: Bytes) -> Outcome<Answer> {
        let mut answer = self.try_request(method, path, body.clone()).await;
        if matches!(&answer, Err(unanswered) if unanswered.stale) {
            answer = self.try_request(method, path, body).await;
        }
        answer.map(Answer).map_err(|unanswered| {
            Failure::new(format!(
                "cannot reach {}: {}; start it with `hooksaga serve`, or set HOOKSAGA_URL",
                self.url, unanswered.cause
            ))
        })
    }

    async fn try_request(
        &mut self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Bytes>, Unanswered> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.target).await?,
        };
        let answer = connection.send(self.build(method, path, body)).await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    fn build(&self, method: &Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let Target { host, port, prefix, .. } = &self.target;
        let host = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{prefix}{path}"))
            .header(header::HOST, host)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.api_key))
            .header(header::USER_AGENT, concat!("hooksaga-cli/", env!("CARGO_PKG_VERSION")));
        if method != Method::GET {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(body)).expect("the key and every path are checked to be visible ASCII")
    }
}

fn read_key_file(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format!(
            "no API key: set HOOKSAGA_API_KEY, or run this in the folder of the embedded server, where {} is",
            path.display()
        )),
        _ => Failure::new(format!(
            "cannot read the API key from {}: {error}; set HOOKSAGA_API_KEY",
            path.display()
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let target = |url| Target::parse(url).expect(url);
        assert_eq!(target("http://127.0.0.1:8080").port, 8080);
        assert_eq!(target("https://hooks.example.com/base/").prefix, "/base");
        assert_eq!(target("https://hooks.example.com").port, 443);
        assert_eq!(target("http://[::1]:9").host, "::1");
        for url in ["", "localhost:8080", "ftp://x", "/v1", "http://"] {
            let error = Target::parse(url).expect_err(url).to_string();
            assert!(error.contains("HOOKSAGA_URL"), "{error}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_a_header_is_refused_before_anything_is_sent() {
        for key in ["", "  ", "two words", "line\nbreak"] {
            assert!(Client::new(DEFAULT_URL, key).is_err(), "{key:?}");
        }
        assert!(Client::new(DEFAULT_URL, "hsk_abc\n").is_ok(), "a key file ends with a line break");
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named_with_what_to_do() {
        // A port that was just free and is closed again.
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("loopback").port();
        let mut client = Client::new(&format!("http://127.0.0.1:{port}"), "k").expect("valid");
        let error = client.get("/v1/events").await.err().expect("nobody listens").to_string();
        assert!(error.contains("hooksaga serve") && error.contains(&port.to_string()), "{error}");
    }
}
