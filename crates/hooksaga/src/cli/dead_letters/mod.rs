//! `hooksaga dead-letters`: lists dead letters and sends them again.

mod requeue;

use super::remote::{
    self, ApiDeadLetter, ApiPayload, Empty, One, PageArgs, Period, QueryString, Remote, advice, event_type,
    explain, id, tenant, visible,
};
use crate::{
    error::CliResult,
    output::{self, Cell, Now},
};
use clap::{Args, Subcommand};
use hooksaga_saga::{EventType, Tenant};

const EXAMPLES: &str = "\
Examples:
  hooksaga dead-letters list --requeued false
  hooksaga dead-letters show 5
  hooksaga dead-letters requeue 5
  hooksaga dead-letters requeue --subscription 3 --error HTTP_503 --dry-run
  hooksaga dead-letters requeue --all";

/// List, show and requeue dead letters: deliveries that failed for good
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", remote::WHERE))]
pub(super) struct DeadLettersArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List dead letters, newest first
    #[command(after_help = "Example:\n  hooksaga dead-letters list --subscription 3 --requeued false")]
    List(ListArgs),
    /// Show one dead letter with its payload
    #[command(after_help = "Example:\n  hooksaga dead-letters show 5")]
    Show(One),
    Requeue(requeue::RequeueArgs),
}

/// Which dead letters.
#[derive(Args, Debug)]
struct FilterArgs {
    /// Only this tenant's
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,
    /// Only those of this subscription
    #[arg(long, value_name = "ID", value_parser = id)]
    subscription: Option<i64>,
    /// Only those of events of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = event_type)]
    event_type: Option<EventType>,
    /// Only those whose last failure had this code, such as HTTP_503
    #[arg(long, value_name = "CODE", value_parser = visible)]
    error: Option<String>,
    #[command(flatten)]
    period: Period,
}

#[derive(Args)]
struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only those that have been requeued, or only those that have not
    #[arg(long, value_name = "BOOL")]
    requeued: Option<bool>,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    remote: Remote,
}

impl ListArgs {
    async fn run(self) -> CliResult {
        let query = QueryString::new("/v1/dead-letters")
            .with("tenant", self.filter.tenant)
            .with("subscription_id", self.filter.subscription)
            .with("event_type", self.filter.event_type)
            .with("final_error_code", self.filter.error)
            .with("requeued", self.requeued);
        let query = self.filter.period.add_to(query);
        let now = Now::local();
        let titles = ["ID", "DELIVERY", "EVENT", "TYPE", "SUBSCRIPTION", "ERROR", "CREATED", "REQUEUED AS"];
        let empty = Empty { matching: "no such dead letters", at_all: "no dead letters" };
        remote::list(&self.remote, query, &self.page, &titles, empty, |letter: ApiDeadLetter| {
            vec![
                letter.id.into(),
                letter.saga_id.into(),
                letter.event_id.into(),
                letter.event_type.into(),
                letter.subscription_id.into(),
                letter.final_error_code.into(),
                now.relative(&letter.created_at).into(),
                Cell::optional(letter.requeued_saga_id.map(|id| format!("delivery {id}"))),
            ]
        })
        .await
    }
}

impl DeadLettersArgs {
    pub(super) async fn run(self) -> CliResult {
        match self.command {
            Command::List(command) => command.run().await,
            Command::Show(One { id, remote }) => show(id, &remote).await,
            Command::Requeue(command) => command.run().await,
        }
    }
}

async fn show(id: i64, remote: &Remote) -> CliResult {
    let answer = remote.connect()?.get(&format!("/v1/dead-letters/{id}")).await?;
    if remote.json {
        return remote.print(&answer, |_: ApiDeadLetter| {});
    }
    let (letter, payload): (ApiDeadLetter, ApiPayload) = (answer.json()?, answer.json()?);
    let requeued = letter.requeued_saga_id.map(|id| format!("as delivery {id}"));
    let facts = vec![
        ("dead letter", letter.id.into()),
        ("tenant", letter.tenant.into()),
        ("delivery", letter.saga_id.into()),
        ("event", format!("{} ({})", letter.event_id, letter.event_type).into()),
        ("subscription", letter.subscription_id.into()),
        ("error", explain(&letter.final_error_code).into()),
        ("created", Now::local().both(&letter.created_at).into()),
        ("requeued", Cell::optional(requeued)),
    ];
    output::facts(facts).iter().for_each(output::line);
    output::line(format!("\nWhat to do: {}.", advice(&letter.final_error_code)));
    if letter.requeued_saga_id.is_none() {
        output::line(format!("Then `hooksaga dead-letters requeue {id}` delivers it again."));
    }
    output::line("\nPayload");
    output::line(output::clean(payload.payload.get()));
    Ok(())
}
