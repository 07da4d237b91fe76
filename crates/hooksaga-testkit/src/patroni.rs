//! PostgreSQL under Patroni: members with synchronous replication, and an etcd that they agree through. For long runs only:
//! Debian's packages patroni, python3-etcd and etcd-server.

use crate::{
    postgres::{PostgresServer, free_port, program},
    scratch::ScratchDir,
    unprivileged,
};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long bootstrapping, joining and failing over may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running cluster; killed when dropped.
#[derive(Debug)]
pub struct PatroniCluster {
    folder: ScratchDir,
    etcd: Child,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    folder: ScratchDir,
    port: u16,
    /// Where Patroni tells what the member is.
    status: u16,
    process: Option<Child>,
}

impl PatroniCluster {
    /// A primary and a synchronous standby.
    pub fn start() -> Self {
        let folder = ScratchDir::new("etcd");
        unprivileged::give(folder.path()).unwrap();
        let (port, peers) = (free_port(), free_port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd = unprivileged::command_ended_by("TERM", "/usr/bin/etcd")
            .arg(format!("--data-dir={}", folder.path().join("data").display()))
            .args([
                format!("--listen-client-urls={}", url(port)),
                format!("--advertise-client-urls={}", url(port)),
            ])
            .args([format!("--listen-peer-urls={}", url(peers)), "--unsafe-no-fsync".to_owned()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .expect("etcd can be started: install it (Debian: apt-get install etcd-server)");
        let mut cluster = Self { folder, etcd, members: Vec::new() };
        wait_until("etcd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok(), || cluster.log());
        for number in 0..2 {
            cluster.members.push(Member::new(number, port));
            cluster.members[number].spawn();
            let path = if number == 0 { "/primary" } else { "/sync" };
            let member = &cluster.members[number];
            wait_until(&format!("member {number} is {path}"), || member.is(path), || member.log());
        }
        cluster
    }

    /// A URL with every host in it, for the database `postgres`.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        format!("postgres://postgres@{}/postgres", hosts.join(","))
    }

    /// Kills the primary with its Patroni, as when its machine is gone; its number.
    pub fn kill_primary(&mut self) -> usize {
        let number = self.members.iter().position(|member| member.is("/primary")).expect("a primary");
        self.members[number].kill();
        number
    }

    /// Freezes the primary with its Patroni; its number.
    pub fn freeze_primary(&mut self) -> usize {
        let number = self.members.iter().position(|member| member.is("/primary")).expect("a primary");
        self.members[number].signal("STOP");
        number
    }

    /// Starts a member that was killed, and returns when it is the synchronous standby.
    pub fn revive(&mut self, number: usize) {
        self.members[number].kill();
        self.members[number].spawn();
        let member = &self.members[number];
        wait_until("the member is the standby", || member.is("/sync"), || member.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for PatroniCluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.kill();
        }
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

impl Member {
    fn new(number: usize, etcd: u16) -> Self {
        let folder = ScratchDir::new("patroni");
        unprivileged::give(folder.path()).unwrap();
        let (port, status) = (free_port(), free_port());
        let path = |name: &str| folder.path().join(name).display().to_string();
        // A failover takes `ttl` at least, and Patroni accepts none below 20 s.
        let config = format!(
            r#"
scope: tests
name: member{number}
restapi: {{listen: "127.0.0.1:{status}", connect_address: "127.0.0.1:{status}"}}
etcd3: {{host: "127.0.0.1:{etcd}"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 3
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {{max_connections: 300, wal_log_hints: "on"}}
  initdb: [{{encoding: UTF8}}, {{locale: C.UTF-8}}, no-sync]
postgresql:
  listen: "127.0.0.1:{port}"
  connect_address: "127.0.0.1:{port}"
  data_dir: "{data}"
  bin_dir: "{bin}"
  pgpass: "{pgpass}"
  use_unix_socket: false
  authentication:
    superuser: {{username: postgres, password: postgres}}
    replication: {{username: replicator, password: replicator}}
  parameters: {{unix_socket_directories: "{sockets}", fsync: "off"}}
  pg_hba: ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
"#,
            data = path("data"),
            bin = program("").display(),
            pgpass = path("pgpass"),
            sockets = folder.path().display(),
        );
        fs::write(folder.path().join("patroni.yml"), config).unwrap();
        Self { folder, port, status, process: None }
    }

    fn spawn(&mut self) {
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let process = unprivileged::command_ended_by("TERM", "/usr/bin/patroni")
            .arg(self.folder.path().join("patroni.yml"))
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("Patroni can be started: install it (Debian: apt-get install patroni python3-etcd)");
        self.process = Some(process);
    }

    /// Whether Patroni says that the member is this: `/primary`, `/sync`.
    fn is(&self, path: &str) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.status)) else { return false };
        let limit = Some(Duration::from_secs(2));
        let _ = (stream.set_read_timeout(limit), stream.set_write_timeout(limit));
        let mut response = [0; 12];
        let asked = stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        asked.is_ok() && stream.read_exact(&mut response).is_ok() && response.ends_with(b" 200")
    }

    /// To Patroni and to every process of its PostgreSQL, which is no child of it.
    fn signal(&self, name: &str) {
        if let Some(process) = &self.process {
            let _ = Command::new("kill").args([&format!("-{name}"), &process.id().to_string()]).status();
        }
        if let Some(id) = postmaster(&self.folder.path().join("data")) {
            PostgresServer::signal_all(id, name);
        }
    }

    fn kill(&mut self) {
        self.signal("KILL");
        if let Some(mut process) = self.process.take() {
            let _ = process.wait();
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

/// The server that runs on this data, if there is one.
fn postmaster(data: &Path) -> Option<u32> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let id = text.lines().next()?.trim().parse().ok()?;
    // The file outlives a server that was killed; its number may be somebody else's by now.
    let command = fs::read(format!("/proc/{id}/cmdline")).ok()?;
    String::from_utf8_lossy(&command).contains(&*data.to_string_lossy()).then_some(id)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool, log: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}:\n{}", log());
        thread::sleep(Duration::from_millis(100));
    }
}
