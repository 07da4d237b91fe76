//! A private MariaDB server, made from the installed binaries.

use crate::{
    authority::{Authority, Identity},
    postgres::free_port,
    scratch::ScratchDir,
    small_disk::{SmallDisk, on},
    unprivileged,
};
use mysql_async::{Conn, Opts, prelude::Queryable as _};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The variable through which the tests of one run share one server.
pub const URL_VARIABLE: &str = "TESTKIT_MARIADB_URL";

pub(crate) const LOGIN: &str = "admin";

/// A running server; stopped when dropped, and when this process dies.
#[derive(Debug)]
pub struct MariaDbServer {
    folder: ScratchDir,
    port: u16,
    options: Vec<String>,
    disk: Option<Arc<SmallDisk>>,
    process: Child,
}

impl MariaDbServer {
    /// Makes a data folder and starts a server on a free port of the loopback interface.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with TLS; it also knows the certificates that clients have from this authority.
    pub fn start_with_tls(authority: &Authority, identity: &Identity) -> Self {
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let options = [
            option("ssl-cert", &identity.certificate),
            option("ssl-key", &identity.key),
            option("ssl-ca", &authority.file()),
        ];
        Self::start_with(&options.each_ref().map(String::as_str))
    }

    /// The same with more options.
    pub fn start_with(options: &[&str]) -> Self {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Self::run(Self::make_data(), options, None)
    }

    /// The same with all its data on this disk.
    pub fn start_on(disk: &Arc<SmallDisk>) -> Self {
        let folder = own_folder();
        let data = format!("--datadir={}", disk.folder("data").display());
        let options = vec![data, "--innodb-log-file-size=8M".to_owned()];
        Self::fill_folder(folder.path(), &options, Some(disk));
        Self::run(folder, options, Some(Arc::clone(disk)))
    }

    fn run(folder: ScratchDir, options: Vec<String>, disk: Option<Arc<SmallDisk>>) -> Self {
        let port = free_port();
        let process = Self::spawn(folder.path(), port, &options, disk.as_deref());
        let server = Self { folder, port, options, disk, process };
        server.wait_until_ready();
        server
    }

    /// A folder with the data of a new server, and what it does at its start.
    pub(crate) fn make_data() -> ScratchDir {
        let folder = own_folder();
        let data = format!("--datadir={}", folder.path().join("data").display());
        Self::fill_folder(folder.path(), &[data], None);
        folder
    }

    /// Makes the data where these options tell, and in the folder what the server does at its start.
    fn fill_folder(folder: &Path, options: &[String], disk: Option<&SmallDisk>) {
        let made = on(disk, unprivileged::command(program("mariadb-install-db")))
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg("--skip-name-resolve")
            .args(options)
            .current_dir(folder)
            .output()
            .expect("setpriv (util-linux) and mariadb-install-db can be run");
        assert!(
            made.status.success(),
            "mariadb-install-db failed: {}",
            String::from_utf8_lossy(&made.stdout)
        );
        // One line per statement: that is all an init file can have.
        let sql = format!(
            "CREATE USER IF NOT EXISTS '{LOGIN}'@'127.0.0.1';\n\
             GRANT ALL PRIVILEGES ON *.* TO '{LOGIN}'@'127.0.0.1' WITH GRANT OPTION;\n"
        );
        fs::write(folder.join("init.sql"), sql).unwrap();
    }

    /// MariaDB does not listen to SIGINT. Nothing is flushed to the disk: the tests kill processes, never the machine.
    pub(crate) fn spawn(folder: &Path, port: u16, options: &[String], disk: Option<&SmallDisk>) -> Child {
        let log = fs::File::create(folder.join("server.log")).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        on(disk, unprivileged::command_ended_by("TERM", program("mariadbd")))
            .arg("--no-defaults")
            .arg(format!("--datadir={}", path("data")))
            .arg(format!("--socket={}", path("s.sock")))
            .arg(format!("--pid-file={}", path("pid")))
            .arg(format!("--init-file={}", path("init.sql")))
            .arg(format!("--port={port}"))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=2000"])
            .args(["--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--innodb-doublewrite=0"])
            .args(["--innodb-flush-method=nosync", "--debug-no-sync"])
            .args(["--innodb-buffer-pool-size=256M", "--table-open-cache=4000"])
            // Neither what we need nor the default of either server: the product has to set what it relies on.
            .args(["--default-time-zone=+05:45", "--transaction-isolation=SERIALIZABLE", "--sql-mode="])
            .args(["--character-set-server=latin1", "--collation-server=latin1_swedish_ci"])
            .args(options)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while runtime.block_on(Conn::new(opts(&self.url()))).is_err() {
            assert!(Instant::now() < deadline, "MariaDB did not start:\n{}", self.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    /// Kills the server and starts it again. What was committed is there only with
    /// `--innodb-flush-log-at-trx-commit=2`, or 1, among the options.
    pub fn crash(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.revive();
    }

    /// Whether it has ended, by itself or because it was killed.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Starts a server that has ended.
    pub fn revive(&mut self) {
        self.process = Self::spawn(self.folder.path(), self.port, &self.options, self.disk.as_deref());
        self.wait_until_ready();
    }

    /// SIGSTOP: connections stay open, and nobody responds.
    pub fn freeze(&self) {
        let _ = Command::new("kill").args(["-STOP", &self.process.id().to_string()]).status();
    }

    /// Everything goes on.
    pub fn thaw(&self) {
        let _ = Command::new("kill").args(["-CONT", &self.process.id().to_string()]).status();
    }

    /// Connects as the administrator, to no database.
    pub fn url(&self) -> String {
        format!("mysql://{LOGIN}@127.0.0.1:{}", self.port)
    }
}

impl Drop for MariaDbServer {
    fn drop(&mut self) {
        self.thaw();
        // On a full disk it waits for somebody to make room.
        let signal = if self.disk.is_some() { "-KILL" } else { "-TERM" };
        let _ = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        let _ = self.process.wait();
    }
}

/// A server program, also where it is not in the search path.
fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/usr/libexec"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| program.exists())
        .unwrap_or_else(|| {
            panic!("no {name} found: install MariaDB (Debian: apt-get install mariadb-server)")
        })
}

/// A scratch folder of the user that servers run as.
fn own_folder() -> ScratchDir {
    let folder = ScratchDir::new("mariadb");
    unprivileged::give(folder.path()).unwrap();
    folder
}

pub(crate) fn opts(url: &str) -> Opts {
    Opts::from_url(url).unwrap()
}

/// The administrator's URL of the run's server, without a database.
pub fn admin_url() -> String {
    env::var(URL_VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{URL_VARIABLE} is not set: run the tests through `make test`, or a part of them through \
             `target/debug/with-servers cargo test …`"
        )
    })
}

/// Creates an empty database and returns its URL.
pub async fn create_database(hint: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{hint}_{}_{number}", std::process::id());
    admin_execute(&format!("CREATE DATABASE `{name}`")).await;
    database_url(&name)
}

/// The administrator's URL of one database of the run's server.
pub fn database_url(name: &str) -> String {
    format!("{}/{name}", admin_url())
}

/// Drops a database of the run's server, and the roles that have rights in it: the server goes through all rights of all
/// roles whenever one is dropped, so that those left behind would make every later test slower. A connection that ends late
/// can still make a file in the database's folder: then it is tried again.
pub async fn drop_database(name: &str) {
    let mut connection = Conn::new(opts(&admin_url())).await.unwrap();
    connection.query_drop("SET lock_wait_timeout = 1").await.unwrap();
    let with_rights =
        format!("SELECT DISTINCT User FROM mysql.tables_priv WHERE Host = '' AND Db = '{name}'");
    let roles: Vec<String> = connection.query(with_rights).await.unwrap();
    for _ in 0..20 {
        // In the end it is left: its server ends with the tests.
        if connection.query_drop(format!("DROP DATABASE IF EXISTS `{name}`")).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for role in roles {
        connection.query_drop(format!("DROP ROLE IF EXISTS '{role}'")).await.unwrap();
    }
    connection.disconnect().await.unwrap();
}

/// Runs a statement as the administrator.
pub async fn admin_execute(sql: &str) {
    execute(&admin_url(), sql).await;
}

/// Runs statements as the administrator, one after the other on one connection.
pub async fn admin_execute_all(statements: impl IntoIterator<Item = String>) {
    let mut connection = Conn::new(opts(&admin_url())).await.unwrap();
    for sql in statements {
        connection.query_drop(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    connection.disconnect().await.unwrap();
}

/// The one number that a query returns.
pub async fn number(url: &str, sql: &str) -> i64 {
    let mut connection = Conn::new(opts(url)).await.unwrap();
    let found: Option<i64> =
        connection.query_first(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.disconnect().await.unwrap();
    found.unwrap_or_else(|| panic!("{sql}: nothing"))
}

/// Runs a statement on a server.
pub async fn execute(url: &str, sql: &str) {
    let mut connection = Conn::new(opts(url)).await.unwrap();
    connection.query_drop(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.disconnect().await.unwrap();
}
