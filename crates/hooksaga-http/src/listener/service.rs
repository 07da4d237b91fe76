//! One request of one connection: it is handled, and its response is accounted for.

use super::{
    Shared,
    connection::Peer,
    responses::{Metered, Unmetered},
};
use crate::problem::{Kind, Problem};
use axum::{body::Body, response::IntoResponse};
use bytes::Bytes;
use http::{Method, Request, Response, Version, header};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Routes that need a key.
const KEYED: &str = "/v1/";

/// A body of at most this many bytes is not counted: the number of connections bounds the sum of these.
const UNCOUNTED: usize = 1 << 10;

/// Handles one request. The future is the connection's own, without an allocation for each request.
pub(super) async fn respond(
    shared: &Shared,
    request: Request<Incoming>,
    peer: &Arc<Peer>,
) -> Result<Response<Metered>, Infallible> {
    peer.begin();
    if !names_one_host(&request) {
        peer.respond();
        // Like what hyper refuses: in the log for whoever looks for it, and not among the requests to routes.
        tracing::debug!("a request without exactly one host header was refused");
        let problem = Problem::new(Kind::BadRequest, "send exactly one Host header");
        return Ok(problem.into_response().map(|body| Metered::new(body, None, Arc::clone(peer))));
    }
    let keyed = request.uri().path().starts_with(KEYED);
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let request = request.map(|body| Body::new(Awaited { body, peer: Arc::clone(peer) }));
    let response =
        tower::ServiceExt::oneshot(shared.app.clone(), request).await.unwrap_or_else(|never| match never {});
    peer.respond();
    let peer = Arc::clone(peer);

    let bytes = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
    if bytes <= UNCOUNTED || response.extensions().get::<Unmetered>().is_some() {
        return Ok(response.map(|body| Metered::new(body, None, peer)));
    }
    let responses = if keyed { &shared.responses } else { &shared.public_responses };
    let (response, share) = match responses.try_take(bytes) {
        Ok(share) => (response, Some(share)),
        Err(excess) => {
            // Each of those that go gives at least something back; who asks again finds the room.
            shared.connections.evict_stalled_readers(1 + excess / bytes.max(1));
            if reads {
                drop(response);
                let problem = "other clients have not taken their responses yet; try again shortly";
                (Problem::new(Kind::Overloaded, problem).into_response(), None)
            } else {
                // The client must learn what was done.
                (response, Some(responses.take(bytes)))
            }
        }
    };
    Ok(response.map(|body| Metered::new(body, share, peer)))
}

/// As HTTP/1.1 asks. Where there are two, a proxy in front may read the one and this server the other.
fn names_one_host<B>(request: &Request<B>) -> bool {
    match request.headers().get_all(header::HOST).iter().count() {
        0 => request.version() < Version::HTTP_11,
        hosts => hosts == 1,
    }
}

/// A request's body; the listener knows when it is waited for.
struct Awaited {
    body: Incoming,
    peer: Arc<Peer>,
}

impl HttpBody for Awaited {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.peer.set_waits_for_body(polled.is_pending());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
