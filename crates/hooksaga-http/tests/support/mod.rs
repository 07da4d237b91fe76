//! An API on a fresh database, and what tests do with it.

mod answer;
mod flow;

pub(crate) use answer::Answer;

use axum::{Router, body::Body};
use hooksaga_http::{ApiParts, api, generate_key, hash_key};
use hooksaga_pipeline::{DeliveryLog, Ingest, IngestLimits, Metrics, SecretKey, Signals, random_hex};
use hooksaga_sqlite::SqliteOptions;
use hooksaga_store::{NewApiKey, Scopes, Stage, Stores};
use http::Request;
use serde_json::Value;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tower::ServiceExt;

pub(crate) const ROOT_KEY: &str = "root-key-of-the-tests";
pub(crate) const MAX_PAYLOAD: usize = 2000;
pub(crate) const MAX_BATCH: usize = 500_000;

/// An API whose database goes with it.
pub(crate) struct TestApi {
    pub(crate) app: Router,
    pub(crate) stores: Stores,
    pub(crate) signals: Signals,
    pub(crate) secret_key: Arc<SecretKey>,
    folder: PathBuf,
}

impl TestApi {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// An API with some parts changed.
    pub(crate) async fn with(change: impl FnOnce(&mut ApiParts)) -> Self {
        let folder = std::env::temp_dir().join(format!("hooksaga-http-{}", random_hex(8)));
        let options = SqliteOptions { path: folder.join("hooksaga.db") };
        let stores = hooksaga_sqlite::open(options).await.unwrap().stores();
        let signals = Signals::new(Stage::ALL);
        let secret_key = Arc::new(SecretKey::generate());
        let mut parts = parts(&stores, &signals, &secret_key);
        change(&mut parts);
        Self { app: api(parts), stores, signals, secret_key, folder }
    }

    /// A key with these scopes, such as `ingest,read`.
    pub(crate) async fn key(&self, scopes: &str) -> String {
        let key = generate_key();
        let scopes: Scopes = scopes.parse().unwrap();
        let new = NewApiKey { name: "a key".to_owned(), scopes, sha256: hash_key(&key) };
        self.stores.keys.create(&new).await.unwrap();
        key
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, Some(body)).await
    }

    /// A POST without a body.
    pub(crate) async fn post_nothing(&self, path: &str) -> Answer {
        self.call("POST", path, None).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.call("PATCH", path, Some(body)).await
    }

    /// A JSON body as text, exactly.
    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        self.raw("POST", path, &[("content-type", "application/json")], body).await
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        match body {
            Some(body) => {
                self.raw(method, path, &[("content-type", "application/json")], body.to_string()).await
            }
            None => self.raw(method, path, &[], "").await,
        }
    }

    /// A request with the root key and these headers.
    pub(crate) async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let bearer = format!("Bearer {ROOT_KEY}");
        let headers: Vec<_> = [("authorization", bearer.as_str())].iter().chain(headers).copied().collect();
        self.bare(method, path, &headers, body).await
    }

    /// A request with these headers only.
    pub(crate) async fn bare(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.into())).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        Answer::of(self.app.clone().oneshot(request).await.unwrap()).await
    }

    /// Whether the stage has been woken since it was last asked.
    pub(crate) async fn was_woken(&self, stage: Stage) -> bool {
        // A wake-up that was given is there at once: no time has to pass.
        tokio::time::timeout(Duration::ZERO, self.signals.woken(stage)).await.is_ok()
    }
}

impl Drop for TestApi {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The parts of an API on these stores.
fn parts(stores: &Stores, signals: &Signals, secret_key: &Arc<SecretKey>) -> ApiParts {
    let metrics = Metrics::new();
    let (ingest, task) = Ingest::start(
        Arc::clone(&stores.ingest),
        signals.clone(),
        Arc::clone(&metrics),
        IngestLimits::default(),
        DeliveryLog::None,
    );
    tokio::spawn(task.run());
    ApiParts {
        ingest,
        admin: Arc::clone(&stores.admin),
        dead_letters: Arc::clone(&stores.dead_letters),
        reader: Arc::clone(&stores.reader),
        keys: Arc::clone(&stores.keys),
        secret_key: Arc::clone(secret_key),
        signals: signals.clone(),
        metrics,
        max_payload_bytes: MAX_PAYLOAD,
        max_batch_bytes: MAX_BATCH,
        allow_http: false,
        default_retry_limit: 5,
        log: DeliveryLog::None,
        root_key: Some(ROOT_KEY.to_owned()),
    }
}
