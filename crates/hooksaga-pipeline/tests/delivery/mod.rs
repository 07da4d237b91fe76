//! The delivery client and the verifier against real servers on loopback.

mod addresses;
mod client;
mod failures;
mod https;
mod reuse;
mod server;
mod timeouts;
mod verifier;
