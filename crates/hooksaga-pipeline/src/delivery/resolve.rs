//! Names to addresses.

use async_trait::async_trait;
use std::{
    io,
    net::{IpAddr, ToSocketAddrs},
    sync::Arc,
};
use tokio::sync::Semaphore;

/// Looks up host names. The addresses are not trusted: each one passes the guard before it is dialled.
#[async_trait]
pub trait Resolve: Send + Sync {
    /// The addresses of `host`, in the order in which they are to be tried.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
pub(super) struct SystemResolver {
    slots: Arc<Semaphore>,
}

impl SystemResolver {
    /// A lookup occupies a thread until the operating system gives up, which the caller's deadline cannot
    /// shorten. Bounding them keeps names that hang from taking every thread of the process.
    const MAX_LOOKUPS: usize = 64;

    pub(super) fn new() -> Self {
        Self { slots: Arc::new(Semaphore::new(Self::MAX_LOOKUPS)) }
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)?;
        let host = host.to_owned();
        tokio::task::spawn_blocking(move || {
            // Held by the thread, not by the caller, who may give up before it is done.
            let _slot = slot;
            let addresses = (host.as_str(), 0).to_socket_addrs()?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
        .await
        .map_err(io::Error::other)?
    }
}
