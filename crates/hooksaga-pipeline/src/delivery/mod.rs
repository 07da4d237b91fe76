//! Sending callbacks: one pooled HTTP client for the workers and the verifier.
//!
//! Promises: an address that the [`EgressPolicy`] forbids is never dialled, whatever name led to it; one
//! deadline covers lookup, connection, TLS, headers and body; no redirect is followed; one call sends at
//! most one request that reaches the server; a response costs a bounded amount of memory and time.
//!
//! | file | does |
//! |---|---|
//! | [`guard`] | which addresses may be called |
//! | [`literal`] | hosts that are addresses already |
//! | [`resolve`] | names to addresses |
//! | [`proxy`] | a tunnel through an HTTP proxy |
//! | [`connect`] | resolve, guard, TCP, TLS: a connection with the error typed |
//! | [`stream`] | what a connection is, plain or TLS |
//! | [`tls`] | trusted roots and TLS settings |
//! | [`failure`] | an error of any layer to its error code |
//! | [`request_headers`] | a subscription's own headers |
//! | [`sign`] | the headers of a callback, its signature among them |
//! | [`interim`] | how many interim responses are accepted |
//! | [`body`] | reading as much of a response as is wanted, no more |
//! | [`client`] | all of it together |

mod body;
mod client;
mod connect;
mod failure;
mod guard;
mod interim;
mod literal;
mod proxy;
pub(crate) mod request_headers;
mod resolve;
mod sign;
mod stream;
mod tls;

use std::time::Duration;

pub use client::{CallbackRequest, DeliveryClient, NotSent, PostOutcome};
pub use guard::{EgressPolicy, one_spelling};
pub use proxy::{InvalidProxy, ProxyAddress};
pub use resolve::{NameResolver, Resolve};
pub use tls::ClientSetupError;

/// What many requests notice at the same time is logged once, and then as often as this while it lasts.
const LOG_EVERY: Duration = Duration::from_secs(30);
