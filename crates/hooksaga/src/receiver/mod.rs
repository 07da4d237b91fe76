//! A webhook receiver for development, used by `listen` and `demo`.
//!
//! It echoes verification challenges, checks signatures when it knows a secret, responds to deliveries as
//! configured or as the program that it forwards them to, and reports every arrival to its caller. It accepts any path.

mod forward;
mod signature;

pub(crate) use forward::{Forward, target};
pub(crate) use signature::SignatureCheck;

use bytes::Bytes;
use forward::Forwarded;
use hooksaga_pipeline::SigningSecret;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use std::{
    convert::Infallible,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{net::TcpListener, sync::mpsc};

/// The largest body that it reads: well above what the server delivers by default.
const LARGEST_BODY: usize = 300 << 20;

/// How deliveries are answered.
#[derive(Clone, Debug)]
pub(crate) struct ResponsePlan {
    /// This many deliveries fail first.
    pub(crate) fail_first: u64,
    /// How those are answered.
    pub(crate) failure: StatusCode,
    /// How all others are.
    pub(crate) answer: StatusCode,
    /// How long a delivery waits for its answer.
    pub(crate) delay: Duration,
}

impl Default for ResponsePlan {
    fn default() -> Self {
        Self {
            fail_first: 0,
            failure: StatusCode::INTERNAL_SERVER_ERROR,
            answer: StatusCode::OK,
            delay: Duration::ZERO,
        }
    }
}

/// Something that arrived.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) kind: ArrivalKind,
    pub(crate) webhook_id: String,
    pub(crate) verdict: SignatureCheck,
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// What there is to say about the status.
    pub(crate) remark: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ArrivalKind {
    Verification,
    Delivery {
        event_type: String,
        attempt: String,
    },
    /// Not a POST: somebody looking.
    Other {
        method: Method,
        path: String,
    },
}

/// The receiver's state, shared by its connections.
pub(crate) struct Receiver {
    secrets: Vec<SigningSecret>,
    behaviour: RwLock<ResponsePlan>,
    forward: Option<Forward>,
    deliveries: AtomicU64,
    arrivals: mpsc::UnboundedSender<Arrival>,
}

impl Receiver {
    /// A receiver, and where its arrivals are reported.
    pub(crate) fn new(
        behaviour: ResponsePlan,
        secrets: Vec<SigningSecret>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Arrival>) {
        Self::with(behaviour, secrets, None)
    }

    /// The same, but deliveries whose signature is right go to another program, which responds to them.
    pub(crate) fn forwarding(
        behaviour: ResponsePlan,
        secrets: Vec<SigningSecret>,
        forward: Forward,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Arrival>) {
        Self::with(behaviour, secrets, Some(forward))
    }

    fn with(
        behaviour: ResponsePlan,
        secrets: Vec<SigningSecret>,
        forward: Option<Forward>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Arrival>) {
        let (arrivals, reported) = mpsc::unbounded_channel();
        let (behaviour, deliveries) = (RwLock::new(behaviour), AtomicU64::new(0));
        (Arc::new(Self { secrets, behaviour, forward, deliveries, arrivals }), reported)
    }

    /// From now on, answers like this, counting afresh.
    pub(crate) fn behave(&self, behaviour: ResponsePlan) {
        *self.behaviour.write().expect("no holder of this lock panics") = behaviour;
        self.deliveries.store(0, Ordering::Relaxed);
    }

    /// Accepts connections until it is dropped.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // Out of file handles, or a connection that broke at once: others may do better shortly.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let receiver = Arc::clone(&self);
            tokio::spawn(async move {
                let service = service_fn(move |request| Arc::clone(&receiver).handle(request));
                // A broken connection is the sender's matter: it will try again.
                let _ = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, LARGEST_BODY).collect().await else {
            return Ok(answer(StatusCode::PAYLOAD_TOO_LARGE, Bytes::new()));
        };
        let body = body.to_bytes();
        if head.method != Method::POST {
            let kind = ArrivalKind::Other { method: head.method, path: head.uri.path().to_owned() };
            self.report(kind, &head.headers, SignatureCheck::Unchecked, StatusCode::METHOD_NOT_ALLOWED, body);
            return Ok(answer(StatusCode::METHOD_NOT_ALLOWED, "a webhook receiver: POST only\n"));
        }
        let verdict = signature::check(&head.headers, &body, &self.secrets, unix_seconds());
        if let Some(challenge) = challenge(&head.headers, &body) {
            self.report(ArrivalKind::Verification, &head.headers, verdict, StatusCode::OK, body);
            let echo = serde_json::json!({ "challenge": challenge }).to_string();
            return Ok(answer(StatusCode::OK, echo));
        }
        let (status, delay) = self.answer_to_delivery(verdict);
        let kind = ArrivalKind::Delivery {
            event_type: text(&head.headers, "hooksaga-event-type"),
            attempt: text(&head.headers, "hooksaga-attempt"),
        };
        if let Some(forward) = self.forward.clone().filter(|_| verdict.is_acceptable()) {
            let passing = self.pass_on(forward, kind, head.headers, verdict, body, delay);
            // Goes on, and is reported, also if the sender does not wait for the response.
            let passed = tokio::spawn(passing).await;
            return Ok(passed.unwrap_or_else(|_| answer(StatusCode::BAD_GATEWAY, Bytes::new())));
        }
        // Told before the delay: it has arrived, also if the sender does not wait for the answer.
        self.report(kind, &head.headers, verdict, status, body);
        tokio::time::sleep(delay).await;
        let said = match status {
            StatusCode::UNAUTHORIZED if !verdict.is_acceptable() => "the signature is not valid\n",
            status if status.is_success() => "received\n",
            _ => "this receiver was told to fail\n",
        };
        Ok(answer(status, said))
    }

    async fn pass_on(
        self: Arc<Self>,
        forward: Forward,
        kind: ArrivalKind,
        headers: HeaderMap,
        verdict: SignatureCheck,
        body: Bytes,
        delay: Duration,
    ) -> Response<Full<Bytes>> {
        tokio::time::sleep(delay).await;
        let Forwarded { response, remark } = forward.pass_on(&headers, body.clone()).await;
        let (webhook_id, status) = (text(&headers, "webhook-id"), response.status());
        let _ = self.arrivals.send(Arrival { kind, webhook_id, verdict, status, body, remark });
        response.map(Full::new)
    }

    /// The answer to a delivery, and how long it waits for it.
    fn answer_to_delivery(&self, verdict: SignatureCheck) -> (StatusCode, Duration) {
        if !verdict.is_acceptable() {
            return (StatusCode::UNAUTHORIZED, Duration::ZERO);
        }
        let behaviour = self.behaviour.read().expect("no holder of this lock panics");
        let number = self.deliveries.fetch_add(1, Ordering::Relaxed);
        let status = if number < behaviour.fail_first { behaviour.failure } else { behaviour.answer };
        (status, behaviour.delay)
    }

    fn report(
        &self,
        kind: ArrivalKind,
        headers: &HeaderMap,
        verdict: SignatureCheck,
        status: StatusCode,
        body: Bytes,
    ) {
        let webhook_id = text(headers, "webhook-id");
        // Nobody listens any more: the program is about to end.
        let _ =
            self.arrivals.send(Arrival { kind, webhook_id, verdict, status, body, remark: String::new() });
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a receiver judges a timestamp by its own clock: it has no database"
)]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The challenge, if this is a verification. Its webhook-id says so: an event's payload may look like one.
fn challenge(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ChallengeBody {
        r#type: String,
        challenge: String,
    }
    if !headers.get("webhook-id")?.as_bytes().starts_with(b"ver_") {
        return None;
    }
    let verification: ChallengeBody = serde_json::from_slice(body).ok()?;
    (verification.r#type == "hooksaga.verification").then_some(verification.challenge)
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers
        .get(name)
        .map_or_else(|| "-".to_owned(), |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn only_a_verification_is_answered_as_one() {
        let body = br#"{"type":"hooksaga.verification","subscription_id":1,"challenge":"abc"}"#;
        let id = |id: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static("webhook-id"), HeaderValue::from_static(id))])
        };
        assert_eq!(challenge(&id("ver_1_1"), body).as_deref(), Some("abc"));
        assert_eq!(challenge(&id("evt_1"), body), None, "an event that looks like one");
        assert_eq!(challenge(&HeaderMap::new(), body), None);
        for body in [&br#"{"type":"order","challenge":"abc"}"#[..], b"[]", b"", br#"{"challenge":"abc"}"#] {
            assert_eq!(challenge(&id("ver_1_1"), body), None);
        }
    }

    #[test]
    fn the_first_deliveries_fail_and_the_others_do_not() {
        let failing =
            ResponsePlan { fail_first: 2, failure: StatusCode::BAD_GATEWAY, ..ResponsePlan::default() };
        let (receiver, _arrivals) = Receiver::new(failing.clone(), Vec::new());
        let answer = |verdict| receiver.answer_to_delivery(verdict).0.as_u16();
        for expected in [502, 502, 200, 200] {
            assert_eq!(answer(SignatureCheck::Unchecked), expected);
        }
        receiver.behave(failing);
        assert_eq!(answer(SignatureCheck::Valid), 502, "counts afresh");
    }

    #[test]
    fn a_forged_delivery_is_refused_at_once_and_does_not_count() {
        let behaviour =
            ResponsePlan { fail_first: 1, delay: Duration::from_secs(1), ..ResponsePlan::default() };
        let (receiver, _arrivals) = Receiver::new(behaviour, vec![SigningSecret::generate()]);
        let forged = receiver.answer_to_delivery(SignatureCheck::Invalid);
        assert_eq!(forged, (StatusCode::UNAUTHORIZED, Duration::ZERO));
        let genuine = receiver.answer_to_delivery(SignatureCheck::Valid);
        assert_eq!(genuine, (StatusCode::INTERNAL_SERVER_ERROR, Duration::from_secs(1)));
    }
}
