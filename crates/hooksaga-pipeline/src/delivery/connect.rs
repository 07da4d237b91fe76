//! Connections to callbacks: look up, judge, connect, encrypt.
//!
//! It connects to the very addresses that the guard judged: there is no second lookup that could return other
//! ones. A proxy, if there is one, gets the address that was judged.

use super::{
    LOG_EVERY,
    failure::ConnectError,
    guard::EgressPolicy,
    literal,
    proxy::{self, ProxyAddress, ProxyError},
    resolve::Resolve,
    stream::Stream,
};
use crate::LogThrottle;
use http::{Uri, uri::Scheme};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

/// A connection is never worked on for longer. Requests have their own, usually shorter deadline; this
/// one is for connections that the pool goes on opening when their request was served by another.
const MAX_CONNECT: Duration = Duration::from_secs(60);
/// The time for an address that is not the last one, so that the next one is tried before the deadline.
const MAX_PER_ADDRESS: Duration = Duration::from_secs(2);
/// More addresses are not tried.
const MAX_ADDRESSES: usize = 8;

/// Opens connections for the pool.
#[derive(Clone)]
pub(super) struct Connector(Arc<ConnectorInner>);

struct ConnectorInner {
    policy: EgressPolicy,
    resolver: Arc<dyn Resolve>,
    tls: TlsConnector,
    proxy_trouble: LogThrottle,
}

impl Connector {
    pub(super) fn new(policy: EgressPolicy, resolver: Arc<dyn Resolve>, tls: TlsConnector) -> Self {
        Self(Arc::new(ConnectorInner { policy, resolver, tls, proxy_trouble: LogThrottle::new(LOG_EVERY) }))
    }

    /// Whether a URL of this scheme may be called at all.
    pub(super) fn permits_scheme(&self, scheme: Option<&Scheme>) -> bool {
        scheme == Some(&Scheme::HTTPS) || (self.0.policy.allow_http && scheme == Some(&Scheme::HTTP))
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let parts = Arc::clone(&self.0);
        Box::pin(async move {
            let stream =
                timeout(MAX_CONNECT, parts.connect(&uri)).await.map_err(|_| ConnectError::TooLong)??;
            Ok(TokioIo::new(stream))
        })
    }
}

impl ConnectorInner {
    async fn connect(&self, uri: &Uri) -> Result<Stream, ConnectError> {
        let encrypted = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().ok_or(ConnectError::Dns)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });

        let addresses = self.permitted_addresses(host).await?;
        let tcp = self.connect_to_first(&addresses, port).await?;
        // Only latency is at stake: a request leaves in one write.
        let _ = tcp.set_nodelay(true);
        if !encrypted {
            return Ok(Stream::plain(tcp));
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| ConnectError::Tls(io::Error::other(error)))?;
        let tls = self.tls.connect(name, tcp).await.map_err(ConnectError::Tls)?;
        Ok(Stream::tls(tls))
    }

    /// The addresses of the host, at least one. All of them may be called: one that may not refuses the host,
    /// since nobody who means well lists it beside others.
    async fn permitted_addresses(&self, host: &str) -> Result<Vec<IpAddr>, ConnectError> {
        let mut addresses = self.look_up(host).await.map_err(ConnectError::from_lookup)?;
        if addresses.is_empty() {
            return Err(ConnectError::Dns);
        }
        if !addresses.iter().all(|address| self.policy.permits(*address)) {
            return Err(ConnectError::Blocked);
        }
        addresses.truncate(MAX_ADDRESSES);
        Ok(addresses)
    }

    async fn look_up(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        match literal::address(host) {
            Some(literal) => Ok(vec![literal]),
            None => self.resolver.resolve(host).await,
        }
    }

    /// Tries one address after another; returns the last one's error.
    async fn connect_to_first(&self, addresses: &[IpAddr], port: u16) -> Result<TcpStream, ConnectError> {
        let mut failure = ConnectError::Dns;
        for (index, address) in addresses.iter().enumerate() {
            let connecting = self.connect_to(SocketAddr::new(*address, port));
            let connected = if index + 1 == addresses.len() {
                connecting.await
            } else {
                timeout(MAX_PER_ADDRESS, connecting)
                    .await
                    .unwrap_or_else(|elapsed| Err(ConnectError::Tcp(elapsed.into())))
            };
            match connected {
                Ok(tcp) => return Ok(tcp),
                Err(error) => failure = error,
            }
            // The next address would want a descriptor, or the proxy, too.
            if matches!(
                failure,
                ConnectError::NoDescriptor(_) | ConnectError::Proxy(ProxyError::Unreachable(_))
            ) {
                break;
            }
        }
        Err(failure)
    }

    async fn connect_to(&self, target: SocketAddr) -> Result<TcpStream, ConnectError> {
        let Some(proxy) = &self.policy.proxy else {
            return TcpStream::connect(target).await.map_err(ConnectError::from_connect);
        };
        let tunnelled = self.tunnel_to(target, proxy).await;
        if let Err(ConnectError::Proxy(error @ (ProxyError::Unreachable(_) | ProxyError::Refused(407)))) =
            &tunnelled
            && self.proxy_trouble.is_due(Instant::now()).is_some()
        {
            tracing::warn!(%proxy, %error, "cannot send callbacks through the proxy: check callbacks.proxy");
        }
        tunnelled
    }

    async fn tunnel_to(&self, target: SocketAddr, proxy: &ProxyAddress) -> Result<TcpStream, ConnectError> {
        let unreachable = |error| match ConnectError::from_connect(error) {
            ConnectError::Tcp(error) => ConnectError::Proxy(ProxyError::Unreachable(error)),
            other => other,
        };
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for address in self.look_up(proxy.host()).await.map_err(unreachable)? {
            match TcpStream::connect(SocketAddr::new(address, proxy.port())).await {
                Ok(mut tcp) => {
                    proxy::tunnel(&mut tcp, target).await.map_err(ConnectError::Proxy)?;
                    return Ok(tcp);
                }
                Err(error) => failure = error,
            }
        }
        Err(unreachable(failure))
    }
}
