//! A connection to a callback's server: plain TCP, or TLS over it.
//!
//! One poll reads a bounded number of bytes. The library reads and skips for as long as there is something to read (a
//! flood of interim responses, say), and notices only between polls that nobody waits for the response any more.

use hyper_util::client::legacy::connect::{Connected, Connection};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

/// The most that is read before others get a turn. Responses are shorter.
const PER_TURN: usize = 64 * 1024;

pub(super) struct Stream {
    transport: PlainOrTls,
    /// What was read since there was nothing to read, or others had a turn.
    read: usize,
}

enum PlainOrTls {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(super) fn plain(tcp: TcpStream) -> Self {
        Self { transport: PlainOrTls::Plain(tcp), read: 0 }
    }

    pub(super) fn tls(tls: TlsStream<TcpStream>) -> Self {
        Self { transport: PlainOrTls::Tls(Box::new(tls)), read: 0 }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Calls the same method on whichever stream it is.
macro_rules! forward {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match &mut $self.get_mut().transport {
            PlainOrTls::Plain(tcp) => Pin::new(tcp).$method($($argument),*),
            PlainOrTls::Tls(tls) => Pin::new(tls.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read >= PER_TURN {
            self.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let stream = self.as_mut();
        let polled = forward!(stream.poll_read(cx, buffer));
        self.read = if polled.is_pending() { 0 } else { self.read + buffer.filled().len() - before };
        polled
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            PlainOrTls::Plain(tcp) => tcp.is_write_vectored(),
            PlainOrTls::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.poll_shutdown(cx))
    }
}
