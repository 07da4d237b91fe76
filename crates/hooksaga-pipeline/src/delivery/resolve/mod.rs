//! Names to addresses.
//!
//! | file | does |
//! |---|---|
//! | [`names`] | one lookup per name at a time, bounded, with a deadline and a memory |
//! | [`memory`] | what is known about names, and for how long |
//! | [`system`] | asks /etc/hosts and the name servers of /etc/resolv.conf |
//!
//! Nothing here blocks a thread: a name whose servers never answer costs two small sockets for five seconds,
//! and delays nobody who waits for another name.

mod memory;
mod names;
mod system;

pub use names::NameResolver;

use async_trait::async_trait;
use std::{io, net::IpAddr};

/// Looks up host names. The addresses are not trusted: each one passes the guard before it is dialled.
#[async_trait]
pub trait Resolve: Send + Sync {
    /// The addresses of `host`, in the order in which they are to be tried.
    ///
    /// An error of the kind `ResourceBusy` says that nobody was asked, since too many lookups are under way
    /// in this process: it is no fault of the name.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}
