//! What the tests need besides the product: private database servers, and HTTP servers that misbehave on demand
//! (`receiver` by rules, `server` byte by byte). Test code: it panics where a test cannot go on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

pub mod authority;
pub mod blocking_drop;
pub mod galera;
pub mod https;
pub mod mariadb;
pub mod patroni;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod receiver;
pub mod scratch;
pub mod server;
pub mod small_disk;
pub mod standby;
mod unprivileged;
