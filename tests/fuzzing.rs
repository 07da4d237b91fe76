//! The real binary and programs that others wrote: a fuzzer that reads the OpenAPI document, and the library that receivers
//! verify signatures with. Both come from PyPI (`scripts/install-test-tools`).

use crate::support::*;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

/// How long one run of a program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A program of the Python environment that the tests have for themselves.
fn python_tool(name: &str) -> PathBuf {
    tool("python").join("bin").join(name)
}

/// Sends what the OpenAPI document allows, and what it does not, to every operation.
async fn fuzz(folder: &Path, address: &str, key: Option<&str>, checks: &str, examples: &str) {
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/schemathesis.toml");
    let mut command = Command::new(python_tool("schemathesis"));
    command
        .arg("--no-color")
        .arg("--config-file")
        .arg(settings)
        .args(["run", &format!("http://{address}/openapi.json")])
        .args(["--phases", "examples,coverage,fuzzing", "--checks", checks])
        // One worker: with more, the compiler of Python 3.11 fails now and then.
        .args(["--max-examples", examples, "--seed", "1", "--workers", "1"])
        .args(["--no-shrink", "--warnings", "off"])
        .args(key.into_iter().flat_map(|key| ["--header".to_owned(), format!("authorization: Bearer {key}")]))
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.expect("it ends in time").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Tested: "), "it has tested something: {said}");
}

/// What the fuzzer finds out about responses, whoever asks.
const CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Nobody is called: the callbacks that a fuzzer makes up are foreign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fits_the_document_is_accepted_and_nothing_is_a_server_error() {
    let installation = Installation::postgres().await;
    let server = installation.serve_only("api").await;
    let checks = format!("{CHECKS},positive_data_acceptance");
    fuzz(installation.folder.path(), server.address(), Some(ROOT_KEY), &checks, "8").await;
    assert_eq!(server.api().get("/readyz").await.status, 200);
}

/// The same beside every component, with a key that cannot make up callbacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fits_the_document_is_accepted_on_the_embedded_database_too() {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    let arguments = ["keys", "create", "--name", "fuzzer", "--scopes", "ingest,operator,read"];
    let made = run(&installation, &arguments).await;
    let said = String::from_utf8(made.stdout).unwrap();
    let key = said.split_whitespace().find(|word| word.starts_with("hsk_")).expect("a key");
    let checks = format!("{CHECKS},positive_data_acceptance");
    fuzz(installation.folder.path(), server.address(), Some(key), &checks, "4").await;
    assert_eq!(server.api().get("/v1/subscriptions").await.expect(200)["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_key_nothing_is_a_server_error_and_nothing_happens() {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    fuzz(installation.folder.path(), server.address(), None, CHECKS, "3").await;
    for list in ["/v1/events", "/v1/subscriptions", "/v1/audit"] {
        assert_eq!(server.api().get(list).await.expect(200)["items"], json!([]), "{list}");
    }
}

/// Verifies with each secret, and once with a byte too many, which must fail.
const VERIFY: &str = r#"
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
given = json.load(sys.stdin)
for secret in given["secrets"]:
    assert Webhook(secret).verify(given["body"], given["headers"]) == json.loads(given["body"])
    try:
        Webhook(secret).verify(given["body"] + " ", given["headers"])
    except WebhookVerificationError:
        continue
    sys.exit("a changed body was accepted")
print("verified", len(given["secrets"]))
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receivers_library_verifies_what_is_delivered() {
    let installation = Installation::sqlite();
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    let (id, first) = api.verified_subscription("t", &receiver.url("/hook")).await;
    let rotated = api.post(&format!("/v1/subscriptions/{id}/rotate-secret"), &json!({})).await.expect(200);
    let second = rotated["secret"].as_str().unwrap().to_owned();
    let event = api.event("t", &json!({"text": "ä🦀", "n": 1.50})).await;
    api.delivery_with_status(event, "Completed").await;
    let arrival = receiver.deliveries("/hook").remove(0);
    let headers: serde_json::Map<String, Value> =
        arrival.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let given = json!({"secrets": [first, second], "body": arrival.text(), "headers": headers});

    let mut python = Command::new(python_tool("python"))
        .args(["-c", VERIFY])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(given.to_string().as_bytes()).await.unwrap();
    let output = timeout(LIMIT, python.wait_with_output()).await.expect("it ends in time").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "verified 2", "{}", String::from_utf8_lossy(&output.stderr));
}
