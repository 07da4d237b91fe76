//! Where a measurement runs: a scratch folder or database that it makes and removes, and the server there.

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
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);

/// A scratch folder and, on a database server, a scratch database.
pub(super) struct Place {
    folder: PathBuf,
    database: Database,
    secret_key: String,
    root_key: String,
}

enum Database {
    Embedded(PathBuf),
    Server(Box<DatabaseServer>),
}

impl Place {
    /// Makes a place beside the configured database, or uses `given`, an empty one.
    pub(super) async fn create(configured: &Backend, given: bool) -> BenchResult<Self> {
        let name = format!("hooksaga_bench_{}", random_hex(6));
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir(&folder)
            .map_err(|error| BenchError::new(format!("cannot create {}: {error}", folder.display())))?;
        let database = match configured {
            Backend::Sqlite => Database::Embedded(folder.join("hooksaga.db")),
            Backend::Postgres(url) => server(Kind::Postgres, url, &name, given).await?,
            Backend::MySql(url) => server(Kind::MySql, url, &name, given).await?,
        };
        let place = Self {
            folder,
            database,
            secret_key: SecretKey::generate().to_base64(),
            root_key: hooksaga_http::generate_key(),
        };
        if let Err(failure) = place.migrate().await {
            // Why it failed says more than what could not be removed.
            let _ = place.remove().await;
            return Err(failure);
        }
        Ok(place)
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

    /// Removes everything that was made.
    pub(super) async fn remove(self) -> BenchResult {
        // What is left of a scratch folder in the temporary folder harms nobody.
        let _ = fs::remove_dir_all(&self.folder);
        match self.database {
            Database::Embedded(_) => Ok(()),
            Database::Server(server) => server.remove().await,
        }
    }

    /// This program again, with default settings on the scratch database.
    fn command(&self, arguments: &[&str]) -> Command {
        let program = std::env::current_exe().unwrap_or_else(|_| "hooksaga".into());
        let url = match &self.database {
            Database::Embedded(path) => format!("sqlite://{}", path.display()),
            Database::Server(server) => server.url.clone(),
        };
        let mut command = Command::new(program);
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
        let log = self.folder.join(format!("server-{}.log", random_hex(4)));
        let output = fs::File::create(&log)
            .map_err(|error| BenchError::new(format!("cannot write a log: {error}")))?;
        let began = Instant::now();
        let written = output.try_clone();
        let written = written.map_err(|error| BenchError::new(format!("cannot keep a log open: {error}")))?;
        let process = self.command(&["serve", "--dev"]).stdout(output).stderr(Stdio::null()).spawn();
        let process =
            process.map_err(|error| BenchError::new(format!("cannot start the server: {error}")))?;
        let url = listening(&log, began).await?;
        let api = Api::new(&url, &self.root_key);
        while !api.is_ready().await {
            if began.elapsed() > START {
                return Err(BenchError::new("the server did not become ready"));
            }
        }
        Ok((Server { process, log: written, url, key: self.root_key.clone() }, began.elapsed()))
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

async fn server(kind: Kind, url: &str, name: &str, given: bool) -> BenchResult<Database> {
    Ok(Database::Server(Box::new(DatabaseServer::open(kind, url, name, given).await?)))
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

fn tail(text: &str) -> &str {
    text.lines().last().unwrap_or("nothing")
}

/// A running server; killed when dropped.
pub(super) struct Server {
    process: Child,
    log: fs::File,
    pub(super) url: String,
    pub(super) key: String,
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
        let api = Api::new(&self.url, &self.key);
        let body = json!({"event_type": event_type, "callback_url": url});
        let created = api.post("/v1/subscriptions", &body).await?;
        let id = created["id"].as_i64().ok_or_else(|| BenchError::new("a subscription without an id"))?;
        let began = Instant::now();
        while began.elapsed() < START {
            let found = api.get(&format!("/v1/subscriptions/{id}")).await?;
            if found["verified"] == true {
                return Ok(id);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(BenchError::new("the benchmark's own receiver was not verified"))
    }

    /// Pauses a subscription: what waits for it is left alone from now on.
    pub(super) async fn pause(&self, subscription: i64) -> BenchResult {
        let api = Api::new(&self.url, &self.key);
        let path = format!("/v1/subscriptions/{subscription}");
        api.patch(&path, &json!({"active": false})).await.map(|_| ())
    }

    /// Posts a batch of events.
    pub(super) async fn post_batch(&self, events: &[Value]) -> BenchResult {
        let api = Api::new(&self.url, &self.key);
        let body = json!({ "events": events });
        api.post("/v1/events/batch", &body).await.map(|_| ())
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
