//! `hooksaga redrives`: large work in the background, and how far it came.

mod start;

use super::remote::{self, ApiRedrive, CommonListArgs, Empty, One, QueryString};
use crate::{
    error::CliResult,
    output::{self, Cell, Now},
};
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  hooksaga redrives start --dead-letters --subscription 3
  hooksaga redrives start --events --subscription 3 --since 7d
  hooksaga redrives list
  hooksaga redrives show 5
  hooksaga redrives cancel 5";

/// Send many deliveries again, in the background: dead letters, or events that a subscription missed
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", remote::WHERE))]
pub(super) struct RedrivesArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Start(start::Start),
    /// List redrives, newest first
    #[command(after_help = "Example:\n  hooksaga redrives list")]
    List(CommonListArgs),
    /// Show the progress of a redrive
    #[command(after_help = "Example:\n  hooksaga redrives show 5")]
    Show(One),
    /// Cancel a redrive; deliveries that it has created stay
    #[command(after_help = "Example:\n  hooksaga redrives cancel 5")]
    Cancel(One),
}

async fn list(asked: CommonListArgs) -> CliResult {
    let now = Now::local();
    let titles =
        ["ID", "TENANT", "WHAT", "STATUS", "EXAMINED", "CREATED", "SKIPPED", "STARTED BY", "STARTED"];
    let row = |redrive: ApiRedrive| {
        vec![
            redrive.id.into(),
            redrive.tenant.clone().unwrap_or_else(|| "all".to_owned()).into(),
            what(&redrive).into(),
            status(&redrive).into(),
            redrive.examined.to_string().into(),
            redrive.created.to_string().into(),
            redrive.skipped.to_string().into(),
            Cell::optional(redrive.started_by),
            now.relative(&redrive.created_at).into(),
        ]
    };
    let empty = Empty { matching: "no such redrives", at_all: "no redrives" };
    asked.show(QueryString::new("/v1/redrives"), &titles, empty, row).await
}

impl RedrivesArgs {
    pub(super) async fn run(self) -> CliResult {
        match self.command {
            Command::Start(command) => command.run().await,
            Command::List(asked) => list(asked).await,
            Command::Show(One { id, remote }) => {
                let answer = remote.connect()?.get(&format!("/v1/redrives/{id}")).await?;
                remote.print(&answer, |redrive| show(&redrive))
            }
            Command::Cancel(One { id, remote }) => {
                let answer = remote.connect()?.post(&format!("/v1/redrives/{id}/cancel"), "").await?;
                remote.print(&answer, |redrive: ApiRedrive| {
                    output::line(format!("redrive {id} is cancelled: {}", tally(&redrive)));
                })
            }
        }
    }
}

fn show(redrive: &ApiRedrive) {
    let now = Now::local();
    let by = redrive.started_by.as_ref().map_or_else(String::new, |name| format!(" by {name}"));
    let facts = vec![
        ("redrive", redrive.id.into()),
        ("tenant", redrive.tenant.clone().unwrap_or_else(|| "all".to_owned()).into()),
        ("what", what(redrive).into()),
        ("status", status(redrive).into()),
        ("error", Cell::optional(redrive.error.clone())),
        ("so far", tally(redrive).into()),
        ("started", format!("{}{by}", now.both(&redrive.created_at)).into()),
        ("last step", now.both(&redrive.updated_at).into()),
    ];
    output::facts(facts).iter().for_each(output::line);
}

/// What a redrive sends again, for people.
fn what(redrive: &ApiRedrive) -> String {
    // Without an end of its own it ends where it began to run.
    let end = |until: &Option<String>| until.clone().filter(|until| *until != redrive.created_at);
    if let (Some(id), Some(since)) = (redrive.subscription_id, &redrive.since) {
        let before = end(&redrive.until).map_or_else(String::new, |until| format!(" before {until}"));
        return format!("events since {since}{before} for subscription {id}");
    }
    let filter = redrive.filter.clone().unwrap_or_default();
    let conditions = [
        filter.subscription_id.map(|id| format!("of subscription {id}")),
        filter.event_type.map(|event_type| format!("of type {event_type}")),
        filter.final_error_code.map(|code| format!("with {code}")),
        filter.created_after.map(|at| format!("since {at}")),
        end(&filter.created_before).map(|at| format!("before {at}")),
    ];
    ["dead letters".to_owned()]
        .into_iter()
        .chain(conditions.into_iter().flatten())
        .collect::<Vec<_>>()
        .join(" ")
}

/// While it runs, with how much of its time it has looked through.
fn status(redrive: &ApiRedrive) -> String {
    match redrive.percent.filter(|_| redrive.status == "running") {
        Some(percent) => format!("running, {percent} %"),
        None => redrive.status.clone(),
    }
}

/// How far it came.
fn tally(redrive: &ApiRedrive) -> String {
    let ApiRedrive { examined, created, skipped, .. } = redrive;
    format!("{examined} examined, {} created, {skipped} skipped", output::count(*created, "delivery"))
}
