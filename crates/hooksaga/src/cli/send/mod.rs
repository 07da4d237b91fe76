//! `hooksaga send`: ingests one event, or a file of them, through the API.

mod batch;
mod lines;

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    output,
};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{io::Read, path::PathBuf};

const EXAMPLES: &str = "\
Examples:
  hooksaga send order.created '{\"order\": 17}'
  hooksaga send order.created @order.json --external-id order-17
  cat order.json | hooksaga send order.created -
  hooksaga send --file events.ndjson               each line {\"event_type\":…, \"payload\":…, \"external_id\":…}
  hooksaga send order.created --file orders.ndjson each line a payload of that type

Without PAYLOAD, {} is sent. The server is found through HOOKSAGA_URL (default http://127.0.0.1:8080), the key
through HOOKSAGA_API_KEY (default: hooksaga-data/root.key if it is there).";

/// Send one event, or many from a file
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Send {
    /// The event's type, such as order.created
    #[arg(value_name = "TYPE", required_unless_present = "file")]
    event_type: Option<String>,

    /// JSON text, @FILE for a file, or - for standard input
    #[arg(value_name = "PAYLOAD", conflicts_with = "file")]
    payload: Option<String>,

    /// The caller's own id: sending the same event with it again changes nothing
    #[arg(long, value_name = "ID", conflicts_with = "file")]
    external_id: Option<String>,

    /// Send every line of this file (- for standard input), in batches
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Print the server's answer as JSON, for scripts
    #[arg(long)]
    json: bool,

    /// The server [default: HOOKSAGA_URL, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// An event as the API takes it. The payload goes out as it came in, byte for byte.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    event_type: String,
    payload: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
}

/// What the API says of an event that it took.
#[derive(Deserialize)]
struct Accepted {
    id: i64,
    correlation_id: String,
    duplicate: bool,
}

impl Send {
    pub(super) async fn run(self) -> Outcome {
        let client = Client::from_environment(self.url.clone())?;
        match &self.file {
            Some(file) => batch::send(client, file, self.event_type.as_deref(), self.json).await,
            None => self.send_one(client).await,
        }
    }

    async fn send_one(self, mut client: Client) -> Outcome {
        let event_type = self.event_type.expect("clap requires TYPE without --file");
        let text = read_payload(self.payload.as_deref().unwrap_or("{}"))?;
        let payload: Box<RawValue> = serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("the payload is not JSON: {error}; nothing was sent")))?;
        let event = Event { event_type, payload, external_id: self.external_id };
        let body = serde_json::to_vec(&event).map_err(|error| Failure::new(error.to_string()))?;
        let answer = client.post("/v1/events", body).await?;
        let accepted: Accepted = answer.json()?;
        if self.json {
            output::line(answer.text().trim_end());
        } else if accepted.duplicate {
            output::line(format!("event {} was there already ({})", accepted.id, event.event_type));
        } else {
            let Accepted { id, correlation_id, .. } = accepted;
            output::line(format!(
                "event {id} accepted ({}, correlation id {correlation_id})",
                event.event_type
            ));
        }
        Ok(())
    }
}

fn read_payload(argument: &str) -> Outcome<String> {
    let cannot_read =
        |from: &str, error| Failure::new(format!("cannot read the payload from {from}: {error}"));
    match argument.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| cannot_read(path, error)),
        None if argument == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| text).map_err(|error| cannot_read("standard input", error))
        }
        None => Ok(argument.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_goes_out_as_it_came_in() {
        let payload = "{\"b\" : 1.0,\t\"a\":\"\\u00e9\"}";
        let event = Event {
            event_type: "t".into(),
            payload: serde_json::from_str(payload).expect("JSON"),
            external_id: None,
        };
        let body = serde_json::to_string(&event).expect("serializes");
        assert_eq!(body, format!("{{\"event_type\":\"t\",\"payload\":{payload}}}"));
    }

    #[test]
    fn a_missing_payload_file_is_named() {
        let error = read_payload("@no-such-file.json").expect_err("not there").to_string();
        assert!(error.contains("no-such-file.json"), "{error}");
    }
}
