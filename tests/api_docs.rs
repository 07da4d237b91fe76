//! docs/API.md: every command is run as it stands there, against a new server, and what comes back is what the page says.
//!
//! When responses have new fields, `HOOKSAGA_WRITE_DOCS=1` makes this test write them into the page instead of failing.

use crate::support::*;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A command of the page and the response below it.
struct Exchange {
    command: String,
    status: String,
    /// Nothing for text.
    response: Option<Value>,
    text: String,
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/API.md")
}

fn exchanges() -> Vec<Exchange> {
    let page = fs::read_to_string(page()).unwrap();
    let mut found = Vec::new();
    let mut command = None;
    let mut rest = page.as_str();
    while let Some((_, tail)) = rest.split_once("\n```") {
        let (kind, tail) = tail.split_once('\n').unwrap();
        let (block, tail) = if let Some(tail) = tail.strip_prefix("```") {
            ("", tail)
        } else {
            tail.split_once("\n```").unwrap()
        };
        rest = tail;
        match kind.split_once(' ') {
            None if kind == "sh" => command = Some(block.to_owned()),
            Some((kind, status)) => {
                let command =
                    command.take().unwrap_or_else(|| panic!("a response without a command: {block}"));
                let response = (kind == "json").then(|| serde_json::from_str(block).unwrap());
                found.push(Exchange { command, status: status.to_owned(), response, text: block.to_owned() });
            }
            None => {}
        }
    }
    assert!(command.is_none(), "a command without a response: {command:?}");
    found
}

/// The page's ids, and those that they have here.
#[derive(Default)]
struct Ids(BTreeMap<u64, u64>);

impl Ids {
    /// The command with the ids of this server.
    fn put_into(&self, command: &str) -> String {
        let mut text = String::new();
        let mut digits = String::new();
        for c in command.chars().chain(['\0']) {
            if c.is_ascii_digit() {
                digits.push(c);
                continue;
            }
            let number = digits.parse().ok().and_then(|number| self.0.get(&number));
            text.push_str(&number.map_or_else(|| digits.clone(), u64::to_string));
            digits.clear();
            text.push(c);
        }
        text.trim_end_matches('\0').to_owned()
    }

    /// Compares a response with the page's; what differs.
    fn compare(&mut self, shown: &Value, found: &Value, key: &str) -> Result<(), String> {
        let differs = || Err(format!("{key}: {found} in place of {shown}"));
        match (shown, found) {
            (Value::Object(shown), Value::Object(found)) => {
                let (expected, there): (Vec<_>, Vec<_>) = (shown.keys().collect(), found.keys().collect());
                if expected != there {
                    return Err(format!("{key}: {there:?} in place of {expected:?}"));
                }
                shown.iter().try_for_each(|(key, shown)| self.compare(shown, &found[key], key))
            }
            (Value::Array(shown), Value::Array(found)) if found.len() >= shown.len() => {
                shown.iter().zip(found).try_for_each(|(shown, found)| self.compare(shown, found, key))
            }
            (Value::Number(shown), Value::Number(found)) if key == "id" || key.ends_with("_id") => {
                let (shown, found) = (shown.as_u64().unwrap(), found.as_u64().unwrap());
                let known = *self.0.entry(shown).or_insert(found);
                if known == found { Ok(()) } else { Err(format!("{key}: {found}, which was {known} before")) }
            }
            (Value::Number(shown), Value::Number(found)) if key == "status" && shown != found => differs(),
            (Value::String(shown), Value::String(found)) if ["status", "kind", "type"].contains(&key) && shown != found => {
                differs()
            }
            (Value::Bool(shown), Value::Bool(found)) if shown != found => differs(),
            (Value::Number(_), Value::Number(_))
            | (Value::String(_), Value::String(_))
            | (Value::Bool(_), Value::Bool(_))
            // What is not there yet may be there on a slower day.
            | (Value::Null, _) => Ok(()),
            _ => differs(),
        }
    }
}

/// What the page should show: its own values where they fit, and what is new.
fn renewed(shown: &Value, found: &Value) -> Value {
    match (shown, found) {
        (Value::Object(shown), Value::Object(found)) => {
            let renew = |(key, found): (&String, &Value)| {
                (key.clone(), shown.get(key).map_or_else(|| found.clone(), |shown| renewed(shown, found)))
            };
            Value::Object(found.iter().map(renew).collect())
        }
        (Value::Array(shown), Value::Array(found)) if !shown.is_empty() => {
            Value::Array(shown.iter().zip(found).map(|(shown, found)| renewed(shown, found)).collect())
        }
        _ => shown.clone(),
    }
}

async fn ask(url: &str, command: &str) -> (String, String) {
    let script = format!("curl() {{ command curl -sS -m 20 -w '\\n%{{http_code}}' \"$@\"; }}\n{command}");
    let output = tokio::process::Command::new("/bin/bash")
        .args(["-c", &script])
        .env("HOOKSAGA", url)
        .env("KEY", ROOT_KEY)
        .output()
        .await
        .expect("bash and curl run");
    let printed = String::from_utf8_lossy(&output.stdout);
    let (body, status) = printed.rsplit_once('\n').unwrap_or_else(|| panic!("{command}: {output:?}"));
    (status.to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_returns_what_the_page_shows() {
    let receiver = Receiver::start().await;
    receiver.answer("/down/hooks", vec![Behaviour::Status(500); 50]);
    let installation = Installation::sqlite().with("HOOKSAGA_PUBLIC_URL", "https://hooks.example.com");
    let server = installation.serve().await;
    let exchanges = exchanges();
    assert!(exchanges.len() > 30);
    let writes = std::env::var_os("HOOKSAGA_WRITE_DOCS").is_some();
    let mut ids = Ids::default();
    for Exchange { command, status, response, text } in exchanges {
        let real = command
            .replace("https://shop.example/hooks", &receiver.url("/shop/hooks"))
            .replace("https://down.example/hooks", &receiver.url("/down/hooks"))
            .replace("https://ops.example/hooks", &receiver.url("/ops/hooks"));
        let real = ids.put_into(&real);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (found_status, body) = ask(&server.url(), &real).await;
            let compared = match &response {
                _ if found_status != status => Err(format!("status {found_status} in place of {status}")),
                None => match text.lines().find(|line| !body.contains(line)) {
                    Some(line) => Err(format!("{line:?} is missing")),
                    None => Ok(()),
                },
                Some(shown) => match serde_json::from_str(&body) {
                    Ok(found) => ids.compare(shown, &found, ""),
                    Err(error) => Err(error.to_string()),
                },
            };
            let Err(difference) = compared else { break };
            if writes && found_status == status && difference.contains(" in place of [") {
                let shown = response.as_ref().unwrap();
                let new =
                    serde_json::to_string_pretty(&renewed(shown, &serde_json::from_str(&body).unwrap()))
                        .unwrap();
                fs::write(page(), fs::read_to_string(page()).unwrap().replace(&text, &new)).unwrap();
                break;
            }
            // A read may come before what it shows has happened; a write is sent once.
            let again = !command.contains("-X ") && tokio::time::Instant::now() < deadline;
            assert!(again, "{difference}\n{command}\n{body}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
