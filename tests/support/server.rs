//! A running server process.

use super::{Api, Installation, PATIENCE, installation::ROOT_KEY};
use serde_json::Value;
use std::{
    path::PathBuf,
    process::{ExitStatus, Output, Stdio},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

/// The binary under test: the one that was built with the tests, or the one that `HOOKSAGA_TEST_BINARY` names, say to
/// measure a release build.
pub(super) fn binary() -> PathBuf {
    std::env::var_os("HOOKSAGA_TEST_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_hooksaga").into(), PathBuf::from)
}

pub(super) fn command(installation: &Installation, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .current_dir(installation.folder.path())
        .env_clear()
        .envs(installation.environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs a command of the binary to its end.
pub(crate) async fn run(installation: &Installation, arguments: &[&str]) -> Output {
    let ended = timeout(PATIENCE * 2, command(installation, arguments).output()).await;
    ended.unwrap_or_else(|_| panic!("hooksaga {arguments:?} did not end")).unwrap()
}

/// How a shell that [`run_in_terminal`] starts calls the binary.
pub(crate) const HOOKSAGA: &str = "\"$PROGRAM\"";

/// Runs a line of a shell on a terminal of its own; all that it printed there.
pub(crate) async fn run_in_terminal(installation: &Installation, line: &str) -> String {
    let mut script = Command::new("script");
    script
        .args(["--quiet", "--command", line, "/dev/null"])
        .current_dir(installation.folder.path())
        .env_clear()
        .envs(installation.environment())
        .env("SHELL", "/bin/sh")
        .env("PROGRAM", binary())
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let output = timeout(PATIENCE * 2, script.output()).await;
    let output = output.unwrap_or_else(|_| panic!("{line} did not end")).unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server process; killed when dropped.
pub(crate) struct Server {
    process: Child,
    address: String,
    log: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    /// Starts the binary and waits until it says where it listens.
    pub(crate) async fn start(installation: &Installation, arguments: &[&str]) -> Self {
        Self::started(command(installation, arguments), arguments).await
    }

    /// The same for a process with a limit of open files.
    pub(crate) async fn start_with_files(
        installation: &Installation,
        files: u32,
        arguments: &[&str],
    ) -> Self {
        Self::start_after(installation, &format!("ulimit -n {files}"), arguments).await
    }

    /// The same for a process that a shell prepares.
    pub(crate) async fn start_after(installation: &Installation, before: &str, arguments: &[&str]) -> Self {
        let mut prepared = Command::new("/bin/sh");
        prepared
            .args(["-c", &format!("{before} && exec \"$0\" \"$@\"")])
            .arg(binary())
            .args(arguments)
            .current_dir(installation.folder.path())
            .env_clear()
            .envs(installation.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self::started(prepared, arguments).await
    }

    async fn started(mut command: Command, arguments: &[&str]) -> Self {
        let mut process = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (found, mut listening) = watch::channel(None);
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let stdout = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(record) = serde_json::from_str::<Value>(&line) else { continue };
                let message = record["message"].as_str().unwrap_or_default();
                if let Some(url) = message.strip_prefix("listening on ") {
                    found.send_replace(Some(url.trim().to_owned()));
                }
                stdout.lock().unwrap().push(record);
            }
        });
        let ready = timeout(PATIENCE, listening.wait_for(Option::is_some)).await;
        let Ok(Ok(url)) = ready.map(|found| found.map(|url| url.clone().unwrap())) else {
            let _ = process.start_kill();
            let output = process.wait_with_output().await.unwrap();
            panic!("{arguments:?} did not start: {}", String::from_utf8_lossy(&output.stderr));
        };
        Self { process, address: url.split_once("://").unwrap().1.to_owned(), log }
    }

    /// A client with every scope.
    pub(crate) fn api(&self) -> Api {
        Api::new(&self.address, Some(ROOT_KEY))
    }

    /// A client with this key, or none.
    pub(crate) fn api_with(&self, key: Option<&str>) -> Api {
        Api::new(&self.address, key)
    }

    /// Where it is reached.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The log records so far.
    pub(crate) fn log(&self) -> Vec<Value> {
        self.log.lock().unwrap().clone()
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id().expect("still running")
    }

    /// How much memory it holds.
    pub(crate) fn resident_mib(&self) -> u64 {
        self.memory_mib("VmRSS:")
    }

    /// How much it has held at most.
    pub(crate) fn peak_mib(&self) -> u64 {
        self.memory_mib("VmHWM:")
    }

    /// How much processor time it has used.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let ticks: u32 = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u32>().unwrap()).sum();
        // 100 per second on every Linux.
        f64::from(ticks) / 100.0
    }

    fn memory_mib(&self, which: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(which)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }

    /// The records whose message contains this text.
    pub(crate) fn said(&self, text: &str) -> Vec<Value> {
        let says = |record: &Value| record["message"].as_str().is_some_and(|message| message.contains(text));
        self.log().into_iter().filter(says).collect()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) async fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().await.unwrap().success());
    }

    /// How it has ended, if it has: by itself, since nobody else takes a running server.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    /// Waits for its end; the exit code.
    pub(crate) async fn ended(mut self) -> Option<i32> {
        timeout(PATIENCE, self.process.wait()).await.expect("ends within its grace period").unwrap().code()
    }

    /// SIGKILL: no chance to clean up.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }

    /// SIGTERM, and the exit code that follows.
    pub(crate) async fn terminate(self) -> Option<i32> {
        self.signal("TERM").await;
        self.ended().await
    }
}

/// When a test fails, what its servers warned of says why.
impl Drop for Server {
    #[expect(clippy::print_stderr, reason = "the test harness shows it with the failure")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let is_loud = |record: &&Value| matches!(record["level"].as_str(), Some("WARN" | "ERROR"));
        for record in log.iter().filter(is_loud).take(50) {
            eprintln!("{}: {record}", self.address);
        }
    }
}
