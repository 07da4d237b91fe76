//! The client: one call, one attempt, one result.

use super::{
    LOG_EVERY,
    body::{self, End},
    connect::Connector,
    failure::{self, SendError},
    guard::EgressPolicy,
    interim::InterimLimit,
    resolve::{NameResolver, Resolve},
    sign,
    tls::{self, ClientSetupError},
};
use crate::{LogThrottle, secrets::SigningSecret};
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
/// The most that a response's header section may take. (There is a limit of 100 headers besides, which is
/// the library's: another one would cost an allocation per response.)
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Timeouts are minutes at most; a limit, so that adding an absurd one to the clock cannot overflow.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The most that is kept of a failed attempt's response.
const EXCERPT_BYTES: usize = 4096;
/// A longer `Retry-After` is none: seconds and dates are shorter.
const RETRY_AFTER_CHARS: usize = 64;
/// The most that is read of the answer to a challenge.
const ANSWER_BYTES: usize = 4096;

/// Sends callbacks. Clones share one pool of connections.
#[derive(Clone)]
pub struct DeliveryClient {
    pool: Client<Connector, Full<Bytes>>,
    connector: Connector,
    shortage: Arc<LogThrottle>,
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
    /// The text of `Retry-After` in a 429 or 503, as it came: at most 64 visible ASCII characters and blanks.
    pub retry_after: Option<String>,
}

/// This process has no file descriptor left for a connection, or no room for a lookup: nothing was sent, and
/// the endpoint was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no file descriptor or DNS lookup slot is free")]
pub struct NotSent;

impl DeliveryClient {
    /// A client that looks names up as the system is configured to, with a resolver and connections of its own.
    /// `extra_roots_pem`: trusted besides the public roots.
    pub fn new(policy: EgressPolicy, extra_roots_pem: Option<&[u8]>) -> Result<Self, ClientSetupError> {
        Self::with_resolver(policy, extra_roots_pem, Arc::new(NameResolver::of_system()))
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
            .build(connector.clone());
        Ok(Self { pool, connector, shortage: Arc::new(LogThrottle::new(LOG_EVERY)) })
    }

    /// Sends a callback, signed now, and waits until its outcome is certain: for the headers of a
    /// success, for the beginning of a failure's body; `timeout` at the longest.
    pub async fn post(&self, request: CallbackRequest, timeout: Duration) -> Result<PostOutcome, NotSent> {
        let started = Instant::now();
        let mut done = self.attempt(request, deadline(started, timeout)).await?;
        done.duration = started.elapsed();
        Ok(done)
    }

    /// Everything but the duration.
    async fn attempt(&self, request: CallbackRequest, deadline: Instant) -> Result<PostOutcome, NotSent> {
        let ended = |outcome, response_status| PostOutcome {
            outcome,
            response_status,
            duration: Duration::ZERO,
            excerpt: None,
            retry_after: None,
        };
        let response = match self.send(request, deadline).await {
            Ok(response) => response,
            Err(SendError::Failed(code)) => return Ok(ended(Outcome::Failed(code), None)),
            Err(SendError::NoDescriptor | SendError::NoLookup) => return Err(NotSent),
        };
        let status = response.status();
        let retry_after = retry_after(status, response.headers());
        let mut body = response.into_body();
        if status.is_success() {
            body::discard(body);
            return Ok(ended(Outcome::Delivered, Some(status.as_u16())));
        }
        let (start, end) = body::read_start(&mut body, EXCERPT_BYTES, deadline).await;
        if end == End::Cut {
            body::discard(body);
        }
        let excerpt = body::excerpt(&start, EXCERPT_BYTES, end != End::Complete);
        let failed = Outcome::Failed(status_code(status));
        Ok(PostOutcome { excerpt, retry_after, ..ended(failed, Some(status.as_u16())) })
    }

    /// Sends a verification and returns the body of its 2xx response, complete and of at most 4096 bytes.
    pub(crate) async fn challenge(
        &self,
        request: CallbackRequest,
        timeout: Duration,
    ) -> Result<Vec<u8>, ErrorCode> {
        let deadline = deadline(Instant::now(), timeout);
        let response = self.send(request, deadline).await.map_err(|error| match error {
            SendError::Failed(code) => code,
            SendError::NoDescriptor | SendError::NoLookup => ErrorCode::INTERNAL,
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

    /// Signs and sends; returns as soon as the response's headers are there.
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
        let interim = InterimLimit::on(&mut request);
        let sent = tokio::select! {
            sent = timeout_at(deadline, self.pool.request(request)) => sent,
            // The connection closes with the request that is dropped here.
            () = interim.exceeded() => return Err(SendError::Failed(ErrorCode::RESPONSE_INVALID)),
        };
        match sent {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let cause = failure::cause_of(&error);
                if cause == SendError::NoDescriptor
                    && self.shortage.is_due(std::time::Instant::now()).is_some()
                {
                    tracing::error!(
                        "no file descriptor is left for connections, so deliveries wait: raise the limit of open \
                         files (ulimit -n, LimitNOFILE in systemd), or lower worker.concurrency"
                    );
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

/// What an endpoint that has too much to do says about when to come back.
fn retry_after(status: http::StatusCode, headers: &http::HeaderMap) -> Option<String> {
    if !matches!(status.as_u16(), 429 | 503) {
        return None;
    }
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim();
    (1..=RETRY_AFTER_CHARS).contains(&text.len()).then(|| text.to_owned())
}
