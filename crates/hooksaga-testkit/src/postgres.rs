//! A private PostgreSQL server, made from the installed binaries.

use crate::{
    authority::{Authority, Identity},
    scratch::ScratchDir,
    small_disk::{SmallDisk, on},
    unprivileged,
};
use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio_postgres::NoTls;

/// The variable through which the tests of one run share one server.
pub const URL_VARIABLE: &str = "TESTKIT_POSTGRES_URL";

/// A running server; stopped when dropped, and when this process dies.
#[derive(Debug)]
pub struct PostgresServer {
    folder: ScratchDir,
    port: u16,
    settings: Vec<String>,
    disk: Option<Arc<SmallDisk>>,
    process: Child,
}

/// What is special about a server.
#[derive(Default)]
struct Setup {
    /// Each as `name=value`.
    settings: Vec<String>,
    /// Who may connect from where, instead of everybody from here.
    access: Option<&'static str>,
    /// More arguments for `initdb`.
    made_with: Vec<String>,
    /// A disk that the server sees.
    disk: Option<Arc<SmallDisk>>,
}

impl PostgresServer {
    /// Makes a cluster in a scratch folder and starts it on a free port of the loopback interface.
    pub fn start() -> Self {
        Self::start_as(Setup::default())
    }

    /// The same with these settings, such as `max_connections=60`.
    pub fn start_with_settings(settings: &[&str]) -> Self {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        Self::start_as(Setup { settings, ..Setup::default() })
    }

    /// The same with a tablespace `small_disk` on this disk.
    pub fn start_with_tablespace_on(disk: &Arc<SmallDisk>) -> Self {
        let server = Self::start_as(Setup { disk: Some(Arc::clone(disk)), ..Setup::default() });
        let folder = disk.folder("tablespace");
        let sql = format!("CREATE TABLESPACE small_disk LOCATION '{}'", folder.display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(execute(&server.url(), &sql));
        server
    }

    /// The same with its log, the WAL, on this disk, in files of 1 MiB.
    pub fn start_with_log_on(disk: &Arc<SmallDisk>) -> Self {
        let made_with =
            vec!["--wal-segsize=1".to_owned(), format!("--waldir={}", disk.folder("wal").display())];
        Self::start_as(Setup { made_with, disk: Some(Arc::clone(disk)), ..Setup::default() })
    }

    /// The same with TLS. Without it, only the superuser's connection to the database `postgres` is accepted; the database
    /// `mutual` asks for a certificate of the same authority, too.
    pub fn start_with_tls(authority: &Authority, identity: &Identity) -> Self {
        let option = |name: &str, path: &Path| format!("{name}={}", path.display());
        let settings = vec![
            "ssl=on".to_owned(),
            option("ssl_cert_file", &identity.certificate),
            option("ssl_key_file", &identity.key),
            option("ssl_ca_file", &authority.file()),
        ];
        let access = "hostnossl postgres postgres 127.0.0.1/32 trust\n\
                      hostssl mutual all 127.0.0.1/32 trust clientcert=verify-ca\n\
                      hostssl all all 127.0.0.1/32 trust\n";
        Self::start_as(Setup { settings, access: Some(access), ..Setup::default() })
    }

    /// A copy of a running server that follows it.
    pub(crate) fn start_as_standby_of(primary: &Self) -> Self {
        let folder = ScratchDir::new("postgres");
        unprivileged::give(folder.path()).unwrap();
        let data = folder.path().join("data");
        let copied = unprivileged::command(program("pg_basebackup"))
            .args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync", "--dbname"])
            .arg(primary.url())
            .arg("--pgdata")
            .arg(&data)
            .current_dir(folder.path())
            .output()
            .expect("setpriv (util-linux) and pg_basebackup can be run");
        assert!(copied.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&copied.stderr));
        Self::run(folder, free_port(), Vec::new(), None)
    }

    fn start_as(Setup { settings, access, made_with, disk }: Setup) -> Self {
        let folder = ScratchDir::new("postgres");
        unprivileged::give(folder.path()).unwrap();
        let data = folder.path().join("data");
        let made = on(disk.as_deref(), unprivileged::command(program("initdb")))
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"])
            .args(made_with)
            .arg("--pgdata")
            .arg(&data)
            .current_dir(folder.path())
            .output()
            .expect("setpriv (util-linux) and initdb can be run");
        assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));

        if let Some(access) = access {
            fs::write(data.join("pg_hba.conf"), access).unwrap();
        }
        Self::run(folder, free_port(), settings, disk)
    }

    /// Starts it where it was made.
    fn run(folder: ScratchDir, port: u16, settings: Vec<String>, disk: Option<Arc<SmallDisk>>) -> Self {
        let process = Self::spawn(folder.path(), port, &settings, disk.as_deref());
        let server = Self { folder, port, settings, disk, process };
        server.wait_until_ready();
        server
    }

    /// fsync is off: the tests kill processes, never the machine.
    fn spawn(folder: &Path, port: u16, settings: &[String], disk: Option<&SmallDisk>) -> Child {
        let log = fs::File::create(folder.join("server.log")).unwrap();
        on(disk, unprivileged::command(program("postgres")))
            .arg("-D")
            .arg(folder.join("data"))
            .args(["-p", &port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .args(["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=1000"])
            .args(["-c", "shared_buffers=256MB", "-c", "max_wal_size=2GB"])
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while runtime.block_on(tokio_postgres::connect(&self.url(), NoTls)).is_err() {
            assert!(Instant::now() < deadline, "PostgreSQL did not start:\n{}", self.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    /// Ends the server as a crash would, without a checkpoint, and starts it again.
    pub fn crash(&mut self) {
        // SIGQUIT is PostgreSQL's immediate shutdown: the next start recovers from the log. (After SIGKILL the next start
        // has to wait for the children.)
        let _ = Command::new("kill").args(["-QUIT", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
        self.spawn_again();
    }

    fn spawn_again(&mut self) {
        self.process = Self::spawn(self.folder.path(), self.port, &self.settings, self.disk.as_deref());
        self.wait_until_ready();
    }

    /// Whether it has ended, by itself or because it was killed.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// SIGKILL for every process of it.
    pub fn kill(&mut self) {
        self.signal("KILL");
        let _ = self.process.wait();
    }

    /// SIGSTOP for every process of it: connections stay open, and nobody responds.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// No process of it can make a file longer than that: what a quota does, and needs no disk.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let server = self.process.id().to_string();
        for id in Self::with_children(self.process.id()) {
            // As the server's own user: for another's processes not every root may.
            let limited =
                unprivileged::command("prlimit").args(["--pid", &id, &format!("--fsize={limit}:")]).status();
            // A child may have ended meanwhile.
            assert!(limited.unwrap().success() || id != server, "prlimit (util-linux)");
        }
    }

    /// Everything goes on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Starts a server that has ended.
    pub fn revive(&mut self) {
        let _ = fs::remove_file(self.folder.path().join("data/postmaster.pid"));
        self.spawn_again();
    }

    /// Makes a primary of a standby.
    pub fn promote(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            let promoted: bool = client.query_one("SELECT pg_promote()", &[]).await.unwrap().get(0);
            assert!(promoted, "not promoted:\n{}", self.log());
        });
    }

    fn signal(&self, name: &str) {
        Self::signal_all(self.process.id(), name);
    }

    /// To a server and its children. They are listed first: children of a dead server have another parent.
    pub(crate) fn signal_all(id: u32, name: &str) {
        let _ = Command::new("kill").arg(format!("-{name}")).args(Self::with_children(id)).status();
    }

    fn with_children(id: u32) -> Vec<String> {
        let children = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let child: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
            // The name, in brackets, may hold anything; then come the state and the parent.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            (parent.parse() == Ok(id)).then_some(child)
        });
        std::iter::once(id).chain(children).map(|id| id.to_string()).collect()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Connects as the superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Connects as the superuser to this database.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        // SIGINT is PostgreSQL's fast shutdown. It may be frozen, and may wait for a standby that is gone.
        self.signal("CONT");
        let _ = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
    }
}

/// The newest installed server's folder of programs.
fn binaries() -> PathBuf {
    let version = |path: &Path| path.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").exists())
        .max_by_key(|bin| version(bin))
        .or_else(|| env::split_paths(&env::var_os("PATH")?).find(|folder| folder.join("initdb").exists()))
        .expect("no PostgreSQL server programs found: install them (Debian: apt-get install postgresql)")
}

/// A program that came with the newest installed server.
pub fn program(name: &str) -> PathBuf {
    binaries().join(name)
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    port
}

/// The superuser's URL of the run's server.
pub fn admin_url() -> String {
    env::var(URL_VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{URL_VARIABLE} is not set: run the tests through `make test`, or a part of them through \
             `target/debug/with-servers cargo test …`"
        )
    })
}

/// Creates an empty database, or a copy of `template`, and returns its URL.
pub async fn create_database(hint: &str, template: Option<&str>) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{hint}_{}_{number}", std::process::id());
    let template = template.unwrap_or("template1");
    admin_execute(&format!(r#"CREATE DATABASE "{name}" TEMPLATE "{template}""#)).await;
    database_url(&name)
}

/// The superuser's URL of one database of the run's server.
pub fn database_url(name: &str) -> String {
    let url = admin_url();
    let (server, _) = url.rsplit_once('/').expect("a URL with a database name");
    format!("{server}/{name}")
}

/// Runs a statement as the superuser, in the `postgres` database.
pub async fn admin_execute(sql: &str) {
    execute(&admin_url(), sql).await;
}

/// Runs a statement in a database.
pub async fn execute(url: &str, sql: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    drop(client);
    connection.await.unwrap().unwrap();
}

/// The one number that a query returns.
pub async fn number(url: &str, sql: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let row = client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    drop(client);
    connection.await.unwrap().unwrap();
    row.get(0)
}
