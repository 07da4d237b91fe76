//! `hooksaga events`: what came in, and where it went.

use super::{
    deliveries,
    remote::{
        self, ApiEvent, ApiPayload, ApiRouting, CommonListArgs, Empty, OfEvents, QueryString, Remote,
        event_id,
    },
};
use crate::{
    error::CliResult,
    output::{self, Cell, Now, Table},
};
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  hooksaga events list --type order.created --since 2h
  hooksaga events list --external-id order-17
  hooksaga events show 17                              evt_17, as receivers see it, does too";

/// List and show events, and where they were delivered
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", remote::WHERE))]
pub(super) struct Events {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List events, newest first
    #[command(after_help = "Example:\n  hooksaga events list --tenant acme --since 2h")]
    List(ListArgs),
    /// Show one event: its payload and its deliveries
    #[command(after_help = "Example:\n  hooksaga events show 17")]
    Show {
        /// The id that `send` and `events list` show
        #[arg(value_name = "ID", value_parser = event_id)]
        id: i64,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Args)]
struct ListArgs {
    #[command(flatten)]
    which: OfEvents,
    #[command(flatten)]
    list: CommonListArgs,
}

impl ListArgs {
    async fn run(self) -> CliResult {
        let now = Now::local();
        let titles = ["ID", "TENANT", "TYPE", "EXTERNAL ID", "CORRELATION ID", "CREATED"];
        let empty = Empty {
            matching: "no such events",
            at_all: "no events yet: send one with `hooksaga send TYPE PAYLOAD`",
        };
        let row = |event: ApiEvent| {
            vec![
                event.id.into(),
                event.tenant.into(),
                event.event_type.into(),
                Cell::optional(event.external_id),
                event.correlation_id.into(),
                now.relative(&event.created_at).into(),
            ]
        };
        self.list.show(self.which.add_to(QueryString::new("/v1/events")), &titles, empty, row).await
    }
}

impl Events {
    pub(super) async fn run(self) -> CliResult {
        match self.command {
            Command::List(command) => command.run().await,
            Command::Show { id, remote } => show(id, &remote).await,
        }
    }
}

async fn show(id: i64, remote: &Remote) -> CliResult {
    let answer = remote.connect()?.get(&format!("/v1/events/{id}")).await?;
    if remote.json {
        return remote.print(&answer, |_: ApiEvent| {});
    }
    let (event, payload, routing): (ApiEvent, ApiPayload, ApiRouting) =
        (answer.json()?, answer.json()?, answer.json()?);
    let now = Now::local();
    let facts = vec![
        ("event", event.id.into()),
        ("tenant", (&event.tenant).into()),
        ("type", (&event.event_type).into()),
        ("external id", Cell::optional(event.external_id)),
        ("correlation id", event.correlation_id.into()),
        ("created", now.both(&event.created_at).into()),
    ];
    output::facts(facts).iter().for_each(output::line);
    output::line("\nPayload");
    output::line(output::clean(payload.payload.get()));
    let unmatched = routing.unmatched.text();
    match (routing.routed, routing.deliveries.as_slice()) {
        (false, []) => output::line("\nIts subscriptions have not been looked up yet."),
        (true, []) => output::line(format!(
            "\nIt had no deliveries: no active and verified subscription of the tenant {} had a topic for {} at that time{}.",
            event.tenant,
            event.event_type,
            unmatched.map(|text| format!(" ({text})")).unwrap_or_default()
        )),
        (routed, deliveries) => {
            output::line(if routed { "\nDeliveries" } else { "\nDeliveries so far" });
            let mut table = Table::new(&deliveries::TITLES);
            deliveries.iter().for_each(|delivery| table.row(deliveries::row(delivery, now)));
            table.print();
            if let Some(unmatched) = unmatched {
                // One that was not verified may be among those above by now.
                output::line(format!(
                    "\nSome with a topic for it did not get it when it was looked up: {unmatched}."
                ));
            }
        }
    }
    Ok(())
}
