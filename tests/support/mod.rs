//! Starting the product and talking to it.

mod api;
mod browser;
mod documents;
mod installation;
mod process;
mod script;
mod server;
mod signature;

pub(crate) use api::Api;
pub(crate) use browser::{Page, tool};
pub(crate) use documents::{example, metrics_in, project, rust_files, text};
pub(crate) use installation::{Installation, ROOT_KEY};
pub(crate) use process::Process;
pub(crate) use script::{Script, run_script};
pub(crate) use server::{HOOKSAGA, Server, run, run_in_terminal};
pub(crate) use signature::signed_by;

pub(crate) use hooksaga_testkit::receiver::{Arrival, Behaviour, Receiver};
pub(crate) use serde_json::{Value, json};
pub(crate) use std::time::Duration;

/// How long a scenario waits for what should take milliseconds, on a machine that may be very busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A port of this machine that nobody listens on.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Asks until `answer` has something to say; panics, with `what`, when that takes too long.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, answer: impl Fn() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = answer().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
