//! Puts a router on a listener: HTTP/1.1, a bounded number of connections, and a graceful end.

use axum::Router;
use hooksaga_pipeline::Shutdown;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{io, pin::pin, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

/// Connections at one time; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 8192;

/// A client must have sent the headers of its next request within this time; so long may a connection idle, too.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// What is kept in memory of a connection: no request line and headers are longer, and bodies are read in pieces of
/// at most this size. Nobody has shown a key yet when it is filled.
const MAX_BUFFER: usize = 64 << 10;

/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until the order to stop; then accepts nothing more and returns when every request that had begun is
/// answered. The caller bounds how long that may take: dropping the future closes what is left.
pub async fn serve(listener: TcpListener, app: Router, shutdown: Shutdown) -> io::Result<()> {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut stop = pin!(shutdown.wait());
    loop {
        let accept = async {
            let slot = Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|(stream, _)| (slot, stream))
        };
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = accept => match accepted {
                Ok((slot, stream)) => {
                    let connection = serve_connection(stream, app.clone(), shutdown.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    if !is_connection_error(&error) {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve_connection(stream: TcpStream, app: Router, shutdown: Shutdown) {
    // Small answers go out at once; a socket that refuses the option still works.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_BUFFER);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Errors of the one connection that was being accepted, not of the listener.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}
