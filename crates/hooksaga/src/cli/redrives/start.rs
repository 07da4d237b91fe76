//! `hooksaga redrives start`: begins a redrive, and follows it until it has ended.

use super::tally;
use crate::{
    cli::remote::{ApiRedrive, PatientClient, Period, Remote, event_type, id, tenant, visible},
    client::{Client, Reply},
    error::{CliError, CliResult},
    output::{self, ProgressBar},
    signals::StopSignals,
};
use clap::{ArgGroup, Args};
use hooksaga_saga::{EventType, Tenant};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Between two reads of its progress.
const PAUSE: Duration = Duration::from_millis(500);

/// Start a redrive, and show its progress until it is done
#[derive(Args)]
#[command(
    group(ArgGroup::new("what").required(true).args(["dead_letters", "events"])),
    after_help = "\
Examples:
  hooksaga redrives start --dead-letters --error HTTP_503 --since 1d
  hooksaga redrives start --events --subscription 3 --since 7d
  hooksaga redrives start --events --subscription 3 --since 2026-01-31T12:00:00Z --until 1h --detach

--dead-letters sends those that fit again, each once; without a filter, all of them. --events sends every event of the
subscription's tenant and topics that it has no delivery of yet: what came before it existed, or while it was paused.
Ctrl-C leaves it running; `hooksaga redrives cancel` ends it."
)]
pub(super) struct Start {
    /// Dead letters that match the filter
    #[arg(long)]
    dead_letters: bool,

    /// Events of which a subscription has no delivery
    #[arg(long, requires = "subscription", requires = "since", conflicts_with_all = ["tenant", "event_type", "error"])]
    events: bool,

    /// The subscription: whose events, or only its dead letters
    #[arg(long, value_name = "ID", value_parser = id)]
    subscription: Option<i64>,

    /// Only dead letters of this tenant
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,

    /// Only dead letters of events of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = event_type)]
    event_type: Option<EventType>,

    /// Only dead letters whose last failure had this code, such as HTTP_503
    #[arg(long, value_name = "CODE", value_parser = visible)]
    error: Option<String>,

    #[command(flatten)]
    period: Period,

    /// Do not wait until it has ended
    #[arg(long)]
    detach: bool,

    #[command(flatten)]
    remote: Remote,
}

impl Start {
    pub(super) async fn run(self) -> CliResult {
        let client = self.remote.connect()?;
        let answer = client.post("/v1/redrives", self.body().to_string()).await?;
        let redrive: ApiRedrive = answer.json()?;
        if self.detach {
            return self.remote.print(&answer, |redrive: ApiRedrive| {
                output::line(format!("redrive {0} runs: see `hooksaga redrives show {0}`", redrive.id));
            });
        }
        let mut stop = StopSignals::listen();
        tokio::select! {
            ended = follow(&client, &redrive) => self.verdict(&ended?),
            () = stop.next() => {
                output::note(format!("it goes on: see `hooksaga redrives show {}`", redrive.id));
                Ok(())
            }
        }
    }

    fn body(&self) -> Value {
        let Period { since, until } = &self.period;
        if self.events {
            let mut body = json!({ "kind": "events", "subscription_id": self.subscription, "since": since });
            if let Some(until) = until {
                body["until"] = json!(until);
            }
            return body;
        }
        let mut filter = Map::new();
        let mut set =
            |name: &str, value: Option<Value>| filter.extend(value.map(|value| (name.to_owned(), value)));
        set("tenant", self.tenant.as_ref().map(|tenant| json!(tenant.as_str())));
        set("subscription_id", self.subscription.map(|id| json!(id)));
        set("event_type", self.event_type.as_ref().map(|event_type| json!(event_type.as_str())));
        set("final_error_code", self.error.as_ref().map(|code| json!(code)));
        set("created_after", since.as_ref().map(|time| json!(time)));
        set("created_before", until.as_ref().map(|time| json!(time)));
        json!({ "kind": "dead_letters", "filter": filter })
    }

    /// It has ended: how.
    fn verdict(&self, answer: &Reply) -> CliResult {
        let redrive: ApiRedrive = answer.json()?;
        if self.remote.json {
            output::line(answer.text().trim_end());
        }
        match redrive.status.as_str() {
            "cancelled" => {
                Err(CliError::new(format!("redrive {} was cancelled: {}", redrive.id, tally(&redrive))))
            }
            "failed" => {
                let why = redrive.error.clone().unwrap_or_else(|| "no reason is known".to_owned());
                Err(CliError::new(format!("redrive {} failed after {}: {why}", redrive.id, tally(&redrive))))
            }
            status => {
                if !self.remote.json {
                    output::line(format!("redrive {} is {status}: {}", redrive.id, tally(&redrive)));
                }
                Ok(())
            }
        }
    }
}

/// Looks until it has ended.
async fn follow(client: &Client, started: &ApiRedrive) -> CliResult<Reply> {
    let id = started.id;
    let progress = ProgressBar::new(started.percent.map(|_| 100));
    let mut server = PatientClient::reached(client).beside(&progress);
    loop {
        let answer = server.get(&format!("/v1/redrives/{id}")).await?;
        let redrive: ApiRedrive = answer.json()?;
        if redrive.status != "running" {
            progress.clear();
            return Ok(answer);
        }
        progress
            .show(redrive.percent.unwrap_or_default().into(), &format!("redrive {id}: {}", tally(&redrive)));
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        start: Start,
    }

    fn parse(line: &str) -> Option<Value> {
        let line = ["start"].into_iter().chain(line.split_whitespace());
        CommandLine::try_parse_from(line).ok().map(|line| line.start.body())
    }

    #[test]
    fn it_must_be_said_what_and_events_need_a_subscription_and_a_time() {
        for wrong in [
            "",
            "--events",
            "--events --subscription 3",
            "--events --since 1d",
            "--dead-letters --events --subscription 3 --since 1d",
            "--events --subscription 3 --since 1d --error HTTP_503",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let all = json!({ "kind": "dead_letters", "filter": {} });
        assert_eq!(parse("--dead-letters"), Some(all));
        let some = json!({ "kind": "dead_letters", "filter": {
            "subscription_id": 3, "final_error_code": "HTTP_503", "created_after": "2026-01-31T12:00:00Z" } });
        let line = "--dead-letters --subscription 3 --error HTTP_503 --since 2026-01-31T12:00:00Z --detach";
        assert_eq!(parse(line), Some(some));
        let events = json!({ "kind": "events", "subscription_id": 3, "since": "2026-01-31T12:00:00Z",
            "until": "2026-02-01T12:00:00Z" });
        let line = "--events --subscription 3 --since 2026-01-31T12:00:00Z --until 2026-02-01T12:00:00Z";
        assert_eq!(parse(line), Some(events));
    }
}
