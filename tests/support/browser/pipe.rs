//! The browser process and the pipe to it: messages are JSON, each ended by a zero byte.

use super::program;
use crate::support::PATIENCE;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
use tokio::{sync::oneshot, time::timeout};

/// The browser reads its commands from descriptor 3 and writes to 4. It ends when its commands end; then its profile is
/// removed.
const LAUNCH: &str = r#"profile=$(mktemp -d "${TMPDIR:-/tmp}/hooksaga-browser-XXXXXX")
"$0" "$@" --user-data-dir="$profile" 3<&0 4>&1 </dev/null >/dev/null 2>&1
rm -rf "$profile" 2>/dev/null || { sleep 1; rm -rf "$profile"; }"#;

const OPTIONS: &[&str] = &[
    "--headless",
    "--remote-debugging-pipe",
    // Only pages of our own servers are shown, and root has no sandbox.
    "--no-sandbox",
    // They have certificates of their own.
    "--ignore-certificate-errors",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
];

/// What takes the events of a page.
pub(super) trait Listener: Send + Sync {
    fn heard(&self, event: &str, params: &Value);
}

type Reply = Result<Value, String>;

pub(super) struct Pipe {
    commands: Mutex<ChildStdin>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
    listeners: Mutex<HashMap<String, Arc<dyn Listener>>>,
}

impl Pipe {
    /// The run's browser; started by whoever needs it first.
    pub(super) fn shared() -> &'static Self {
        static SHARED: OnceLock<&'static Pipe> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut browser = Command::new("/bin/sh")
                .args(["-c", LAUNCH])
                .arg(program())
                .args(OPTIONS)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let pipe: &'static Self = Box::leak(Box::new(Self {
                commands: Mutex::new(browser.stdin.take().unwrap()),
                next: AtomicU64::new(1),
                waiting: Mutex::default(),
                listeners: Mutex::default(),
            }));
            let messages = browser.stdout.take().unwrap();
            thread::spawn(move || {
                pipe.listen(messages);
                browser.wait()
            });
            pipe
        })
    }

    /// Takes what the browser says until it ends.
    fn listen(&self, messages: ChildStdout) {
        let mut messages = BufReader::new(messages);
        loop {
            let mut message = Vec::new();
            if messages.read_until(0, &mut message).is_err() || message.pop() != Some(0) {
                break;
            }
            let Ok(message) = serde_json::from_slice::<Value>(&message) else { continue };
            if let Some(id) = message["id"].as_u64() {
                let reply = match message.get("error") {
                    Some(error) => Err(error.to_string()),
                    None => Ok(message["result"].clone()),
                };
                let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                // Nobody waits for what was only sent.
                let _ = waiting.map(|waiting| waiting.send(reply));
            } else if let (Some(session), Some(event)) =
                (message["sessionId"].as_str(), message["method"].as_str())
            {
                let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
                let listener = listeners.get(session).map(Arc::clone);
                drop(listeners);
                if let Some(listener) = listener {
                    listener.heard(event, &message["params"]);
                }
            }
        }
        // Whoever waits finds out that the browser is gone.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn attend(&self, session: &str, listener: Arc<dyn Listener>) {
        self.listeners.lock().unwrap().insert(session.to_owned(), listener);
    }

    pub(super) fn leave(&self, session: &str) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }

    /// Sends a command without waiting for what comes of it.
    pub(super) fn send(&self, session: Option<&str>, method: &str, params: &Value) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.write(id, session, method, params);
        id
    }

    fn write(&self, id: u64, session: Option<&str>, method: &str, params: &Value) {
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            command["sessionId"] = session.into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        // A browser that is gone is noticed by whoever waits for a reply.
        let _ = self.commands.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes);
    }

    /// Sends a command; what the browser returns.
    pub(super) async fn call(&self, session: Option<&str>, method: &str, params: &Value) -> Reply {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, replied) = oneshot::channel();
        self.waiting.lock().unwrap().insert(id, reply);
        self.write(id, session, method, params);
        match timeout(PATIENCE, replied).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => panic!("the browser has ended"),
            Err(_) => panic!("the browser does not reply to {method}"),
        }
    }
}
