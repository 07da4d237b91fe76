//! The bare ceiling: what HTTP alone reaches here. Payloads go straight to the receiver, through the client library
//! and the kind of connection pool that deliveries go through: no events, no signatures, no database.
//!
//! They come from a process of their own, as deliveries do. A client in the receiver's own process would hand over
//! without a switch between processes, and be a ceiling that no server could reach.

use super::receiver::{Tally, payload};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{process::Command, task::JoinSet};

/// What the sending process is to do.
#[derive(Clone, Debug)]
pub struct Sending {
    pub url: String,
    pub requests: u64,
    pub clients: usize,
    pub payload_bytes: usize,
}

impl Sending {
    /// Lets another process send, and returns how many arrived per second, from the first to the last.
    pub(crate) async fn measure(&self, tally: &Tally) -> Result<f64, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let sent = Command::new(program)
            .args(["bench", "--send-to", &self.url])
            .args(["--events", &self.requests.to_string()])
            .args(["--clients", &self.clients.to_string()])
            .args(["--payload-bytes", &self.payload_bytes.to_string()])
            .env_clear()
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| format!("cannot start the ceiling's sender: {error}"))?;
        if sent.status.success() && tally.count() == self.requests {
            return Ok(tally.pace());
        }
        let (arrived, expected) = (tally.count(), self.requests);
        let said = String::from_utf8_lossy(&sent.stderr);
        Err(format!(
            "the ceiling's sender ended with {} after {arrived} of {expected} requests: {}",
            sent.status,
            said.trim()
        ))
    }

    /// Sends the payloads, each client as fast as it is answered.
    pub async fn send(&self) -> Result<(), String> {
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks: JoinSet<Result<(), String>> = JoinSet::new();
        for _ in 0..self.clients {
            let (client, next, sending) = (client.clone(), Arc::clone(&next), self.clone());
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= sending.requests {
                        return Ok(());
                    }
                    let body = Full::new(Bytes::from(payload(number, sending.payload_bytes)));
                    let request = Request::post(&sending.url)
                        .header(header::CONTENT_TYPE, "application/json")
                        .body(body)
                        .map_err(|error| error.to_string())?;
                    let answer = client.request(request).await.map_err(|error| error.to_string())?;
                    answer.into_body().collect().await.map_err(|error| error.to_string())?;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| error.to_string())??;
        }
        Ok(())
    }
}
