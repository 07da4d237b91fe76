//! The client: one call, one attempt, one result.

use super::{
    body::{self, End},
    connect::Connector,
    failure::{self, SendError},
    guard::EgressPolicy,
    resolve::{Resolve, SystemResolver},
    shortage::Shortage,
    sign,
    tls::{self, ClientSetupError},
};
use crate::secrets::SigningSecret;
use bytes::Bytes;
use hooksaga_saga::{ErrorCode, Outcome};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Builder, Client},
    rt::{TokioExecutor, TokioTimer},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::{Instant, timeout_at};

/// Shorter than the five seconds after which many servers close an idle connection: a request is then
/// seldom written just as its connection closes, which would be a failed attempt.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// As many as a worker sends at a time, so that a burst to one host finds its connections again.
const MAX_IDLE_PER_HOST: usize = 512;
/// An HTTP/2 connection is shared by every request to its host: one that went dead without a word must
/// be noticed soon.
const H2_PING_EVERY: Duration = Duration::from_secs(5);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that a response's header section may take. (HTTP/1 has a limit of 100 headers besides, which
/// is the library's: another one would cost an allocation per response.)
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Timeouts are minutes at most; a limit, so that adding an absurd one to the clock cannot overflow.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The most that is kept of a failed attempt's response.
const EXCERPT_BYTES: usize = 4096;
/// The most that is read of the answer to a challenge.
const ANSWER_BYTES: usize = 4096;

/// Sends callbacks. Clones share one pool of connections.
#[derive(Clone)]
pub struct DeliveryClient {
    pool: Client<Connector, Full<Bytes>>,
    connector: Connector,
    shortage: Arc<Shortage>,
}

/// One callback to send.
#[derive(Clone, Debug)]
pub struct CallbackRequest {
    pub url: String,
    pub webhook_id: String,
    /// Sent as it is.
    pub body: Bytes,
    /// Each one signs, in this order.
    pub secrets: Arc<[SigningSecret]>,
    /// Besides those that every callback has, which they cannot replace.
    pub extra_headers: Vec<(HeaderName, HeaderValue)>,
}

/// How one callback ended.
#[derive(Clone, Debug)]
pub struct PostOutcome {
    pub outcome: Outcome,
    /// If there was an HTTP response.
    pub response_status: Option<u16>,
    pub duration: Duration,
    /// The beginning of a failed attempt's response: at most 4096 bytes.
    pub excerpt: Option<String>,
}

/// This process has no file descriptor left for a connection: nothing was sent, and nobody was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no file descriptor was left for a connection")]
pub struct NotSent;

impl DeliveryClient {
    /// A client that looks names up with the operating system. `extra_roots_pem`: trusted besides the
    /// public roots.
    pub fn new(policy: EgressPolicy, extra_roots_pem: Option<&[u8]>) -> Result<Self, ClientSetupError> {
        Self::with_resolver(policy, extra_roots_pem, Arc::new(SystemResolver::new()))
    }

    /// A client with another resolver.
    pub fn with_resolver(
        policy: EgressPolicy,
        extra_roots_pem: Option<&[u8]>,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, ClientSetupError> {
        let connector = Connector::new(policy, resolver, tls::connector(extra_roots_pem)?);
        let pool = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
            // Only requests of which nothing was written, on a connection that the server had closed.
            .retry_canceled_requests(true)
            .http1_max_buf_size(MAX_HEADER_BYTES)
            .http2_max_header_list_size(MAX_HEADER_BYTES as u32)
            .http2_keep_alive_interval(H2_PING_EVERY)
            .http2_keep_alive_timeout(H2_PING_TIMEOUT)
            .build(connector.clone());
        Ok(Self { pool, connector, shortage: Arc::default() })
    }

    /// Sends a callback, signed now, and waits until its outcome is certain: for the headers of a
    /// success, for the beginning of a failure's body; `timeout` at the longest.
    pub async fn post(&self, request: CallbackRequest, timeout: Duration) -> Result<PostOutcome, NotSent> {
        let started = Instant::now();
        let (outcome, response_status, excerpt) = self.attempt(request, deadline(started, timeout)).await?;
        Ok(PostOutcome { outcome, response_status, duration: started.elapsed(), excerpt })
    }

    async fn attempt(
        &self,
        request: CallbackRequest,
        deadline: Instant,
    ) -> Result<(Outcome, Option<u16>, Option<String>), NotSent> {
        let response = match self.send(request, deadline).await {
            Ok(response) => response,
            Err(SendError::Failed(code)) => return Ok((Outcome::Failed(code), None, None)),
            Err(SendError::NoDescriptor) => return Err(NotSent),
        };
        let status = response.status();
        let mut body = response.into_body();
        if status.is_success() {
            body::discard(body);
            return Ok((Outcome::Delivered, Some(status.as_u16()), None));
        }
        let (start, end) = body::read_start(&mut body, EXCERPT_BYTES, deadline).await;
        if end == End::Cut {
            body::discard(body);
        }
        let excerpt = body::excerpt(&start, EXCERPT_BYTES, end != End::Complete);
        Ok((Outcome::Failed(status_code(status)), Some(status.as_u16()), excerpt))
    }

    /// Sends a verification and answers the body of its 2xx response, complete and of at most 4096 bytes.
    pub(crate) async fn challenge(
        &self,
        request: CallbackRequest,
        timeout: Duration,
    ) -> Result<Vec<u8>, ErrorCode> {
        let deadline = deadline(Instant::now(), timeout);
        let response = self.send(request, deadline).await.map_err(|error| match error {
            SendError::Failed(code) => code,
            SendError::NoDescriptor => ErrorCode::INTERNAL,
        })?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            body::discard(body);
            return Err(status_code(status));
        }
        match body::read_start(&mut body, ANSWER_BYTES, deadline).await {
            (answer, End::Complete) => Ok(answer),
            // No answer to a challenge is that long.
            (_, End::Cut) => Err(ErrorCode::CHALLENGE_MISMATCH),
            (_, End::Late) => Err(ErrorCode::TIMEOUT),
            (_, End::Broken) => Err(ErrorCode::RESPONSE_INVALID),
        }
    }

    /// Signs and sends; answers as soon as the response's headers are there.
    async fn send(
        &self,
        request: CallbackRequest,
        deadline: Instant,
    ) -> Result<Response<Incoming>, SendError> {
        // A URL that is stored has been checked: what fails here is a fault of this server.
        let uri = Uri::try_from(request.url).map_err(|_| SendError::Failed(ErrorCode::INTERNAL))?;
        if !self.connector.permits_scheme(uri.scheme()) {
            return Err(SendError::Failed(ErrorCode::BLOCKED_ADDRESS));
        }
        let CallbackRequest { webhook_id, body, secrets, extra_headers, .. } = request;
        let headers = sign::headers(&webhook_id, unix_seconds(), &body, &secrets, extra_headers)
            .map_err(|_| SendError::Failed(ErrorCode::INTERNAL))?;

        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        match timeout_at(deadline, self.pool.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let cause = failure::cause_of(&error);
                if cause == SendError::NoDescriptor {
                    self.shortage.report(Instant::now());
                }
                Err(cause)
            }
            Err(_) => Err(SendError::Failed(ErrorCode::TIMEOUT)),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the receiver compares the signature's time with its own wall clock; nothing is decided by it here"
)]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn deadline(started: Instant, timeout: Duration) -> Instant {
    started + timeout.min(LONGEST_TIMEOUT)
}

/// The code of a response that is not 2xx.
fn status_code(status: http::StatusCode) -> ErrorCode {
    if status.is_redirection() { ErrorCode::REDIRECT } else { ErrorCode::http(status.as_u16()) }
}
