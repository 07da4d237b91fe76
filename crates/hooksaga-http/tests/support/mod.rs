//! An API on a fresh database, and what tests do with it.

mod flow;
mod response;

pub(crate) use response::Response;

use axum::{Router, body::Body};
use hooksaga_http::{ApiParts, PortalLook, Probes, api, generate_key, hash_key};
use hooksaga_pipeline::{
    DeliveryLog, EgressPolicy, Ingest, IngestLimits, Metrics, Requeue, SecretKey, Signals, random_hex,
};
use hooksaga_sqlite::SqliteOptions;
use hooksaga_store::{NewApiKey, Stage, Stores};
use http::Request;
use serde_json::Value;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tower::ServiceExt;

pub(crate) const ROOT_KEY: &str = "root-key-of-the-tests";
pub(crate) const PUBLIC_URL: &str = "https://hooks.example.com";
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
        self.key_with(scopes, None, None).await
    }

    /// A key with every scope that is bound to a tenant.
    pub(crate) async fn key_of(&self, tenant: &str) -> String {
        self.key_with("ingest,admin,operator,read", Some(tenant), None).await
    }

    pub(crate) async fn key_with(
        &self,
        scopes: &str,
        tenant: Option<&str>,
        expires_in: Option<Duration>,
    ) -> String {
        let key = generate_key();
        let new = NewApiKey {
            name: "a key".to_owned(),
            scopes: scopes.parse().unwrap(),
            sha256: hash_key(&key),
            tenant: tenant.map(|tenant| tenant.parse().unwrap()),
            expires_in,
        };
        self.stores.keys.create(&new).await.unwrap();
        key
    }

    /// A request with this key; a JSON body, if there is one.
    pub(crate) async fn as_key(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> Response {
        let bearer = format!("Bearer {key}");
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(body.map(|_| ("content-type", "application/json")));
        self.bare(method, path, &headers, body.map(Value::to_string).unwrap_or_default()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.call("GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        self.call("POST", path, Some(body)).await
    }

    /// A POST without a body.
    pub(crate) async fn post_nothing(&self, path: &str) -> Response {
        self.call("POST", path, None).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Response {
        self.call("PATCH", path, Some(body)).await
    }

    /// A JSON body as text, exactly.
    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Vec<u8>>) -> Response {
        self.raw("POST", path, &[("content-type", "application/json")], body).await
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
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
    ) -> Response {
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
    ) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.into())).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response {
        Response::of(self.app.clone().oneshot(request).await.unwrap()).await
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
    let requeue = Requeue::new(
        Arc::clone(&stores.dead_letters),
        5,
        signals.clone(),
        Arc::clone(&metrics),
        DeliveryLog::None,
    );
    ApiParts {
        ingest,
        admin: Arc::clone(&stores.admin),
        requeue,
        redrives: Arc::clone(&stores.redrives),
        probes: Probes::new(Arc::clone(&stores.reader), Arc::clone(&metrics)),
        reader: Arc::clone(&stores.reader),
        keys: Arc::clone(&stores.key_reader),
        portal_keys: Arc::clone(&stores.portal_keys),
        secret_key: Arc::clone(secret_key),
        signals: signals.clone(),
        metrics,
        max_payload_bytes: MAX_PAYLOAD,
        max_batch_bytes: MAX_BATCH,
        allow_http: false,
        egress: EgressPolicy::default(),
        allow_trusted: false,
        tls: false,
        public_url: PUBLIC_URL.to_owned(),
        root_key: Some(ROOT_KEY.to_owned()),
        requests_per_second: None,
        portal: PortalLook::default(),
    }
}
