//! Puts a router on a listener: HTTP/1.1, over TLS where there is a certificate, with bounds that hold whatever
//! clients do.
//!
//! - The number of connections is bounded. When it is reached, a new one takes the place of the one that has been
//!   idle longest; if none is idle, of the one that has kept the server waiting longest for its body or for it to
//!   read. So neither clients that never write nor clients that never read keep others out, the probes included.
//! - Every wait for a client has a deadline: handshake, head, body (see `body`), and 30 seconds without progress
//!   while a response is written.
//! - The bytes of all response bodies that wait for their clients are bounded. A read beyond that is refused with
//!   503; the response to a write is always sent, since the client must learn what was done.
//! - A request is not begun before the kernel has taken the response to the one before (hyper sees to that).

mod connection;
mod connections;
mod refusal;
mod responses;
mod service;
mod timed_stream;
mod tls;

pub use responses::Unmetered;
pub use tls::{Tls, TlsError};

use crate::listener::{
    connection::{EvictAfter, Peer},
    connections::Connections,
    responses::WaitingResponses,
    service::respond,
    timed_stream::Guarded,
};
use hooksaga_pipeline::{LogThrottle, Shutdown};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Sleep, sleep_until},
};

/// What is kept in memory of a connection: no request line and headers are longer, and bodies are read in pieces of
/// at most this size. Nobody has shown a key yet when it is filled.
const MAX_BUFFER: usize = 16 << 10;

/// What the kernel keeps of a response for a client that does not read. It says that there is room again only when a
/// third of that has been taken: with its own choice, megabytes, a slow client would seem to take nothing at all.
const SEND_BUFFER: usize = 128 << 10;

/// What is kept of a response in encrypted form: the most that one TLS record holds. These bytes are no longer counted among
/// those of waiting responses, and the default is four times as much for every connection.
const TLS_BUFFER: usize = 16 << 10;

/// How often, while stopping, to look for clients that make no progress.
const LOOK_FOR_QUIET: Duration = Duration::from_millis(200);

/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often that is logged meanwhile.
const SAID_EVERY: Duration = Duration::from_secs(5);

/// The bounds of one listener.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Connections at one time.
    pub max_connections: usize,
    /// Bytes of all response bodies that wait to be taken by clients that showed a key.
    pub max_response_bytes: usize,
    /// Bytes of all such response bodies of the routes that need no key.
    pub max_public_response_bytes: usize,
    pub deadlines: Deadlines,
    /// With it the listener speaks HTTPS.
    pub tls: Option<Tls>,
    /// What the listener holds at the moment.
    pub gauges: ListenerGauges,
}

impl ListenerOptions {
    pub fn new(max_connections: usize) -> Self {
        Self {
            max_connections: max_connections.max(1),
            max_response_bytes: 64 << 20,
            max_public_response_bytes: 8 << 20,
            deadlines: Deadlines::default(),
            tls: None,
            gauges: ListenerGauges::default(),
        }
    }
}

/// How long a client may keep the listener waiting.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request to the end of its headers.
    pub head: Duration,
    /// Between requests.
    pub idle: Duration,
    /// Without taking a byte of a response.
    pub write: Duration,
    /// When the listener is full, a connection without a request keeps its place for at least this long.
    pub fresh: Duration,
    /// When the listener is full, a client that keeps a request waiting for longer than this may lose its place.
    pub stalled: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            write: Duration::from_secs(30),
            fresh: Duration::from_millis(250),
            stalled: Duration::from_secs(1),
        }
    }
}

/// What a listener holds at the moment. Clones show the same.
#[derive(Clone, Debug, Default)]
pub struct ListenerGauges(Arc<connections::ListenerCounters>);

impl ListenerGauges {
    /// Open connections.
    pub fn connections(&self) -> usize {
        self.0.connections()
    }

    /// Connections that lost their place to a new one so far.
    pub fn evicted(&self) -> u64 {
        self.0.evicted()
    }

    /// Bytes of response bodies that have not been taken yet.
    pub fn response_bytes(&self) -> usize {
        self.0.response_bytes()
    }
}

/// What the connections of a listener share.
struct Shared {
    app: axum::Router,
    connections: Connections,
    responses: WaitingResponses,
    public_responses: WaitingResponses,
    deadlines: Deadlines,
    tls: Option<Tls>,
}

/// Serves until the order to stop; then accepts nothing more and returns when every request that had begun is
/// answered, unless its client does not move it on. The caller bounds how long that may take: dropping the future
/// closes what is left.
pub async fn serve(
    listener: TcpListener,
    app: axum::Router,
    options: ListenerOptions,
    shutdown: Shutdown,
) -> io::Result<()> {
    let counts = options.gauges.0;
    let shared = Arc::new(Shared {
        app,
        connections: Connections::new(
            options.max_connections,
            EvictAfter { idle: options.deadlines.fresh, stalled: options.deadlines.stalled },
            Arc::clone(&counts),
        ),
        responses: WaitingResponses::new(options.max_response_bytes, Arc::clone(&counts)),
        public_responses: WaitingResponses::new(options.max_public_response_bytes, counts),
        deadlines: options.deadlines,
        tls: options.tls,
    });
    let mut tasks = JoinSet::new();
    let mut stop = pin!(shutdown.wait());
    // Accepted but not yet admitted, so that no connection is closed before a new one has arrived.
    let mut waiting = None;
    let refused = LogThrottle::new(SAID_EVERY);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = tasks.join_next() => {}
            () = shared.connections.room(), if waiting.is_some() => {
                if let Some(stream) = waiting.take() {
                    admit(&shared, stream, &mut tasks);
                }
            }
            accepted = listener.accept(), if waiting.is_none() => match accepted {
                Ok((stream, _)) => waiting = Some(stream),
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    if let Some(left_out) = refused.is_due(Instant::now()) {
                        tracing::warn!(%error, left_out, "cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    shared.connections.stop();
    // Whoever has connected already would see a reset: their requests are answered, and then their connection closed.
    if let Some(stream) = waiting {
        admit(&shared, stream, &mut tasks);
    }
    while let Ok(Ok((stream, _))) = tokio::time::timeout(Duration::ZERO, listener.accept()).await {
        admit(&shared, stream, &mut tasks);
    }
    drop(listener);
    loop {
        match tokio::time::timeout(LOOK_FOR_QUIET, tasks.join_next()).await {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(_) => shared.connections.evict_quiet(),
        }
    }
}

fn admit(shared: &Arc<Shared>, stream: TcpStream, tasks: &mut JoinSet<()>) {
    let admitted = shared.connections.admit();
    let (peer, of_task) = (Arc::clone(admitted.peer()), Arc::clone(shared));
    let task = tasks.spawn(async move {
        serve_stream(&of_task, stream, admitted.peer()).await;
        drop(admitted);
    });
    shared.connections.set_task(&peer, task);
}

async fn serve_stream(shared: &Arc<Shared>, stream: TcpStream, peer: &Arc<Peer>) {
    // Small responses go out at once; a socket that refuses an option still works.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
    let Some(tls) = &shared.tls else {
        return serve_connection(shared, stream, peer).await;
    };
    let accepting = tls.acceptor().accept_with(stream, |session| session.set_buffer_limit(Some(TLS_BUFFER)));
    match tokio::time::timeout(shared.deadlines.handshake, accepting).await {
        Ok(Ok(stream)) => serve_connection(shared, stream, peer).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake was not done in time"),
    }
}

async fn serve_connection<S>(shared: &Arc<Shared>, stream: S, peer: &Arc<Peer>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stream = Guarded::new(stream, Arc::clone(peer), shared.deadlines);
    let answering = service_fn(|request| respond(shared, request, peer));
    let mut builder = http1::Builder::new();
    // With vectored writes a response's body waits as it is, and is given back as it is sent.
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(shared.deadlines.idle)
        .max_buf_size(MAX_BUFFER)
        .writev(true);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answering));
    let mut stopping = Stopping::default();
    let ended = poll_fn(|context| {
        if stopping.poll(shared, peer, context).is_ready() {
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    })
    .await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// How a connection sees the order to stop: a look at a flag with each poll, and one pass over all connections that wakes
/// them when the order is given. Waiting for it would cost every poll of every connection a lock that all of them share.
#[derive(Default)]
enum Stopping {
    #[default]
    New,
    Serving,
    /// hyper closes a connection at once that nothing has come on: a request may be on its way.
    HasTime(Pin<Box<Sleep>>),
    Told,
}

impl Stopping {
    /// Ready once: when the connection is to end.
    fn poll(&mut self, shared: &Shared, peer: &Peer, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match self {
                Self::New => {
                    shared.connections.watch(peer, context.waker());
                    *self = Self::Serving;
                }
                Self::Serving if !shared.connections.is_stopping() => return Poll::Pending,
                Self::Serving => match peer.has_time_until(shared.deadlines.fresh) {
                    Some(until) => *self = Self::HasTime(Box::pin(sleep_until(until.into()))),
                    None => break,
                },
                Self::HasTime(end) => {
                    ready!(end.as_mut().poll(context));
                    break;
                }
                Self::Told => return Poll::Pending,
            }
        }
        *self = Self::Told;
        Poll::Ready(())
    }
}

/// Errors of the one connection that was being accepted, not of the listener.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}
