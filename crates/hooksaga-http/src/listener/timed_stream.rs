//! A client's stream with deadlines: for a request's head, and for taking what is written.

use super::{Deadlines, connection::Peer, refusal};
use bytes::{Buf, Bytes};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};

/// After a refusal, this much is read and thrown away, at most for this long, so that the client is not reset before it has
/// read it.
const MAX_DISCARDED: usize = 1 << 20;
const MAX_WAIT: Duration = Duration::from_secs(2);

pub(super) struct Guarded<S> {
    stream: S,
    peer: Arc<Peer>,
    deadlines: Deadlines,
    /// By when a head that has begun must be complete.
    head_by: Option<Instant>,
    /// Wakes the task at `head_by`, if the rest of the head does not come at once.
    head: Option<Pin<Box<Sleep>>>,
    /// Runs while the client takes nothing.
    write: Option<Pin<Box<Sleep>>>,
    /// What is sent in place of hyper's own refusal; no longer there when it is sent.
    refusal: Option<Bytes>,
    refused: bool,
    discarding: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Guarded<S> {
    pub(super) fn new(stream: S, peer: Arc<Peer>, deadlines: Deadlines) -> Self {
        Self {
            stream,
            peer,
            deadlines,
            head_by: None,
            head: None,
            write: None,
            refusal: None,
            refused: false,
            discarding: None,
        }
    }

    /// Keeps the deadline for a write, a flush or a shutdown.
    fn in_time<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if self.write.take().is_some() {
                self.peer.set_write_blocked(false);
            }
            return polled;
        }
        let limit = self.deadlines.write;
        if self.write.is_none() {
            self.peer.set_write_blocked(true);
        }
        let deadline = self.write.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client took nothing in time")))
    }

    /// Whether these bytes are hyper's own refusal, which is replaced: nothing else is written while no request is
    /// in progress.
    fn replaces(&mut self, bytes: &[u8]) -> bool {
        if !self.refused && self.peer.is_idle() {
            self.refusal = refusal::in_place_of(bytes);
            self.refused = self.refusal.is_some();
        }
        self.refused
    }

    fn poll_refusal(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(mut rest) = self.refusal.take() {
            let polled = Pin::new(&mut self.stream).poll_write(context, &rest);
            let polled = self.in_time(context, polled);
            if polled.is_pending() {
                self.refusal = Some(rest);
                return Poll::Pending;
            }
            match ready!(polled)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => rest.advance(written),
            }
            self.refusal = Some(rest).filter(|rest| !rest.is_empty());
        }
        Poll::Ready(Ok(()))
    }

    /// Throws away what the client still sends, within bounds.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (left, deadline) =
            self.discarding.get_or_insert_with(|| (MAX_DISCARDED, Box::pin(sleep(MAX_WAIT))));
        let mut space = [0; 4096];
        while *left > 0 && deadline.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *left = left.saturating_sub(buffer.filled().len()),
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if !self.peer.is_idle() {
            (self.head_by, self.head) = (None, None);
            return polled;
        }
        if buffer.filled().len() > before && self.head_by.is_none() {
            self.head_by = Some(Instant::now() + self.deadlines.head);
        }
        if polled.is_pending()
            && let Some(by) = self.head_by
        {
            let deadline = self.head.get_or_insert_with(|| Box::pin(sleep_until(by)));
            ready!(deadline.as_mut().poll(context));
            let late =
                io::Error::new(io::ErrorKind::TimedOut, "the request's headers were not there in time");
            return Poll::Ready(Err(late));
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.replaces(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.first().is_some_and(|first| self.replaces(first)) {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        ready!(self.in_time(context, polled))?;
        // hyper flushes the stream only when it has nothing left to write.
        self.peer.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        if self.discarding.is_none() {
            let polled = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.in_time(context, polled))?;
        }
        if self.refused {
            ready!(self.poll_discard(context));
        }
        Poll::Ready(Ok(()))
    }
}
