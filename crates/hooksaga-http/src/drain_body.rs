//! Keeps a connection open after an early refusal until the client has sent its body. Without that the connection would
//! close with unread data, and the client would see a reset instead of the response. So a refusal waits until the rest
//! has been read and thrown away, within bounds. A client that asked first (`expect: 100-continue`) and was not told to
//! go on has not begun to send: its response is sent at once.

use axum::{
    body::{Body, Bytes},
    extract::Request,
    middleware::Next,
    response::Response,
};
use http::header;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

/// How much is thrown away at most.
const MAX_DISCARDED: u64 = 64 << 20;

/// How long that may take.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The request's body, which the handler reads and of which this layer keeps a hold.
#[derive(Clone)]
struct Shared(Arc<Mutex<Watched>>);

struct Watched {
    body: Body,
    /// Whether the handler has asked for any of it.
    asked_for: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut watched = self.lock();
        watched.asked_for = true;
        Pin::new(&mut watched.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().body.size_hint()
    }
}

pub(crate) async fn linger(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let asks_first = parts.headers.contains_key(header::EXPECT);
    let mut kept = Shared(Arc::new(Mutex::new(Watched { body, asked_for: false })));
    let response = next.run(Request::from_parts(parts, Body::new(kept.clone()))).await;
    let refused = response.status().is_client_error() || response.status().is_server_error();
    let sending = kept.lock().asked_for || !asks_first;
    if refused && sending && !kept.is_end_stream() {
        // Running out of time is as good as done: the response goes out either way.
        let _ = tokio::time::timeout(MAX_WAIT, discard(&mut kept)).await;
    }
    response
}

async fn discard(body: &mut Shared) {
    let mut discarded = 0_u64;
    while discarded < MAX_DISCARDED {
        match body.frame().await {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                discarded += u64::try_from(length).unwrap_or(MAX_DISCARDED);
            }
            Some(Err(_)) | None => return,
        }
    }
}
