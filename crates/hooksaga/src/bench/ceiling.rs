//! The bare ceiling: what HTTP alone reaches here. Payloads go straight to the receiver, through the client library
//! and the kind of connection pool that deliveries go through: no events, no signatures, no database.

use super::receiver::{Tally, payload};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::task::JoinSet;

/// Sends `requests` payloads from `clients` tasks, each as fast as it is answered.
pub(super) async fn send_all(
    url: &str,
    tally: &Tally,
    requests: u64,
    clients: usize,
    payload_bytes: usize,
) -> Result<f64, String> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks: JoinSet<Result<(), String>> = JoinSet::new();
    for _ in 0..clients {
        let (client, next, url) = (client.clone(), Arc::clone(&next), url.to_owned());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return Ok(());
                }
                let body = Full::new(Bytes::from(payload(number, payload_bytes)));
                let request = Request::post(&url).header(header::CONTENT_TYPE, "application/json").body(body);
                let answer = client.request(request.map_err(|error| error.to_string())?).await;
                let body = answer.map_err(|error| error.to_string())?.into_body();
                body.collect().await.map_err(|error| error.to_string())?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(tally.per_second())
}
