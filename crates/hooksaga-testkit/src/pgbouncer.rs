//! A private PgBouncer in front of a PostgreSQL server.

use crate::{postgres::free_port, scratch::ScratchDir, unprivileged};
use std::{
    fs,
    net::TcpStream,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A running pooler; killed when dropped, and when this process dies.
#[derive(Debug)]
pub struct PgBouncer {
    folder: ScratchDir,
    port: u16,
    process: Child,
}

impl PgBouncer {
    /// Starts one in front of the server that a URL names. `ignored`: startup parameters that it drops instead of
    /// refusing the connection.
    pub fn start(server_url: &str, pool_mode: &str, ignored: &str) -> Self {
        let folder = ScratchDir::new("pgbouncer");
        let server = server_url.rsplit_once('@').and_then(|(_, rest)| rest.split_once('/')).unwrap().0;
        let (host, server_port) = server.split_once(':').unwrap();
        let port = free_port();
        let users = folder.path().join("users.txt");
        fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={host} port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {pool_mode}\n\
             ignore_startup_parameters = {ignored}\nmax_client_conn = 300\ndefault_pool_size = 100\n",
            users.display()
        );
        fs::write(&config, text).unwrap();
        unprivileged::give(folder.path()).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let process = unprivileged::command("/usr/sbin/pgbouncer")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("PgBouncer can be started: install it (Debian: apt-get install pgbouncer)");
        let pooler = Self { folder, port, process };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || fs::read_to_string(pooler.folder.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "PgBouncer did not start:\n{}", log());
            thread::sleep(Duration::from_millis(20));
        }
        pooler
    }

    /// The URL of the same database through this pooler.
    pub fn url(&self, server_url: &str) -> String {
        let (login, rest) = server_url.rsplit_once('@').unwrap();
        format!("{login}@127.0.0.1:{}/{}", self.port, rest.split_once('/').unwrap().1)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
