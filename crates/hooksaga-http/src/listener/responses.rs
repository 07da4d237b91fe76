//! The bytes of response bodies that wait for their clients.

use super::{connection::Peer, connections::ListenerCounters};
use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

/// A body as large as this is copied: the buffer that it was written into has up to twice its size, and would be held
/// for as long as its client takes.
const COPIED: usize = 64 << 10;

/// Put into a response's extensions: its body is one that all requests share, such as a page that is part of the
/// program, and takes no memory of its own.
#[derive(Clone, Copy, Debug)]
pub struct Unmetered;

/// How much may wait, and how much does.
pub(super) struct WaitingResponses {
    limit: usize,
    held: Arc<WaitingBytes>,
}

struct WaitingBytes {
    bytes: AtomicUsize,
    counts: Arc<ListenerCounters>,
}

/// The room that one body takes; given back when the last of its bytes is gone.
pub(super) struct ResponseRoom {
    bytes: usize,
    held: Arc<WaitingBytes>,
}

impl WaitingResponses {
    pub(super) fn new(limit: usize, counts: Arc<ListenerCounters>) -> Self {
        Self { limit, held: Arc::new(WaitingBytes { bytes: AtomicUsize::new(0), counts }) }
    }

    /// Room for a body, or how many bytes too many it has.
    pub(super) fn try_take(&self, bytes: usize) -> Result<ResponseRoom, usize> {
        let share = self.take(bytes);
        // A single body that is larger than everything is sent when nothing else waits.
        match self.excess() {
            excess if excess > 0 && self.held.bytes.load(Ordering::Relaxed) > bytes => Err(excess),
            _ => Ok(share),
        }
    }

    /// Room for a body that must be sent.
    pub(super) fn take(&self, bytes: usize) -> ResponseRoom {
        self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.held.counts.response_bytes.fetch_add(bytes, Ordering::Relaxed);
        ResponseRoom { bytes, held: Arc::clone(&self.held) }
    }

    /// How much more waits than may.
    pub(super) fn excess(&self) -> usize {
        self.held.bytes.load(Ordering::Relaxed).saturating_sub(self.limit)
    }
}

impl Drop for ResponseRoom {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.held.counts.response_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A response's body with its share: the bytes keep it wherever they wait.
pub(super) struct Metered {
    body: Body,
    share: Option<Arc<ResponseRoom>>,
    peer: Arc<Peer>,
}

impl Metered {
    pub(super) fn new(body: Body, share: Option<ResponseRoom>, peer: Arc<Peer>) -> Self {
        Self { body, share: share.map(Arc::new), peer }
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.peer.body_done();
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let Some(share) = &self.share else { return polled };
        polled.map_ok(|frame| {
            frame.map_data(|bytes| {
                let bytes = if bytes.len() >= COPIED { Bytes::copy_from_slice(&bytes) } else { bytes };
                Bytes::from_owner(CountedBytes { bytes, _share: Arc::clone(share) })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct CountedBytes {
    bytes: Bytes,
    _share: Arc<ResponseRoom>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_until_room_is_given_back() {
        let responses = WaitingResponses::new(100, Arc::default());
        let first = responses.try_take(60).ok();
        assert_eq!(responses.try_take(50).err(), Some(10));
        let forced = responses.take(50);
        assert_eq!(responses.excess(), 10);
        drop(first);
        assert!(responses.try_take(50).is_ok());
        drop(forced);
        assert!(responses.try_take(1000).is_ok(), "alone, even one that is too large");
        assert_eq!(responses.held.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(responses.held.counts.response_bytes(), 0);
    }
}
