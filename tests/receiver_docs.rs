//! The receivers of docs/RECEIVERS.md, run as they stand there: a challenge, deliveries, and forgeries.

use crate::support::*;
use hooksaga_testkit::scratch::ScratchDir;
use standardwebhooks::Webhook;
use std::{
    fs,
    os::unix::fs::symlink,
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::{
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

mod with_axum {
    include!("../docs/examples/receiver_axum.rs");

    async fn store_once(id: &str, event: &[u8]) {
        let event: Value = serde_json::from_slice(event).unwrap();
        super::STORED.lock().unwrap().push(json!([id, event]));
    }

    pub(super) fn router(secret: &str) -> axum::Router {
        let webhook = Arc::new(Webhook::new(secret).unwrap());
        axum::Router::new().route("/hook", axum::routing::post(hook)).with_state(webhook)
    }
}

/// What the receiver in Rust has stored.
static STORED: Mutex<Vec<Value>> = Mutex::new(Vec::new());

/// A receiver in a language of its own, with the test's secret and port; killed when dropped.
struct Program {
    folder: ScratchDir,
    port: u16,
    _process: Child,
}

impl Program {
    /// Starts a block of the page; `completed` adds what the block leaves to its reader.
    async fn start(
        name: &str,
        file: &str,
        completed: impl FnOnce(String) -> String,
        command: impl FnOnce(&ScratchDir, u16) -> Command,
    ) -> Self {
        let (folder, port) = (ScratchDir::new("receiver"), free_port());
        let program = completed(example("docs/RECEIVERS.md", name));
        let program = program.replace("whsec_…", SECRET).replace("3000", &port.to_string());
        fs::write(folder.path().join(file), program).unwrap();
        let printed = fs::File::create(folder.path().join("printed.txt")).unwrap();
        let process = command(&folder, port)
            .current_dir(folder.path())
            .stdout(printed.try_clone().unwrap())
            .stderr(printed)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}: run scripts/install-test-tools"));
        let program = Self { folder, port, _process: process };
        eventually(&format!("{name} listens"), || async {
            TcpStream::connect(("127.0.0.1", port)).await.ok()
        })
        .await;
        program
    }

    fn stored(&self) -> Vec<Value> {
        let stored = fs::read_to_string(self.folder.path().join("stored.ndjson")).unwrap_or_default();
        stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.folder.path().join("printed.txt")).unwrap()
    }
}

/// A request as hooksaga makes them, signed with the secret.
struct Request {
    id: &'static str,
    timestamp: i64,
    signature: String,
    body: &'static str,
}

impl Request {
    #[expect(clippy::disallowed_methods, reason = "a receiver compares with its own clock")]
    fn new(id: &'static str, age: i64, body: &'static str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let timestamp = i64::try_from(now).unwrap() - age;
        let signature = Webhook::new(SECRET).unwrap().sign(id, timestamp, body.as_bytes()).unwrap();
        Self { id, timestamp, signature, body }
    }

    fn signed(self, signature: &str) -> Self {
        Self { signature: signature.to_owned(), ..self }
    }

    /// Sends it; the status that comes back.
    async fn send(&self, port: u16) -> u16 {
        let timestamp = self.timestamp.to_string();
        let headers = [
            ("content-type", "application/json"),
            ("webhook-id", self.id),
            ("webhook-timestamp", &timestamp),
            ("webhook-signature", &self.signature),
        ];
        let receiver = Api::new(&format!("127.0.0.1:{port}"), None);
        receiver.send("POST", "/hook", &headers, self.body.as_bytes()).await.status
    }
}

/// What a receiver has to do, whatever it is written in.
async fn check(port: u16, stored: impl Fn() -> Vec<Value>) {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    let api = server.api();
    let url = format!("http://127.0.0.1:{port}/hook");
    let subscription = json!({"event_type": "t", "callback_url": url, "secret": SECRET});
    let id = api.post("/v1/subscriptions", &subscription).await.expect(201)["id"].as_i64().unwrap();
    eventually("its response proves the endpoint", || async {
        api.subscription(id).await["verified"].as_bool().unwrap().then_some(())
    })
    .await;
    let payloads = [
        json!({"text": "ä🦀", "n": 1.5}),
        // Not a challenge, whatever it looks like.
        json!({"type": "hooksaga.verification", "subscription_id": 7, "challenge": "Zk3"}),
        json!({"long": "x".repeat(500_000)}),
    ];
    let mut expected = Vec::new();
    for payload in payloads {
        let event = api.event("t", &payload).await;
        api.delivery_with_status(event, "Completed").await;
        expected.push(json!([format!("evt_{event}"), payload]));
    }
    let ids = |events: &[Value]| events.iter().map(|event| event[0].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&stored()), ids(&expected));
    // Not shown: one of them is long.
    assert!(stored() == expected, "the payloads are what was sent");

    let body = r#"{"order": 1}"#;
    let genuine = || Request::new("evt_1", 0, body);
    assert_eq!(genuine().send(port).await, 204, "what differs from this one is forged");
    let before = stored();
    let another = "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=";
    for (forgery, what) in [
        (genuine().signed(another), "another secret"),
        (genuine().signed("v1,"), "an empty signature"),
        (genuine().signed("v1"), "no signature after the version"),
        (genuine().signed(""), "no signature"),
        (Request { body: r#"{"order": 2}"#, ..genuine() }, "another body"),
        (Request { id: "evt_2", ..genuine() }, "another id"),
        (Request { id: "ver_1_1", ..genuine() }, "a delivery sent again as a challenge"),
        (Request { timestamp: genuine().timestamp - 1, ..genuine() }, "another time"),
        (Request::new("evt_1", 3600, body), "an old one"),
    ] {
        assert_eq!(forgery.send(port).await, 401, "{what}");
    }
    assert_eq!(ids(&stored()), ids(&before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_python_works() {
    let store_once = "import json\n\ndef store_once(id, event):\n    \
                      print(json.dumps([id, event]), file=open('stored.ndjson', 'a'), flush=True)\n";
    let completed = |block| format!("{block}\n{store_once}");
    let program = Program::start("flask", "receiver.py", completed, |_, port| {
        let mut command = Command::new(tool("python/bin/python"));
        command.args(["-B", "-m", "flask", "--app", "receiver", "run", "--port", &port.to_string()]);
        command
    })
    .await;
    check(program.port, || program.stored()).await;
    assert!(!program.printed().contains("Traceback"), "{}", program.printed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_node_works() {
    let store_once = "import { appendFileSync } from 'node:fs';\nfunction storeOnce(id, event) {\n  \
                      appendFileSync('stored.ndjson', JSON.stringify([id, event]) + '\\n');\n}\n";
    let completed = |block| format!("{block}\n{store_once}");
    let program = Program::start("express", "receiver.mjs", completed, |folder, _| {
        symlink(tool("node/node_modules"), folder.path().join("node_modules")).unwrap();
        let mut command = Command::new("node");
        command.arg("receiver.mjs");
        command
    })
    .await;
    check(program.port, || program.stored()).await;
    assert_eq!(program.printed(), "", "no error went unnoticed");
}

/// What the block in Go leaves to its reader.
const GO: &str = r#"package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func storeOnce(id string, body []byte) {
	line, err := json.Marshal([]any{id, json.RawMessage(body)})
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.OpenFile("stored.ndjson", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	file.Write(append(line, '\n'))
}

func main() {
	BLOCK
	log.Fatal(http.ListenAndServe("127.0.0.1:3000", nil))
}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_go_works() {
    const LIBRARY: &str = "src/github.com/standard-webhooks/standard-webhooks/libraries/go";
    let completed = |block: String| GO.replace("BLOCK", &block);
    let program = Program::start("net-http", "receiver.go", completed, |folder, _| {
        let library = folder.path().join(LIBRARY);
        fs::create_dir_all(&library).unwrap();
        fs::write(library.join("webhook.go"), text("tests/receivers/standardwebhooks.go")).unwrap();
        // Without modules nothing is fetched. It is compiled here, since only what runs has to be quick.
        let built = std::process::Command::new("go")
            .args(["build", "-o", "receiver", "receiver.go"])
            .env("GO111MODULE", "off")
            .env("GOPATH", folder.path())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Command::new(folder.path().join("receiver"))
    })
    .await;
    check(program.port, || program.stored()).await;
    assert_eq!(program.printed(), "", "no error went unnoticed");
}

/// What the block in PHP leaves to its reader.
const PHP: &str = r#"<?php
BLOCK
function store_once($id, $event) {
    file_put_contents(__DIR__ . '/stored.ndjson', json_encode([$id, $event]) . "\n", FILE_APPEND);
}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_php_works() {
    let completed = |block: String| PHP.replace("BLOCK", &block);
    let program = Program::start("php", "receiver.php", completed, |folder, port| {
        let library = folder.path().join("vendor");
        fs::create_dir(&library).unwrap();
        fs::write(library.join("autoload.php"), text("tests/receivers/standardwebhooks.php")).unwrap();
        // No file of settings: with what Debian and a developer's machine have set it works the same.
        let mut command = Command::new("php");
        command.args(["-n", "-S", &format!("127.0.0.1:{port}"), "receiver.php"]);
        command
    })
    .await;
    check(program.port, || program.stored()).await;
    for trouble in ["Warning", "Deprecated", "Fatal", "Uncaught"] {
        assert!(!program.printed().contains(trouble), "{}", program.printed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_rust_works() {
    let compiled = text("docs/examples/receiver_axum.rs");
    assert_eq!(example("docs/RECEIVERS.md", "axum"), compiled, "the page shows what is compiled here");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, with_axum::router(SECRET)).await });
    check(port, || STORED.lock().unwrap().clone()).await;
}
