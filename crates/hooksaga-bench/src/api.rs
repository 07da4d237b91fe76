//! The API of the server under measurement, for what happens before and between the measurements.

use crate::error::{BenchError, BenchResult};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
const LARGEST_ANSWER: usize = 64 << 20;

pub(crate) struct Api {
    url: String,
    key: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Api {
    pub(crate) fn new(url: &str, key: &str) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { url: url.to_owned(), key: key.to_owned(), client }
    }

    /// Whether the server says that it is ready.
    pub(crate) async fn is_ready(&self) -> bool {
        self.send(&Method::GET, "/readyz", Bytes::new()).await.is_ok_and(|(status, _)| status == 200)
    }

    pub(crate) async fn get(&self, path: &str) -> BenchResult<Value> {
        self.call(&Method::GET, path, Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> BenchResult<Value> {
        self.call(&Method::POST, path, Bytes::from(body.to_string())).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> BenchResult<Value> {
        self.call(&Method::PATCH, path, Bytes::from(body.to_string())).await
    }

    /// A counter of /metrics, by its name and labels; 0 if it is not there yet.
    pub(crate) async fn metric(&self, name: &str) -> BenchResult<f64> {
        let (_, body) = self.send(&Method::GET, "/metrics", Bytes::new()).await?;
        let text = String::from_utf8_lossy(&body);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        Ok(value.unwrap_or(0.0))
    }

    /// The same as a whole number.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count far below 2^52")]
    pub(crate) async fn count(&self, name: &str) -> BenchResult<u64> {
        Ok(self.metric(name).await? as u64)
    }

    /// The body of a success; anything else is an error.
    async fn call(&self, method: &Method, path: &str, body: Bytes) -> BenchResult<Value> {
        let (status, body) = self.send(method, path, body).await?;
        if !(200..300).contains(&status) {
            let text = String::from_utf8_lossy(&body);
            return Err(BenchError::new(format!("{path}: the server answered {status}: {text}")));
        }
        serde_json::from_slice(&body)
            .map_err(|error| BenchError::new(format!("{path}: the answer is not JSON: {error}")))
    }

    async fn send(&self, method: &Method, path: &str, body: Bytes) -> BenchResult<(u16, Bytes)> {
        let failed = |error: &dyn std::fmt::Display| BenchError::new(format!("{}{path}: {error}", self.url));
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.key))
            .body(Full::new(body))
            .map_err(|error| failed(&error))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| failed(&error))?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
            Ok((status, body.map_err(|error| failed(&error))?.to_bytes()))
        };
        let late = |_| failed(&format_args!("no answer within {} s", TIMEOUT.as_secs()));
        tokio::time::timeout(TIMEOUT, exchange).await.map_err(late)?
    }
}
