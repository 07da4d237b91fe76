//! The workspace of a measurement: a scratch folder or database.

use super::{
    MeasuredBackend,
    database::{DatabaseServer, ServerKind},
    error::{BenchError, BenchResult},
    meter::{DatabaseCounters, Used},
    report::TableState,
    scratch::{Filling, sqlite},
    server::Server,
    usage::Postmaster,
};
use hooksaga_pipeline::SecretKey;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::process::Command;

/// A scratch folder and, on a database server, a scratch database.
pub(super) struct Workspace {
    folder: PathBuf,
    database: WorkspaceDatabase,
    /// What its servers are started from.
    program: PathBuf,
    secret_key: String,
    root_key: String,
}

enum WorkspaceDatabase {
    Embedded(PathBuf),
    Server(Box<DatabaseServer>),
}

impl Workspace {
    /// Prepares the database at `url`, which must be empty.
    pub(super) async fn open(
        backend: &MeasuredBackend,
        folder: PathBuf,
        url: String,
        program: PathBuf,
    ) -> BenchResult<Self> {
        let database = match backend {
            MeasuredBackend::Sqlite => WorkspaceDatabase::Embedded(folder.join("hooksaga.db")),
            MeasuredBackend::Postgres(_) => server(ServerKind::Postgres, url).await?,
            MeasuredBackend::MySql(_) => server(ServerKind::MySql, url).await?,
        };
        let workspace = Self {
            folder,
            database,
            program,
            secret_key: SecretKey::generate().to_base64(),
            root_key: hooksaga_http::generate_key(),
        };
        workspace.migrate().await?;
        Ok(workspace)
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
        matches!(self.database, WorkspaceDatabase::Server(_))
    }

    /// The program, with default settings on the scratch database.
    fn command(&self, arguments: &[&str]) -> Command {
        let url = match &self.database {
            WorkspaceDatabase::Embedded(path) => format!("sqlite://{}", path.display()),
            WorkspaceDatabase::Server(server) => server.url.clone(),
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
        let mut command = self.command(&["serve", "--dev"]);
        command.envs(settings.iter().copied());
        Server::start(command, &self.folder, &self.root_key).await
    }

    /// The database server, where it runs on this machine.
    pub(super) fn database_process(&self) -> Option<Postmaster> {
        match &self.database {
            WorkspaceDatabase::Embedded(_) => None,
            WorkspaceDatabase::Server(server) => server.process,
        }
    }

    /// What these servers and the database have used so far.
    pub(super) fn used(&self, servers: &[Server]) -> Used {
        let (database, written) = match &self.database {
            WorkspaceDatabase::Embedded(_) => {
                (Some(Duration::ZERO), servers.iter().map(Server::written).sum::<Option<u64>>())
            }
            WorkspaceDatabase::Server(_) => {
                let process = self.database_process();
                (process.map(Postmaster::cpu), process.and_then(Postmaster::written))
            }
        };
        Used { server: servers.iter().map(Server::cpu).sum(), database, written }
    }

    /// What the database has counted so far.
    pub(super) async fn counts(&self) -> BenchResult<DatabaseCounters> {
        match &self.database {
            WorkspaceDatabase::Embedded(path) => {
                Ok(DatabaseCounters { commits: sqlite::commits(path), ..DatabaseCounters::default() })
            }
            WorkspaceDatabase::Server(server) => server.counts().await,
        }
    }

    /// How much later than the work the database's counts are complete.
    pub(super) fn counts_after(&self) -> Duration {
        match &self.database {
            WorkspaceDatabase::Embedded(_) => Duration::ZERO,
            WorkspaceDatabase::Server(server) => server.counts_after(),
        }
    }

    /// How many transactions the database server has ended.
    pub(super) async fn transactions(&self) -> BenchResult<Option<i64>> {
        match &self.database {
            WorkspaceDatabase::Embedded(_) => Ok(None),
            WorkspaceDatabase::Server(server) => Ok(Some(server.transactions().await?)),
        }
    }

    /// How many bytes the database takes on disk.
    pub(super) async fn bytes(&self) -> BenchResult<u64> {
        match &self.database {
            WorkspaceDatabase::Embedded(path) => Ok(fs::metadata(path).map_or(0, |data| data.len())),
            WorkspaceDatabase::Server(server) => Ok(u64::try_from(server.bytes().await?).unwrap_or(0)),
        }
    }

    /// The tables that every delivery writes; none where the database counts no dead rows.
    pub(super) async fn tables(&self) -> BenchResult<Vec<TableState>> {
        match &self.database {
            WorkspaceDatabase::Embedded(_) => Ok(Vec::new()),
            WorkspaceDatabase::Server(server) => server.tables().await,
        }
    }

    /// Adds deliveries by plain SQL. No server may run.
    pub(super) async fn fill(&self, filling: Filling, count: u64, subscription: i64) -> BenchResult {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match &self.database {
            WorkspaceDatabase::Embedded(path) => Ok(sqlite::fill(path, filling, count, subscription).await?),
            WorkspaceDatabase::Server(server) => server.fill(filling, count, subscription).await,
        }
    }

    /// Waits until what was written is in its place on disk: the database, and the hundreds of megabytes of a server's
    /// log, which would come between the commits of the next measurement.
    pub(super) async fn settle(&self, server: &Server) -> BenchResult {
        server.write_log()?;
        match &self.database {
            // The writer does that as it goes.
            WorkspaceDatabase::Embedded(_) => Ok(()),
            WorkspaceDatabase::Server(server) => server.settle().await,
        }
    }
}

async fn server(kind: ServerKind, url: String) -> BenchResult<WorkspaceDatabase> {
    Ok(WorkspaceDatabase::Server(Box::new(DatabaseServer::open(kind, url).await?)))
}
