//! Which component gets which role's connections: the only place that sees all roles together.
//!
//! ```text
//! role                    component
//! event_ingest_writer     api (ingestion)
//! subscription_admin      api (subscriptions)
//! dead_letter_operator    api (requeue, redrives), deadletters
//! api_reader              api (reads), every process (readiness, metrics)
//! key_reader              api (authentication)
//! portal_key_writer       api (portal sessions, list of keys, audit records)
//! key_admin               no component: `hooksaga keys`, and the first key of an embedded database
//! subscription_verifier   verifier
//! router_worker           router
//! saga_orchestrator       orchestrator
//! job_worker              worker
//! lease_cleaner           cleaner
//! list_indexer            cleaner
//! endpoint_caretaker      caretaker
//! history_janitor         janitor
//! ```

mod backend;
mod component;
mod running;

pub(crate) use backend::{
    Database, examine, migrate, move_ids_forward, open_keys, open_present_keys, open_reader, repair_lists,
    rewrap, role_sql, schema_version, sealing_keys,
};
pub(crate) use component::Component;
pub(crate) use running::RunningServer;

use crate::{
    config::{BackendUrl, CallbacksConfig, Config},
    descriptors,
    error::{CliError, CliResult},
    keyfiles, telemetry,
};
use hooksaga_http::{ApiParts, ListenerOptions, PortalLook, Probes, Tls};
use hooksaga_pipeline::{
    Archive, Caretaker, Cleaner, DeadLetters, DeliveryClient, Ingest, IngestLimits, Janitor, ListIndexer,
    Metrics, Orchestrator, Redriver, Requeue, Router, SecretKey, Shutdown, Signals, Verifier, Worker,
    WorkerOptions, forward_wakeups,
};
use hooksaga_store::{StoreError, Stores};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{net::TcpListener, task::JoinSet};

/// Connections to the listener of the metrics.
const METRICS_CONNECTIONS: usize = 64;

/// What the components of one process share.
pub(crate) struct Wiring {
    config: Config,
    components: Vec<Component>,
    stores: Stores,
    /// Dropped last: an embedded database stays locked until nobody uses it.
    _database: Database,
    signals: Signals,
    metrics: Arc<Metrics>,
    /// Each component that calls endpoints has connections and name lookups of its own: what hangs for the
    /// verifier does not hold up deliveries, nor the other way round.
    clients: Clients,
    /// What the janitor removes is written here first, if it runs here.
    archive: Option<Archive>,
}

/// The clients of the components that run here and call endpoints.
struct Clients {
    worker: Option<DeliveryClient>,
    verifier: Option<DeliveryClient>,
}

impl Clients {
    fn new(components: &[Component], callbacks: &CallbacksConfig) -> CliResult<Self> {
        let of = |component| components.contains(&component).then(|| delivery_client(callbacks)).transpose();
        Ok(Self { worker: of(Component::Worker)?, verifier: of(Component::Verifier)? })
    }
}

/// Where this process is reached.
pub(crate) struct Sockets {
    pub(crate) listener: TcpListener,
    /// With it the listener speaks HTTPS.
    pub(crate) tls: Option<Tls>,
    /// Connections that the listener may hold.
    pub(crate) max_connections: usize,
    /// A listener of its own for the metrics.
    pub(crate) metrics: Option<TcpListener>,
}

/// The metrics of this process, with what only the program knows.
fn metrics(config: &Config, database: &Database) -> Arc<Metrics> {
    let mut metrics = Metrics::unshared();
    metrics.describe(env!("CARGO_PKG_VERSION"), config.database.backend.name());
    metrics.count_from("log_records_dropped", "Log records that were lost", telemetry::dropped_records);
    if let Some(pools) = database.pool_use() {
        metrics.pools_from(pools);
    }
    Arc::new(metrics)
}

impl Wiring {
    /// Opens the database for these components; not before everything in the configuration is known to be usable.
    pub(crate) async fn open(config: Config, components: Vec<Component>) -> CliResult<Self> {
        let clients = Clients::new(&components, &config.callbacks)?;
        let archive = if components.contains(&Component::Janitor) { archive(&config)? } else { None };
        let database = Database::open(&config.database).await?;
        let local: Vec<_> = components.iter().flat_map(|component| component.stages()).copied().collect();
        Ok(Self {
            stores: database.stores(),
            metrics: metrics(&config, &database),
            _database: database,
            signals: Signals::new(&local),
            clients,
            archive,
            config,
            components,
        })
    }

    /// The version of the schema that the database has. It may be newer than this program's.
    pub(crate) async fn schema(&self) -> CliResult<i64> {
        Ok(self.stores.reader.ready().await?)
    }

    /// The key that signing secrets are encrypted with, if a component here needs it. Fails if it is not
    /// the key that the stored secrets were encrypted with.
    pub(crate) async fn secret_key(&self) -> CliResult<Option<Arc<SecretKey>>> {
        if !self.components.iter().any(|component| component.needs_secret_key()) {
            return Ok(None);
        }
        let sealed_with = self.sealed_with().await?;
        let key = secret_key(&self.config, &sealed_with)?;
        if sealed_with.iter().any(|id| !key.opens(id)) {
            return Err(CliError::new(
                "configuration: secrets.key: the stored signing secrets are encrypted with another key: \
                 set the key that they were created with, as secrets.old_key if there is a new one",
            ));
        }
        Ok(Some(key))
    }

    /// The ids of the keys that stored secrets are encrypted with, asked by a role of this process.
    async fn sealed_with(&self) -> CliResult<Vec<String>> {
        if self.runs(Component::Worker) {
            return Ok(self.stores.worker.secret_key_ids().await?);
        }
        match self.stores.verifier.secret_key_ids().await {
            Ok(ids) => Ok(ids),
            // The api's own roles cannot read secrets. Where each role has its own login, this process may
            // have none that can; the worker and the verifier still check.
            Err(error @ (StoreError::Denied(_) | StoreError::Setup(_)))
                if !self.runs(Component::Verifier) =>
            {
                tracing::warn!(%error, "cannot check that secrets.key opens the stored secrets");
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the first API key of an embedded database; returns the file it is in if it did.
    pub(crate) async fn root_key(&self) -> CliResult<Option<PathBuf>> {
        match &self.config.database.backend {
            BackendUrl::Sqlite(path) if self.config.auth.root_key.is_none() => {
                keyfiles::root_key(path, &*self.stores.keys).await
            }
            _ => Ok(None),
        }
    }

    /// Notes the largest payload for the outbox, which keeps to it too. The api's other work does not depend on it.
    pub(crate) async fn store_payload_limit(&self) {
        if !self.runs(Component::Api) {
            return;
        }
        let bytes = self.config.server.max_payload_bytes as u64;
        if let Err(error) = self.stores.ingest.store_payload_limit(bytes).await {
            tracing::warn!(
                %error,
                "cannot store server.max_payload_bytes in the database; hooksaga_append keeps using the previous limit"
            );
        }
    }

    /// Starts the components and the listeners.
    pub(crate) fn start(&self, secret_key: Option<&Arc<SecretKey>>, sockets: Sockets) -> RunningServer {
        let (mut components, components_stop) = (JoinSet::new(), Shutdown::new());
        for component in &self.components {
            // The key and the client are there for every component that needs them: see `needs_secret_key` and
            // `Clients`.
            self.start_component(*component, secret_key, &components_stop, &mut components);
        }

        let (mut serving, serving_stop) = (JoinSet::new(), Shutdown::new());
        let probes = Probes::new(Arc::clone(&self.stores.reader), Arc::clone(&self.metrics));
        let beside = if sockets.metrics.is_some() { probes.without_metrics() } else { probes.clone() };
        let app = match secret_key.filter(|_| self.runs(Component::Api)) {
            Some(key) => self.api(Arc::clone(key), self.public_url(&sockets), beside, &mut serving),
            None => beside.router(),
        };
        let options = ListenerOptions { tls: sockets.tls, ..ListenerOptions::new(sockets.max_connections) };
        let mut listen = |listener: TcpListener, app: axum::Router, options: ListenerOptions| {
            let stop = serving_stop.clone();
            serving.spawn(async move {
                if let Err(error) = hooksaga_http::serve(listener, app, options, stop).await {
                    tracing::error!(%error, "the listener failed");
                }
                "the listener"
            });
        };
        listen(sockets.listener, app, options);
        if let Some(metrics) = sockets.metrics {
            listen(metrics, probes.router(), ListenerOptions::new(METRICS_CONNECTIONS));
        }

        let forwarder_stop = Shutdown::new();
        let (signals, wakeups) = (self.signals.clone(), Arc::clone(&self.stores.wakeups));
        let stop = forwarder_stop.clone();
        let forwarder = tokio::spawn(async move { forward_wakeups(&signals, wakeups, &stop).await });
        RunningServer {
            components,
            components_stop,
            serving,
            serving_stop,
            probes,
            serves_api: self.runs(Component::Api),
            forwarder,
            forwarder_stop,
        }
    }

    fn start_component(
        &self,
        component: Component,
        secret_key: Option<&Arc<SecretKey>>,
        shutdown: &Shutdown,
        tasks: &mut JoinSet<&'static str>,
    ) {
        let (signals, metrics) = (self.signals.clone(), Arc::clone(&self.metrics));
        let (stores, config, log) = (&self.stores, &self.config, self.config.log.deliveries);
        macro_rules! run {
            ($component:expr) => {{
                let (running, stop) = ($component, shutdown.clone());
                tasks.spawn(async move {
                    running.run(&stop).await;
                    component.as_str()
                });
            }};
        }
        let client = match component {
            Component::Worker => &self.clients.worker,
            Component::Verifier => &self.clients.verifier,
            _ => &None,
        };
        match (component, secret_key, client) {
            (Component::Verifier, Some(key), Some(client)) => {
                let (store, client, key) = (stores.verifier.clone(), client.clone(), key.clone());
                let trusts = config.callbacks.allow_trusted;
                let verifier = Verifier::new(store, client, key, signals, metrics).allow_trusted(trusts);
                run!(verifier.at_a_time(self.checks_at_a_time()));
            }
            (Component::Worker, Some(key), Some(client)) => {
                let worker = WorkerOptions {
                    concurrency: config.worker.concurrency,
                    http_timeout: config.worker.http_timeout,
                    lease_duration: config.worker.lease_duration,
                };
                let (store, client, key) = (stores.worker.clone(), client.clone(), key.clone());
                run!(Worker::new(store, client, key, worker, signals, metrics, log));
            }
            (Component::Router, ..) => {
                let limit = config.retry.max_retry_limit;
                run!(Router::new(stores.router.clone(), limit, signals, metrics, log));
            }
            (Component::Orchestrator, ..) => {
                let policy = config.retry.policy;
                run!(Orchestrator::new(stores.orchestrator.clone(), policy, signals, metrics, log));
            }
            (Component::Cleaner, ..) => {
                let (interval, lease) = (config.cleaner.interval, config.worker.lease_duration);
                let cleaner = stores.cleaner.clone();
                run!(Cleaner::new(cleaner, interval, lease, signals.clone(), metrics.clone(), log));
                run!(ListIndexer::new(stores.list_index.clone(), signals, metrics));
            }
            (Component::DeadLetters, ..) => {
                let letters = stores.dead_letters.clone();
                run!(DeadLetters::new(letters, signals.clone(), metrics.clone(), log));
                let (limit, catch_up) = (config.retry.max_retry_limit, config.callbacks.catch_up);
                run!(Redriver::new(stores.redrives.clone(), limit, catch_up, signals, metrics, log));
            }
            (Component::Caretaker, ..) => {
                let disable_after = config.callbacks.disable_after;
                run!(Caretaker::new(stores.caretaker.clone(), disable_after, signals, metrics));
            }
            (Component::Janitor, ..) => {
                let (store, archive) = (stores.janitor.clone(), self.archive.clone());
                run!(Janitor::new(store, config.retention.policy(), signals, metrics).archive_to(archive));
            }
            // The api is a listener, not a loop.
            (Component::Api | Component::Verifier | Component::Worker, ..) => {}
        }
    }

    fn api(
        &self,
        secret_key: Arc<SecretKey>,
        public_url: String,
        probes: Probes,
        tasks: &mut JoinSet<&'static str>,
    ) -> axum::Router {
        let stores = self.stores.clone();
        let requeue = Requeue::new(
            stores.dead_letters,
            self.config.retry.max_retry_limit,
            self.signals.clone(),
            Arc::clone(&self.metrics),
            self.config.log.deliveries,
        );
        let (ingest, task) = Ingest::start(
            stores.ingest,
            self.signals.clone(),
            Arc::clone(&self.metrics),
            IngestLimits::default(),
            self.config.log.deliveries,
        );
        // It ends after the listener: when the last request that may hand it events is answered.
        tasks.spawn(async move {
            task.run().await;
            "ingestion"
        });
        // Beside the start, which does not wait for it.
        let reader = Arc::clone(&stores.reader);
        tokio::spawn(async move { hooksaga_http::warm_up(&*reader).await });
        hooksaga_http::api(ApiParts {
            ingest,
            admin: stores.admin,
            requeue,
            redrives: stores.redrives,
            reader: stores.reader,
            keys: stores.key_reader,
            portal_keys: stores.portal_keys,
            tls: self.config.server.tls.is_some(),
            public_url,
            secret_key,
            signals: self.signals.clone(),
            metrics: Arc::clone(&self.metrics),
            max_payload_bytes: self.config.server.max_payload_bytes,
            max_batch_bytes: self.config.server.max_batch_bytes,
            allow_http: self.config.callbacks.allow_http,
            egress: self.config.callbacks.egress(),
            allow_trusted: self.config.callbacks.allow_trusted,
            root_key: self.config.auth.root_key.clone(),
            requests_per_second: self.config.server.requests_per_second,
            portal: PortalLook {
                name: self.config.portal.name.clone(),
                color: self.config.portal.color.clone(),
                frame_ancestors: self.config.portal.frame_ancestors.clone(),
            },
            probes,
        })
    }

    /// How many deliveries this process has under way at a time.
    pub(crate) fn deliveries_at_a_time(&self) -> u32 {
        if self.runs(Component::Worker) { self.config.worker.concurrency } else { 0 }
    }

    /// How many verifications this process has under way at a time.
    pub(crate) fn checks_at_a_time(&self) -> usize {
        if self.runs(Component::Verifier) { descriptors::checks() } else { 0 }
    }

    /// Where this server is reached: as configured, else at the listener's address.
    fn public_url(&self, sockets: &Sockets) -> String {
        let scheme = if sockets.tls.is_some() { "https" } else { "http" };
        let own = || sockets.listener.local_addr().map(|address| format!("{scheme}://{address}"));
        self.config.server.public_url.clone().or_else(|| own().ok()).unwrap_or_default()
    }

    fn runs(&self, component: Component) -> bool {
        self.components.contains(&component)
    }
}

/// The configured key, which opens what the old one sealed, too. `sealed_with`: the ids of the keys that stored secrets
/// are encrypted with.
pub(crate) fn secret_key(config: &Config, sealed_with: &[String]) -> CliResult<Arc<SecretKey>> {
    let key = match (&config.secrets.key, &config.database.backend) {
        (Some(key), _) => Arc::clone(key),
        (None, BackendUrl::Sqlite(path)) => Arc::new(keyfiles::secret_key(path, sealed_with)?),
        (None, BackendUrl::Postgres(_) | BackendUrl::MySql(_)) => {
            return Err(CliError::new(
                "configuration: secrets.key: it must be set on a database server, to the same value in every \
                 process: make one with `openssl rand -base64 32` and set HOOKSAGA_SECRET_KEY",
            ));
        }
    };
    Ok(match &config.secrets.old_key {
        Some(old) => Arc::new(key.with_old(Arc::clone(old))),
        None => key,
    })
}

/// The archive of what is removed, where anything is.
fn archive(config: &Config) -> CliResult<Option<Archive>> {
    let folder = config.retention.archive.as_deref().filter(|_| config.retention.finished.is_some());
    let open = |folder: &Path| {
        Archive::open(folder).map_err(|error| {
            let folder = folder.display();
            CliError::new(format!("configuration: retention.archive: cannot write to {folder}: {error}"))
        })
    };
    folder.map(open).transpose()
}

/// What sends callbacks; says what is wrong with `callbacks.ca_file`.
pub(crate) fn delivery_client(callbacks: &CallbacksConfig) -> CliResult<DeliveryClient> {
    let wrong = |error: &dyn std::fmt::Display| {
        let path = callbacks.ca_file.as_deref().unwrap_or(Path::new("")).display();
        CliError::new(format!("configuration: callbacks.ca_file: cannot use {path}: {error}"))
    };
    let pem = callbacks.ca_file.as_ref().map(std::fs::read).transpose().map_err(|error| wrong(&error))?;
    DeliveryClient::new(callbacks.egress(), pem.as_deref()).map_err(|error| wrong(&error))
}
