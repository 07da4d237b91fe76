//! A private MariaDB Galera Cluster on the loopback interface, made from the installed programs. State is transferred with
//! rsync, as Debian's packages do it.

use crate::{
    mariadb::{LOGIN, MariaDbServer, opts},
    postgres::free_port,
    scratch::ScratchDir,
    unprivileged,
};
use mysql_async::{Conn, prelude::Queryable as _};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// How long a node may take to join: a state transfer on a busy machine.
const JOINED_WITHIN: Duration = Duration::from_secs(90);

/// Running nodes; killed when dropped, and when this process dies.
#[derive(Debug)]
pub struct GaleraCluster {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    folder: ScratchDir,
    /// For clients, for the group, for both kinds of state transfer.
    port: u16,
    group: u16,
    increments: u16,
    snapshots: u16,
    process: Option<Child>,
}

impl GaleraCluster {
    /// Starts a cluster of this many nodes, all of them synced.
    pub fn start(count: usize) -> Self {
        assert!(provider().exists(), "no Galera found: install it (Debian: apt-get install galera-4 rsync)");
        let mut cluster = Self { nodes: (0..count).map(|number| Node::new(number == 0)).collect() };
        for number in 0..count {
            cluster.launch(number, &[]);
        }
        cluster
    }

    /// The administrator's URL of a node, without a database.
    pub fn url(&self, number: usize) -> String {
        format!("mysql://{LOGIN}@127.0.0.1:{}", self.nodes[number].port)
    }

    /// SIGKILL.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].kill();
    }

    /// Starts a node that was killed, and returns when it is in step with the others. As the service's unit does: first it
    /// finds out how far it had come, so that it fetches what it has missed and not everything.
    pub fn revive(&mut self, number: usize) {
        let node = &self.nodes[number];
        let mut looking = node.spawn(&self.members(), false, &["--wsrep-recover".to_owned()]);
        let _ = looking.wait();
        let log = node.log();
        let position = log.lines().find_map(|line| Some(line.split_once("Recovered position:")?.1.trim()));
        let position = position.unwrap_or_else(|| panic!("no position was recovered:\n{log}"));
        let position = format!("--wsrep-start-position={position}");
        self.launch(number, &[position]);
    }

    fn members(&self) -> String {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.group)).collect::<Vec<_>>().join(",")
    }

    fn launch(&mut self, number: usize, more: &[String]) {
        let members = self.members();
        let begins = self.nodes.iter().all(|node| node.process.is_none());
        let node = &mut self.nodes[number];
        node.process = Some(node.spawn(&members, begins, more));
        let url = self.url(number);
        let deadline = Instant::now() + JOINED_WITHIN;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while !runtime.block_on(is_in_step(&url)) {
            assert!(Instant::now() < deadline, "node {number} did not join:\n{}", self.nodes[number].log());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Node {
    fn new(is_first: bool) -> Self {
        // The others get everything from the first one.
        let folder = if is_first { MariaDbServer::make_data() } else { empty_folder() };
        Self {
            folder,
            port: free_port(),
            group: free_port(),
            increments: free_port(),
            snapshots: free_port(),
            process: None,
        }
    }

    fn spawn(&self, members: &str, begins: bool, more: &[String]) -> Child {
        let Self { port, group, increments, snapshots, .. } = self;
        let members = if begins { "" } else { members };
        let provider_options = format!(
            "gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{increments};gcache.size=64M"
        );
        let mut options = vec![
            "--wsrep-on=ON".to_owned(),
            format!("--wsrep-provider={}", provider().display()),
            "--wsrep-cluster-name=tests".to_owned(),
            format!("--wsrep-cluster-address=gcomm://{members}"),
            format!("--wsrep-node-name=node-{port}"),
            format!("--wsrep-node-address=127.0.0.1:{group}"),
            format!("--wsrep-node-incoming-address=127.0.0.1:{port}"),
            format!("--wsrep-provider-options={provider_options}"),
            "--wsrep-sst-method=rsync".to_owned(),
            format!("--wsrep-sst-receive-address=127.0.0.1:{snapshots}"),
            "--wsrep-slave-threads=2".to_owned(),
            "--binlog-format=ROW".to_owned(),
            "--innodb-autoinc-lock-mode=2".to_owned(),
            "--innodb-log-file-size=48M".to_owned(),
        ];
        options.extend_from_slice(more);
        MariaDbServer::spawn(self.folder.path(), *port, &options, None)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A folder for a server whose data comes from another one.
fn empty_folder() -> ScratchDir {
    let folder = ScratchDir::new("mariadb");
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(folder.path().join("init.sql"), "").unwrap();
    unprivileged::give(folder.path()).unwrap();
    unprivileged::give(&data).unwrap();
    folder
}

fn provider() -> PathBuf {
    let known = ["/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so"];
    known.iter().map(Path::new).find(|path| path.exists()).unwrap_or(Path::new(known[0])).to_owned()
}

/// Whether a node takes writes and has everything that the others have.
async fn is_in_step(url: &str) -> bool {
    let Ok(mut connection) = Conn::new(opts(url)).await else { return false };
    let sql = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
               WHERE VARIABLE_NAME = 'wsrep_local_state_comment'";
    let state: Option<String> = connection.query_first(sql).await.ok().flatten();
    let _ = connection.disconnect().await;
    state.as_deref() == Some("Synced")
}
