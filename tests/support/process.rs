//! A command that runs until it is told to end.

use super::{Installation, PATIENCE, server::command};
use std::sync::{Arc, Mutex};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::Notify,
    time::timeout,
};

/// A running command and what it has printed; killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    more: Arc<Notify>,
}

impl Process {
    pub(crate) async fn start(installation: &Installation, arguments: &[&str]) -> Self {
        let mut child = command(installation, arguments).spawn().unwrap();
        let (lines, more) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        tokio::spawn(collect(child.stdout.take().unwrap(), Arc::clone(&lines), Arc::clone(&more)));
        tokio::spawn(collect(child.stderr.take().unwrap(), Arc::clone(&lines), Arc::clone(&more)));
        Self { child, lines, more }
    }

    /// Waits until it has printed a line with this text; the line.
    pub(crate) async fn said(&self, text: &str) -> String {
        let find = || self.lines.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
        let said = async {
            loop {
                let printed = self.more.notified();
                if let Some(line) = find() {
                    return line;
                }
                printed.await;
            }
        };
        let said = timeout(PATIENCE, said).await;
        said.unwrap_or_else(|_| panic!("{text:?} was not said in {:?}", self.lines.lock().unwrap()))
    }

    /// Ctrl-C; its exit code and everything that it printed.
    pub(crate) async fn interrupt(self) -> (Option<i32>, Vec<String>) {
        self.end_with("INT").await
    }

    /// The same with another signal, such as `TERM`.
    pub(crate) async fn end_with(mut self, signal: &str) -> (Option<i32>, Vec<String>) {
        let id = self.child.id().expect("still running").to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().await.unwrap().success());
        let ended = timeout(PATIENCE, self.child.wait()).await.expect("ends at once").unwrap();
        (ended.code(), self.lines.lock().unwrap().clone())
    }
}

async fn collect(output: impl AsyncRead + Unpin, lines: Arc<Mutex<Vec<String>>>, more: Arc<Notify>) {
    let mut output = BufReader::new(output).lines();
    while let Ok(Some(line)) = output.next_line().await {
        lines.lock().unwrap().push(line);
        more.notify_waiters();
    }
}
