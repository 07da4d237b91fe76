//! `hooksaga redrives`: large work in the background, and how far it came.

mod start;

use super::remote::{self, Page, Query, Redrive, Remote, id, tenant};
use crate::{
    error::CliResult,
    output::{self, Cell, Clock},
};
use clap::{Args, Subcommand};
use hooksaga_saga::Tenant;

const EXAMPLES: &str = "\
Examples:
  hooksaga redrives start --dead-letters --subscription 3
  hooksaga redrives start --events --subscription 3 --since 7d
  hooksaga redrives list
  hooksaga redrives show 5
  hooksaga redrives cancel 5";

/// Send many again, in the background: dead letters, or events that a subscription missed
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", remote::WHERE))]
pub(super) struct Redrives {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Start(start::Start),
    /// List redrives, newest first
    #[command(after_help = "Example:\n  hooksaga redrives list")]
    List(List),
    /// Show how far a redrive came
    #[command(after_help = "Example:\n  hooksaga redrives show 5")]
    Show {
        /// The id that `redrives list` shows
        #[arg(value_name = "ID", value_parser = id)]
        id: i64,
        #[command(flatten)]
        remote: Remote,
    },
    /// Cancel a redrive; what it has made stays
    #[command(after_help = "Example:\n  hooksaga redrives cancel 5")]
    Cancel {
        /// The id that `redrives list` shows
        #[arg(value_name = "ID", value_parser = id)]
        id: i64,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Args)]
struct List {
    /// Only this tenant's
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    remote: Remote,
}

impl List {
    async fn run(self) -> CliResult {
        let query = Query::new("/v1/redrives").with("tenant", self.tenant);
        let clock = Clock::now();
        let titles =
            ["ID", "TENANT", "WHAT", "STATUS", "EXAMINED", "CREATED", "SKIPPED", "STARTED BY", "STARTED"];
        remote::list(&self.remote, query, &self.page, &titles, "no redrives", |redrive: Redrive| {
            vec![
                redrive.id.into(),
                redrive.tenant.clone().unwrap_or_else(|| "all".to_owned()).into(),
                what(&redrive).into(),
                redrive.status.into(),
                redrive.examined.to_string().into(),
                redrive.created.to_string().into(),
                redrive.skipped.to_string().into(),
                Cell::optional(redrive.started_by),
                clock.relative(&redrive.created_at).into(),
            ]
        })
        .await
    }
}

impl Redrives {
    pub(super) async fn run(self) -> CliResult {
        match self.command {
            Command::Start(command) => command.run().await,
            Command::List(command) => command.run().await,
            Command::Show { id, remote } => {
                let answer = remote.connect()?.get(&format!("/v1/redrives/{id}")).await?;
                remote.print(&answer, |redrive| show(&redrive))
            }
            Command::Cancel { id, remote } => {
                let answer = remote.connect()?.post(&format!("/v1/redrives/{id}/cancel"), "").await?;
                remote.print(&answer, |redrive: Redrive| {
                    output::line(format!("redrive {id} is cancelled: {}", tally(&redrive)));
                })
            }
        }
    }
}

fn show(redrive: &Redrive) {
    let clock = Clock::now();
    let by = redrive.started_by.as_ref().map_or_else(String::new, |name| format!(" by {name}"));
    let facts = vec![
        ("redrive", redrive.id.into()),
        ("tenant", redrive.tenant.clone().unwrap_or_else(|| "all".to_owned()).into()),
        ("what", what(redrive).into()),
        ("status", (&redrive.status).into()),
        ("error", Cell::optional(redrive.error.clone())),
        ("so far", tally(redrive).into()),
        ("started", format!("{}{by}", clock.both(&redrive.created_at)).into()),
        ("last step", clock.both(&redrive.updated_at).into()),
    ];
    output::facts(facts).iter().for_each(output::line);
}

/// What a redrive sends again, for people.
fn what(redrive: &Redrive) -> String {
    match (redrive.subscription_id, &redrive.since) {
        (Some(id), Some(since)) => format!("events since {since} for subscription {id}"),
        _ => "dead letters".to_owned(),
    }
}

/// How far it came.
fn tally(redrive: &Redrive) -> String {
    let Redrive { examined, created, skipped, .. } = redrive;
    format!("{examined} examined, {} created, {skipped} skipped", output::count(*created, "delivery"))
}
