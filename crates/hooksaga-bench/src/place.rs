//! Where a measurement runs: a scratch folder or database, and the server there.

use super::{
    Backend,
    api::Api,
    database::{DatabaseServer, Kind},
    error::{BenchError, BenchResult},
    scratch::sqlite,
    usage,
};
use hooksaga_pipeline::{SecretKey, random_hex};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    process::{Child, Command},
    task::JoinSet,
};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);

/// A scratch folder and, on a database server, a scratch database.
pub(super) struct Place {
    folder: PathBuf,
    database: Database,
    /// What its servers are started from.
    program: PathBuf,
    secret_key: String,
    root_key: String,
}

enum Database {
    Embedded(PathBuf),
    Server(Box<DatabaseServer>),
}

impl Place {
    /// Prepares the database at `url`, which must be empty.
    pub(super) async fn open(
        backend: &Backend,
        folder: PathBuf,
        url: String,
        program: PathBuf,
    ) -> BenchResult<Self> {
        let database = match backend {
            Backend::Sqlite => Database::Embedded(folder.join("hooksaga.db")),
            Backend::Postgres(_) => server(Kind::Postgres, url).await?,
            Backend::MySql(_) => server(Kind::MySql, url).await?,
        };
        let place = Self {
            folder,
            database,
            program,
            secret_key: SecretKey::generate().to_base64(),
            root_key: hooksaga_http::generate_key(),
        };
        place.migrate().await?;
        Ok(place)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    async fn migrate(&self) -> BenchResult {
        if !self.is_server() {
            return Ok(());
        }
        let migrated = self.command(&["migrate"]).output().await;
        let migrated =
            migrated.map_err(|error| BenchError::new(format!("cannot run hooksaga migrate: {error}")))?;
        if !migrated.status.success() {
            return Err(BenchError::new(String::from_utf8_lossy(&migrated.stderr)));
        }
        Ok(())
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.database, Database::Server(_))
    }

    /// What the database is called.
    pub(super) fn database(&self) -> &'static str {
        match &self.database {
            Database::Embedded(_) => "SQLite",
            Database::Server(server) => server.name(),
        }
    }

    /// The program, with default settings on the scratch database.
    fn command(&self, arguments: &[&str]) -> Command {
        let url = match &self.database {
            Database::Embedded(path) => format!("sqlite://{}", path.display()),
            Database::Server(server) => server.url.clone(),
        };
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env_clear()
            .env("HOOKSAGA_DATABASE_URL", url)
            .env("HOOKSAGA_LISTEN", "127.0.0.1:0")
            .env("HOOKSAGA_SECRET_KEY", &self.secret_key)
            .env("HOOKSAGA_ROOT_KEY", &self.root_key)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts a server and waits until it is ready; how long that took.
    pub(super) async fn start(&self) -> BenchResult<(Server, Duration)> {
        self.start_with(&[]).await
    }

    /// The same, with settings of its own, as environment variables.
    pub(super) async fn start_with(&self, settings: &[(&str, &str)]) -> BenchResult<(Server, Duration)> {
        let log = self.folder.join(format!("server-{}.log", random_hex(4)));
        let output = fs::File::create(&log)
            .map_err(|error| BenchError::new(format!("cannot write a log: {error}")))?;
        let began = Instant::now();
        let written = output.try_clone();
        let written = written.map_err(|error| BenchError::new(format!("cannot keep a log open: {error}")))?;
        let mut command = self.command(&["serve", "--dev"]);
        command.envs(settings.iter().copied()).stdout(output).stderr(Stdio::null());
        let process = command.spawn();
        let process =
            process.map_err(|error| BenchError::new(format!("cannot start the server: {error}")))?;
        let url = listening(&log, began).await?;
        let api = Api::new(&url, &self.root_key);
        while !api.is_ready().await {
            if began.elapsed() > START {
                return Err(BenchError::new("the server did not become ready"));
            }
        }
        let server = Server { process, log: written, url, key: self.root_key.clone(), api: Arc::new(api) };
        Ok((server, began.elapsed()))
    }

    /// The CPU time of the database server, where it runs on this machine.
    pub(super) fn database_cpu(&self) -> Option<Duration> {
        match &self.database {
            Database::Embedded(_) => Some(Duration::ZERO),
            Database::Server(server) => server.cpu(),
        }
    }

    /// How many transactions the database server has ended.
    pub(super) async fn transactions(&self) -> BenchResult<Option<i64>> {
        match &self.database {
            Database::Embedded(_) => Ok(None),
            Database::Server(server) => Ok(Some(server.transactions().await?)),
        }
    }

    /// How many bytes the database takes on disk.
    pub(super) async fn bytes(&self) -> BenchResult<u64> {
        match &self.database {
            Database::Embedded(path) => Ok(fs::metadata(path).map_or(0, |data| data.len())),
            Database::Server(server) => Ok(u64::try_from(server.bytes().await?).unwrap_or(0)),
        }
    }

    /// Adds deliveries that are finished. No server may run.
    pub(super) async fn add_finished(&self, count: u64, subscription: i64) -> BenchResult {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match &self.database {
            Database::Embedded(path) => Ok(sqlite::add_finished(path, count, subscription)?),
            Database::Server(server) => server.add_finished(count, subscription).await,
        }
    }

    /// Waits until what was written is in its place on disk: the database, and the hundreds of megabytes of a server's
    /// log, which would come between the commits of the next measurement.
    pub(super) async fn settle(&self, server: &Server) -> BenchResult {
        let written = server.log.sync_all();
        written.map_err(|error| BenchError::new(format!("cannot write the server's log: {error}")))?;
        match &self.database {
            // The writer does that as it goes.
            Database::Embedded(_) => Ok(()),
            Database::Server(server) => server.settle().await,
        }
    }

    /// Adds deliveries that wait. No server may run.
    pub(super) async fn add_waiting(&self, count: u64, subscription: i64) -> BenchResult {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match &self.database {
            Database::Embedded(path) => Ok(sqlite::add_waiting(path, count, subscription)?),
            Database::Server(server) => server.add_waiting(count, subscription).await,
        }
    }
}

async fn server(kind: Kind, url: String) -> BenchResult<Database> {
    Ok(Database::Server(Box::new(DatabaseServer::open(kind, url).await?)))
}

/// The address that a server's log names.
async fn listening(log: &Path, began: Instant) -> BenchResult<String> {
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        let record = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut found = record.filter_map(|record| {
            record["message"].as_str()?.strip_prefix("listening on ").map(|url| url.trim().to_owned())
        });
        if let Some(url) = found.next_back() {
            return Ok(url);
        }
        if began.elapsed() > START {
            return Err(BenchError::new(format!(
                "the server did not start; its log ends with: {}",
                tail(&text)
            )));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Creates a subscription; its id.
async fn create(api: &Api, event_type: &str, url: &str) -> BenchResult<i64> {
    let body = json!({"event_type": event_type, "callback_url": url});
    let created = api.post("/v1/subscriptions", &body).await?;
    created["id"].as_i64().ok_or_else(|| BenchError::new("a subscription without an id"))
}

fn tail(text: &str) -> &str {
    text.lines().last().unwrap_or("nothing")
}

/// A running server; killed when dropped.
pub(super) struct Server {
    process: Child,
    log: fs::File,
    pub(super) url: String,
    pub(super) key: String,
    pub(super) api: Arc<Api>,
}

impl Server {
    fn id(&self) -> u32 {
        self.process.id().unwrap_or(0)
    }

    pub(super) fn cpu(&self) -> Duration {
        usage::cpu(self.id())
    }

    pub(super) fn peak_memory(&self) -> u64 {
        usage::peak_memory(self.id())
    }

    /// Creates a subscription and waits until it is verified; its id.
    pub(super) async fn subscribe(&self, event_type: &str, url: &str) -> BenchResult<i64> {
        let id = create(&self.api, event_type, url).await?;
        let began = Instant::now();
        while began.elapsed() < START {
            if self.is_verified(id).await? {
                return Ok(id);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(BenchError::new("the benchmark's own receiver was not verified"))
    }

    /// Creates subscriptions, a few at a time, and waits until all are verified; their ids.
    pub(super) async fn subscribe_all(
        &self,
        subscriptions: impl Iterator<Item = (String, String)>,
    ) -> BenchResult<Vec<i64>> {
        const VERIFIED: &str = r#"hooksaga_verifications_total{outcome="verified"}"#;
        const PATIENCE: Duration = Duration::from_secs(60);
        let before = self.api.metric(VERIFIED).await?;
        let ids = self.request_all(subscriptions).await?;
        let began = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
        while self.api.metric(VERIFIED).await? - before < ids.len() as f64 {
            if began.elapsed() > PATIENCE {
                return Err(BenchError::new("the benchmark's own receivers were not all verified"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(ids)
    }

    /// Creates subscriptions, a few at a time, and does not wait until they are verified; their ids.
    pub(super) async fn request_all(
        &self,
        subscriptions: impl Iterator<Item = (String, String)>,
    ) -> BenchResult<Vec<i64>> {
        const AT_A_TIME: usize = 16;
        let (mut ids, mut running) = (Vec::new(), JoinSet::new());
        let ended = |result: Result<BenchResult<i64>, _>| {
            result.unwrap_or_else(|_| Err(BenchError::new("a request was given up")))
        };
        for (event_type, url) in subscriptions {
            if running.len() >= AT_A_TIME
                && let Some(result) = running.join_next().await
            {
                ids.push(ended(result)?);
            }
            let api = Arc::clone(&self.api);
            running.spawn(async move { create(&api, &event_type, &url).await });
        }
        while let Some(result) = running.join_next().await {
            ids.push(ended(result)?);
        }
        Ok(ids)
    }

    /// Whether a subscription is verified.
    pub(super) async fn is_verified(&self, subscription: i64) -> BenchResult<bool> {
        Ok(self.api.get(&format!("/v1/subscriptions/{subscription}")).await?["verified"] == true)
    }

    /// Pauses a subscription: what waits for it is left alone from now on.
    pub(super) async fn pause(&self, subscription: i64) -> BenchResult {
        self.set_active(subscription, false).await
    }

    pub(super) async fn resume(&self, subscription: i64) -> BenchResult {
        self.set_active(subscription, true).await
    }

    async fn set_active(&self, subscription: i64, active: bool) -> BenchResult {
        let path = format!("/v1/subscriptions/{subscription}");
        self.api.patch(&path, &json!({"active": active})).await.map(|_| ())
    }

    /// Ends it at once: what it has in flight is of no interest any more.
    pub(super) async fn kill(mut self) {
        let _ = self.process.kill().await;
    }

    /// Posts a batch of events.
    pub(super) async fn post_batch(&self, events: &[Value]) -> BenchResult {
        let body = json!({ "events": events });
        self.api.post("/v1/events/batch", &body).await.map(|_| ())
    }

    /// Asks it to end, so that the last results are written, and waits until it is gone; not for endpoints that hang.
    pub(super) async fn stop(mut self) {
        const PATIENCE: Duration = Duration::from_secs(3);
        let id = self.process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if id.is_some_and(|id| kill_process(id, Signal::TERM).is_ok())
            && tokio::time::timeout(PATIENCE, self.process.wait()).await.is_ok()
        {
            return;
        }
        let _ = self.process.kill().await;
    }
}
