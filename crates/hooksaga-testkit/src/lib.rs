//! What the tests need from outside: private database servers, and an HTTP receiver that misbehaves on
//! demand. Test code: it panics where a test cannot go on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

pub mod mariadb;
pub mod postgres;
pub mod receiver;
pub mod scratch;
mod unprivileged;
