//! Which component gets which role's connections: the only place that sees all roles together.
//!
//! ```text
//! role                    component
//! event_ingest_writer     api (ingestion)
//! subscription_admin      api (subscriptions)
//! dead_letter_operator    api (requeue), deadletters
//! api_reader              api (reads), every process (readiness, metrics)
//! key_admin               api (authentication)
//! subscription_verifier   verifier
//! router_worker           router
//! saga_orchestrator       orchestrator
//! job_worker              worker
//! lease_cleaner           cleaner
//! ```

mod backend;
mod component;

pub(crate) use backend::{Database, migrate, open_keys, role_sql};
pub(crate) use component::Component;

use crate::{
    config::{Backend, CallbacksConfig, Config},
    failure::{Failure, Outcome},
    keyfiles,
};
use hooksaga_http::ApiParts;
use hooksaga_pipeline::{
    Cleaner, DeadLetters, DeliveryClient, EgressPolicy, Ingest, IngestLimits, Metrics, Orchestrator, Router,
    SecretKey, Shutdown, Signals, Verifier, Worker, WorkerConfig, forward_wakeups,
};
use hooksaga_store::{StoreError, Stores};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{net::TcpListener, task::JoinSet};

/// What the components of one process share.
pub(crate) struct Wiring {
    config: Config,
    components: Vec<Component>,
    stores: Stores,
    /// Dropped last: an embedded database stays locked until nobody uses it.
    _database: Database,
    signals: Signals,
    metrics: Arc<Metrics>,
    /// Where a component calls endpoints.
    client: Option<DeliveryClient>,
}

/// The running components.
pub(crate) struct Running {
    tasks: JoinSet<&'static str>,
    forwarder: tokio::task::JoinHandle<()>,
    /// Ends the forwarder, after everyone who may leave it something.
    forwarder_stop: Shutdown,
}

impl Wiring {
    /// Opens the database for these components; not before everything in the configuration is known to be usable.
    pub(crate) async fn open(config: Config, components: Vec<Component>) -> Outcome<Self> {
        let client = match components.iter().any(|component| component.calls_endpoints()) {
            true => Some(delivery_client(&config.callbacks)?),
            false => None,
        };
        let database = Database::open(&config.database).await?;
        let local: Vec<_> = components.iter().flat_map(|component| component.stages()).copied().collect();
        Ok(Self {
            stores: database.stores(),
            _database: database,
            signals: Signals::new(&local),
            metrics: Metrics::new(),
            client,
            config,
            components,
        })
    }

    /// The key that signing secrets are encrypted with, if a component here needs it. It fits to what is
    /// stored, or this fails.
    pub(crate) async fn secret_key(&self) -> Outcome<Option<Arc<SecretKey>>> {
        if !self.components.iter().any(|component| component.needs_secret_key()) {
            return Ok(None);
        }
        let sealed_with = self.sealed_with().await?;
        let key = match (&self.config.secrets.key, &self.config.database.backend) {
            (Some(key), _) => Arc::clone(key),
            (None, Backend::Sqlite(path)) => Arc::new(keyfiles::secret_key(path, &sealed_with)?),
            (None, Backend::Postgres(_) | Backend::MySql(_)) => {
                return Err(Failure::new(
                    "configuration: secrets.key: it must be set on a database server, to the same value in every \
                     process: make one with `openssl rand -base64 32` and set HOOKSAGA_SECRET_KEY",
                ));
            }
        };
        if sealed_with.iter().any(|id| id != key.key_id()) {
            return Err(Failure::new(
                "configuration: secrets.key: the stored signing secrets are encrypted with another key: \
                 set the key that they were created with",
            ));
        }
        Ok(Some(key))
    }

    /// The ids of the keys that stored secrets are encrypted with, asked by a role of this process.
    async fn sealed_with(&self) -> Outcome<Vec<String>> {
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
                tracing::warn!(%error, "cannot check that secrets.key fits to the stored secrets");
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the first API key of an embedded database; answers the file it is in if it did.
    pub(crate) async fn root_key(&self) -> Outcome<Option<PathBuf>> {
        match &self.config.database.backend {
            Backend::Sqlite(path) if self.config.auth.root_key.is_none() => {
                keyfiles::root_key(path, &*self.stores.keys).await
            }
            _ => Ok(None),
        }
    }

    /// Starts the components and the listener; all of them stop at the order to.
    pub(crate) fn start(
        &self,
        secret_key: Option<&Arc<SecretKey>>,
        listener: TcpListener,
        shutdown: &Shutdown,
    ) -> Running {
        let mut tasks = JoinSet::new();
        for component in &self.components {
            // Both are there for every component that needs them: see `needs_secret_key`, `calls_endpoints`.
            self.start_component(*component, secret_key, shutdown, &mut tasks);
        }
        let app = match secret_key.filter(|_| self.runs(Component::Api)) {
            Some(key) => self.api(Arc::clone(key), &mut tasks),
            None => hooksaga_http::probes(Arc::clone(&self.stores.reader), Arc::clone(&self.metrics)),
        };
        let stop = shutdown.clone();
        tasks.spawn(async move {
            if let Err(error) = hooksaga_http::serve(listener, app, stop).await {
                tracing::error!(%error, "the listener failed");
            }
            "the listener"
        });
        let forwarder_stop = Shutdown::new();
        let (signals, wakeups) = (self.signals.clone(), Arc::clone(&self.stores.wakeups));
        let stop = forwarder_stop.clone();
        let forwarder = tokio::spawn(async move { forward_wakeups(&signals, wakeups, &stop).await });
        Running { tasks, forwarder, forwarder_stop }
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
        let stop = shutdown.clone();
        macro_rules! run {
            ($component:expr) => {{
                let running = $component;
                tasks.spawn(async move {
                    running.run(&stop).await;
                    component.as_str()
                });
            }};
        }
        match (component, secret_key, &self.client) {
            (Component::Verifier, Some(key), Some(client)) => {
                run!(Verifier::new(stores.verifier.clone(), client.clone(), key.clone(), signals, metrics));
            }
            (Component::Worker, Some(key), Some(client)) => {
                let worker = WorkerConfig {
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
                let interval = config.cleaner.interval;
                run!(Cleaner::new(stores.cleaner.clone(), interval, signals, metrics, log));
            }
            (Component::DeadLetters, ..) => {
                run!(DeadLetters::new(stores.dead_letters.clone(), signals, metrics, log));
            }
            // The api is a listener, not a loop.
            (Component::Api | Component::Verifier | Component::Worker, ..) => {}
        }
    }

    fn api(&self, secret_key: Arc<SecretKey>, tasks: &mut JoinSet<&'static str>) -> axum::Router {
        let stores = self.stores.clone();
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
        hooksaga_http::api(ApiParts {
            ingest,
            admin: stores.admin,
            dead_letters: stores.dead_letters,
            reader: stores.reader,
            keys: stores.keys,
            secret_key,
            signals: self.signals.clone(),
            metrics: Arc::clone(&self.metrics),
            max_payload_bytes: self.config.server.max_payload_bytes,
            max_batch_bytes: self.config.server.max_batch_bytes,
            allow_http: self.config.callbacks.allow_http,
            default_retry_limit: self.config.retry.max_retry_limit,
            log: self.config.log.deliveries,
            root_key: self.config.auth.root_key.clone(),
        })
    }

    fn runs(&self, component: Component) -> bool {
        self.components.contains(&component)
    }
}

fn delivery_client(callbacks: &CallbacksConfig) -> Outcome<DeliveryClient> {
    let wrong = |error: &dyn std::fmt::Display| {
        let path = callbacks.ca_file.as_deref().unwrap_or(Path::new("")).display();
        Failure::new(format!("configuration: callbacks.ca_file: cannot use {path}: {error}"))
    };
    let pem = callbacks.ca_file.as_ref().map(std::fs::read).transpose().map_err(|error| wrong(&error))?;
    let policy =
        EgressPolicy { allow_http: callbacks.allow_http, allow_networks: callbacks.allow_networks.clone() };
    DeliveryClient::new(policy, pem.as_deref()).map_err(|error| wrong(&error))
}

impl Running {
    /// Waits until a component ends although nobody asked it to.
    pub(crate) async fn failure(&mut self) -> Failure {
        let what = tokio::select! {
            ended = self.tasks.join_next() => match ended {
                Some(Ok(name)) => format!("{name} ended unexpectedly"),
                Some(Err(error)) => format!("a component failed: {error}"),
                None => "no component runs".to_owned(),
            },
            ended = &mut self.forwarder => match ended {
                Ok(()) => "the forwarder of wake-ups ended unexpectedly".to_owned(),
                Err(error) => format!("the forwarder of wake-ups failed: {error}"),
            },
        };
        Failure::new(format!("{what}: this is a bug, please report it; starting again is safe"))
    }

    /// Waits until everything has ended, after the order to stop.
    pub(crate) async fn ended(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a component failed while it stopped");
            }
        }
        self.forwarder_stop.trigger();
        // One that had ended before was a failure, and told as such.
        if !self.forwarder.is_finished()
            && let Err(error) = self.forwarder.await
        {
            tracing::error!(%error, "the forwarder of wake-ups failed while it stopped");
        }
    }
}
