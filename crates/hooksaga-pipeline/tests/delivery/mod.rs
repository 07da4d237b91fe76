//! The delivery client and the verifier against real servers on loopback.

mod addresses;
mod client;
mod dns;
mod failures;
mod floods;
mod https;
mod proxy;
mod reuse;
mod timeouts;
mod verifier;

use hooksaga_testkit::server;
