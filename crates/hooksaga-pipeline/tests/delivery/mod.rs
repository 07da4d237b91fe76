//! The delivery client and the verifier against real servers on loopback.

mod addresses;
mod client;
mod failures;
mod https;
mod reuse;
mod timeouts;
mod verifier;

use hooksaga_testkit::server;
