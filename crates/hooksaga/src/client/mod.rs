//! A small HTTP client for the commands that talk to a running server.
//!
//! The server is found through `HOOKSAGA_URL`, the key through `HOOKSAGA_API_KEY`, the file that `HOOKSAGA_API_KEY_FILE`
//! names, or the embedded server's `root.key`. Every way to fail is one line with what to do.

mod problem;
#[cfg(test)]
pub(crate) mod scripted;
mod transport;

pub(crate) use problem::ApiProblem;
pub(crate) use transport::{Bounds, Transport, Unanswered};

use crate::error::{CliError, CliResult};
use bytes::Bytes;
use http::{Method, Request, Response, Uri, header};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
const DEFAULT_KEY_FILE: &str = "hooksaga-data/root.key";
/// No response of the API that a client command reads is larger, nor takes longer.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(60), bytes: 64 << 20 };

/// A client of one server.
pub(crate) struct Client {
    /// Without a slash at its end.
    url: String,
    api_key: String,
    transport: Transport,
    /// What to do when nobody responds.
    advice: &'static str,
}

/// A response of the server, of any status.
pub(crate) struct Reply(Response<Bytes>);

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// How long the server asks to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let value = self.0.headers().get(header::RETRY_AFTER)?;
        value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
    }

    /// Whether waiting may help: the server is overloaded, its database is away, or this key has asked too much.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.status(), 429 | 502 | 503 | 504)
    }

    /// What the server finds wrong, if it is no success.
    pub(crate) fn problem(&self) -> ApiProblem {
        ApiProblem::read(self.0.body())
    }

    /// The body of a success; the problem of anything else.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> CliResult<T> {
        self.expect_success()?;
        serde_json::from_slice(self.0.body()).map_err(|error| {
            CliError::new(format!(
                "the server's answer is not what this version of hooksaga expects: {error}"
            ))
        })
    }

    /// The failure that the response reports, if it is one.
    pub(crate) fn expect_success(&self) -> CliResult {
        if self.0.status().is_success() {
            return Ok(());
        }
        Err(CliError::new(self.problem().line(self.status())))
    }

    /// The body, unchanged.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.0.body()).into_owned()
    }
}

impl Client {
    pub(crate) fn new(url: &str, api_key: &str) -> CliResult<Self> {
        let api_key = api_key.trim().to_owned();
        if api_key.is_empty() || !api_key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(CliError::new(
                "the API key is empty or has characters that no key has: check HOOKSAGA_API_KEY",
            ));
        }
        let advice = "start it with `hooksaga serve`, or set HOOKSAGA_URL";
        Ok(Self { url: address(url)?, api_key, transport: Transport::from_environment()?, advice })
    }

    /// A client for the probes of this machine's own server: it has no key to send, and verifies no certificate, which
    /// is for the name that others reach the server by.
    pub(crate) fn for_probes(url: &str) -> CliResult<Self> {
        let advice = "start it with `hooksaga serve`, or ask with the configuration that it has";
        Ok(Self {
            url: address(url)?,
            api_key: "none".to_owned(),
            transport: Transport::unverified(),
            advice,
        })
    }

    /// The client of the server that flags and environment name.
    pub(crate) fn from_environment(url: Option<String>) -> CliResult<Self> {
        let url =
            url.or_else(|| std::env::var("HOOKSAGA_URL").ok()).unwrap_or_else(|| DEFAULT_URL.to_owned());
        Self::new(&url, &api_key(|name| std::env::var_os(name))?)
    }

    pub(crate) async fn get(&self, path: &str) -> CliResult<Reply> {
        self.request(&Method::GET, path, Bytes::new()).await
    }

    /// Posts a JSON body.
    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> CliResult<Reply> {
        self.request(&Method::POST, path, body.into()).await
    }

    /// Patches with a JSON body.
    pub(crate) async fn patch(&self, path: &str, body: impl Into<Bytes>) -> CliResult<Reply> {
        self.request(&Method::PATCH, path, body.into()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> CliResult<Reply> {
        self.request(&Method::DELETE, path, Bytes::new()).await
    }

    async fn request(&self, method: &Method, path: &str, body: Bytes) -> CliResult<Reply> {
        let answer = self.transport.send(self.build(method, path, body), BOUNDS).await;
        answer.map(Reply).map_err(|Unanswered(cause)| {
            CliError::new(format!("cannot reach {}: {cause}; {}", self.url, self.advice))
        })
    }

    fn build(&self, method: &Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.api_key))
            .header(header::USER_AGENT, concat!("hooksaga-cli/", env!("CARGO_PKG_VERSION")));
        if method != Method::GET {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request
            .body(Full::new(body))
            .expect("the address, the key and every path are checked to be visible ASCII")
    }
}

/// The address of a server, checked.
fn address(url: &str) -> CliResult<String> {
    let wrong = || {
        CliError::new(format!(
            "HOOKSAGA_URL {url:?} is not the address of a server: write it like {DEFAULT_URL}"
        ))
    };
    let uri: Uri = url.trim().parse().map_err(|_| wrong())?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri.host().is_some_and(|host| !host.is_empty());
    if !known || !host || uri.query().is_some() {
        return Err(wrong());
    }
    Ok(url.trim().trim_end_matches('/').to_owned())
}

/// The API key that the environment names.
fn api_key(variable: impl Fn(&str) -> Option<OsString>) -> CliResult<String> {
    if let Some(key) = variable("HOOKSAGA_API_KEY") {
        return Ok(key.to_string_lossy().into_owned());
    }
    let named = variable("HOOKSAGA_API_KEY_FILE").map(PathBuf::from);
    let path = named.as_deref().unwrap_or(Path::new(DEFAULT_KEY_FILE));
    std::fs::read_to_string(path).map_err(|error| match (&named, error.kind()) {
        (None, std::io::ErrorKind::NotFound) => CliError::new(format!(
            "no API key: set HOOKSAGA_API_KEY, or run this in the folder of the embedded server, where the first \
             `hooksaga serve` makes {DEFAULT_KEY_FILE}"
        )),
        (None, _) => CliError::new(format!(
            "cannot read the API key from {DEFAULT_KEY_FILE}: {error}; set HOOKSAGA_API_KEY"
        )),
        (Some(path), _) => CliError::new(format!(
            "cannot read the API key from {}: {error}; correct HOOKSAGA_API_KEY_FILE, or set HOOKSAGA_API_KEY",
            path.display()
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_before_anything_is_sent() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            (" https://hooks.example.com/base/ ", "https://hooks.example.com/base"),
            ("http://[::1]:9", "http://[::1]:9"),
        ] {
            assert_eq!(address(url).expect(url), expected);
        }
        for url in ["", "localhost:8080", "ftp://x", "/v1", "http://", "http://x/?a=b", "http://a b"] {
            let error = address(url).expect_err(url).to_string();
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

    #[test]
    fn the_key_comes_from_its_variable_or_from_the_file_that_another_names() {
        let folder = hooksaga_testkit::scratch::ScratchDir::new("key");
        let file = folder.path().join("root.key");
        std::fs::write(&file, "hsk_file\n").expect("writes");
        let found = |direct: Option<&str>, path: Option<&Path>| {
            api_key(|name| match name {
                "HOOKSAGA_API_KEY" => direct.map(OsString::from),
                "HOOKSAGA_API_KEY_FILE" => path.map(OsString::from),
                _ => None,
            })
        };
        assert_eq!(found(None, Some(&file)).expect("read"), "hsk_file\n");
        assert_eq!(found(Some("hsk_own"), Some(&file)).expect("set"), "hsk_own", "it is the nearer one");
        let missing = found(None, Some(&folder.path().join("other"))).expect_err("not there").to_string();
        assert!(missing.contains("other") && missing.contains("HOOKSAGA_API_KEY_FILE"), "{missing}");
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named_with_what_to_do() {
        // A port that was just free and is closed again.
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("loopback").port();
        let client = Client::new(&format!("http://127.0.0.1:{port}"), "k").expect("valid");
        let error = client.get("/v1/events").await.err().expect("nobody listens").to_string();
        assert!(error.contains("hooksaga serve") && error.contains(&port.to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_a_get_survives_its_end() {
        let (url, connections) = scripted::closing_after(2).await;
        let client = Client::new(&url, "k").expect("valid");
        for _ in 0..5 {
            assert_eq!(client.get("/v1/stats").await.expect("an answer").status(), 200);
        }
        let used = || connections.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(used(), 3, "each takes 2 requests");
        assert!(client.get("/v1/stats").await.is_ok());
        let lost =
            client.post("/v1/events", "{}").await.err().expect("it may have been carried out").to_string();
        assert!(lost.contains("cannot reach") && used() == 3, "{lost}");
    }
}
