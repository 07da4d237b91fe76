//! `hooksaga send`: ingests one event, or a file of them, through the API.

mod batch;
mod lines;
mod watch;

use super::remote::{self, ServerArgs, event_type, read_argument, tenant};
use crate::{
    client::Client,
    error::{CliError, CliResult},
    output,
};
use clap::Args;
use hooksaga_saga::{EventType, Tenant};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hooksaga send order.created '{\"order\": 17}'
  hooksaga send order.created @order.json --external-id order-17
  hooksaga send order.created @order.json --tenant acme --watch
  cat order.json | hooksaga send order.created -
  hooksaga send --file events.ndjson               each line {\"event_type\":…, \"payload\":…, \"external_id\":…, \"tenant\":…}
  hooksaga send order.created --file orders.ndjson each line a payload of that type

Without PAYLOAD, {} is sent.";

/// Send one event, or many from a file
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n{}", remote::WHERE))]
pub(super) struct Send {
    /// The event's type, such as order.created
    #[arg(value_name = "TYPE", required_unless_present = "file", value_parser = event_type)]
    event_type: Option<EventType>,

    /// JSON text, @FILE for a file, or - for standard input
    #[arg(value_name = "PAYLOAD", conflicts_with = "file")]
    payload: Option<String>,

    /// The caller's own id: sending the same event with it again changes nothing
    #[arg(long, value_name = "ID", conflicts_with = "file")]
    external_id: Option<String>,

    /// Whose event it is; with --file: of the lines that name none [default: default, or the key's own]
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,

    /// Follow it to its endpoints, until each has taken it or was given up
    #[arg(long, conflicts_with_all = ["file", "json"])]
    watch: bool,

    /// Send every line of this file (- for standard input), in batches
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Print the server's response as JSON, for scripts
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// What the command line says about every line of a file.
#[derive(Clone, Copy, Default)]
struct Given<'a> {
    /// The type of every event; without it each line names its own.
    event_type: Option<&'a str>,
    /// Whose events they are where a line does not say it.
    tenant: Option<&'a Tenant>,
}

/// An event as the API takes it. The payload is sent byte for byte.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    event_type: String,
    payload: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
}

/// What the API says of an event that it took.
#[derive(Deserialize)]
struct Accepted {
    id: i64,
    tenant: String,
    event_type: String,
    correlation_id: String,
    duplicate: bool,
}

impl Send {
    pub(super) async fn run(self) -> CliResult {
        let client = self.server.connect()?;
        match &self.file {
            Some(file) => {
                let given = Given {
                    event_type: self.event_type.as_ref().map(EventType::as_str),
                    tenant: self.tenant.as_ref(),
                };
                batch::send(client, file, given, self.json).await
            }
            None => self.send_one(client).await,
        }
    }

    async fn send_one(self, client: Client) -> CliResult {
        let event_type = self.event_type.expect("clap requires TYPE without --file");
        let text = read_argument(self.payload.as_deref().unwrap_or("{}"), "the payload")?;
        let payload: Box<RawValue> = serde_json::from_str(&text)
            .map_err(|error| CliError::new(format!("the payload is not JSON: {error}; nothing was sent")))?;
        let event = Event {
            event_type: event_type.to_string(),
            payload,
            external_id: self.external_id,
            tenant: self.tenant.map(|tenant| tenant.to_string()),
        };
        let body = serde_json::to_vec(&event).map_err(|error| CliError::new(error.to_string()))?;
        let answer = client.post("/v1/events", body).await?;
        let accepted: Accepted = answer.json()?;
        if self.json {
            output::line(answer.text().trim_end());
            return Ok(());
        }
        let Accepted { id, event_type, correlation_id, duplicate, .. } = &accepted;
        if *duplicate {
            output::line(format!("event {id} was there already ({event_type})"));
        } else {
            output::line(format!("event {id} accepted ({event_type}, correlation id {correlation_id})"));
        }
        if self.watch { watch::watch(&client, &accepted).await } else { Ok(()) }
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
            tenant: None,
        };
        let body = serde_json::to_string(&event).expect("serializes");
        assert_eq!(body, format!("{{\"event_type\":\"t\",\"payload\":{payload}}}"));
    }

    #[test]
    fn a_missing_payload_file_is_named() {
        let error = read_argument("@no-such-file.json", "the payload").expect_err("not there").to_string();
        assert!(error.contains("no-such-file.json"), "{error}");
    }
}
