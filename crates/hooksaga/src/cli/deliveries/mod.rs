//! `hooksaga deliveries`: each event on its way to each endpoint.

pub(super) mod live;
mod resend;
mod show;

use super::remote::{self, ApiDelivery, CommonListArgs, Empty, OfEvents, One, QueryString, event_id, id};
use crate::{
    error::CliResult,
    output::{Cell, Now},
};
use clap::{Args, Subcommand};
use hooksaga_saga::SagaStatus;

const EXAMPLES: &str = "\
Examples:
  hooksaga deliveries list --status PendingRetry,DeadLettered --since 1h
  hooksaga deliveries list --event 17
  hooksaga deliveries show 21                          every attempt, and what to do about failures
  hooksaga deliveries resend 21                        once more, when it has ended";

/// List, show and resend deliveries: one event to one endpoint each
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", remote::WHERE))]
pub(super) struct Deliveries {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List deliveries, newest first
    #[command(after_help = "Example:\n  hooksaga deliveries list --subscription 3 --status PendingRetry")]
    List(Box<ListArgs>),
    /// Show one delivery with its attempts
    #[command(after_help = "Example:\n  hooksaga deliveries show 21")]
    Show(One),
    /// Send a finished delivery again, as a new delivery
    #[command(after_help = "Example:\n  hooksaga deliveries resend 21")]
    Resend(One),
}

#[derive(Args)]
struct ListArgs {
    /// Only with one of these: Pending, InProgress, PendingRetry, Completed, DeadLettered
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', value_parser = status)]
    status: Vec<SagaStatus>,
    /// Only those to this subscription
    #[arg(long, value_name = "ID", value_parser = id)]
    subscription: Option<i64>,
    /// Only those of this event
    #[arg(long, value_name = "ID", value_parser = event_id)]
    event: Option<i64>,
    #[command(flatten)]
    of: OfEvents,
    #[command(flatten)]
    list: CommonListArgs,
}

impl ListArgs {
    async fn run(self) -> CliResult {
        let query = QueryString::new("/v1/deliveries")
            .with("subscription_id", self.subscription)
            .with("event_id", self.event);
        let query = self.status.into_iter().fold(query, |query, status| query.with("status", Some(status)));
        let now = Now::local();
        let query = self.of.add_to(query);
        let empty = Empty { matching: "no such deliveries", at_all: "no deliveries yet" };
        self.list.show(query, &TITLES, empty, |one| row(&one, now)).await
    }
}

impl Deliveries {
    pub(super) async fn run(self) -> CliResult {
        match self.command {
            Command::List(command) => command.run().await,
            Command::Show(One { id, remote }) => show::run(id, &remote).await,
            Command::Resend(One { id, remote }) => resend::run(id, &remote).await,
        }
    }
}

fn status(text: &str) -> Result<SagaStatus, String> {
    let found = SagaStatus::ALL.iter().find(|status| status.as_str().eq_ignore_ascii_case(text));
    found.copied().ok_or_else(|| {
        let all: Vec<_> = SagaStatus::ALL.iter().map(|status| status.as_str()).collect();
        format!("a status is one of {}", all.join(", "))
    })
}

pub(super) const TITLES: [&str; 8] =
    ["ID", "EVENT", "TYPE", "TO", "STATUS", "ATTEMPTS", "LAST ERROR", "CREATED"];

pub(super) fn row(delivery: &ApiDelivery, now: Now) -> Vec<Cell> {
    let status = match (delivery.status.as_str(), delivery.held) {
        (_, true) => Cell::status("PendingRetry").with_text(format!("{}, held", delivery.status)),
        ("PendingRetry", false) => Cell::status("PendingRetry")
            .with_text(format!("PendingRetry, {}", now.relative(&delivery.next_attempt_at))),
        (status, false) => Cell::status(status),
    };
    vec![
        delivery.saga_id.into(),
        delivery.event_id.into(),
        (&delivery.event_type).into(),
        target(delivery).into(),
        status,
        format!("{} of {}", delivery.attempt_count, delivery.max_retry_limit).into(),
        Cell::optional(delivery.final_error_code.as_ref()),
        now.relative(&delivery.created_at).into(),
    ]
}

/// Where a delivery goes: its address, and the subscription.
pub(super) fn target(delivery: &ApiDelivery) -> String {
    format!("{} ({})", delivery.callback_url, delivery.subscription_id)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::output::{Painter, Table};
    use serde_json::json;

    /// A delivery as the API returns it.
    pub(in crate::cli) fn delivery(saga_id: i64, status: &str, attempts: u32) -> ApiDelivery {
        let value = json!({
            "saga_id": saga_id, "tenant": "default", "event_id": 17, "event_type": "order.created",
            "callback_url": "https://x/h", "subscription_id": 3, "generation": 0,
            "status": status, "attempt_count": attempts, "max_retry_limit": 5,
            "next_attempt_at": "2026-01-31T12:05:30.000000Z", "created_at": "2026-01-31T12:00:00.000000Z",
            "updated_at": "2026-01-31T12:00:00.000000Z", "held": false,
            "final_error_code": (attempts > 0 && status != "Completed").then_some("HTTP_503"),
        });
        serde_json::from_value(value).expect("as the API returns it")
    }

    #[test]
    fn a_row_says_when_the_next_attempt_is() {
        let now = Now::at("2026-01-31T12:05:00Z");
        let mut table = Table::new(&TITLES);
        table.row(row(&delivery(21, "Completed", 1), now));
        let mut newer = delivery(22, "PendingRetry", 2);
        table.row(row(&newer, now));
        newer.held = true;
        table.row(row(&newer, now));
        let lines = table.lines(Painter::new(false));
        assert_eq!(
            lines[1],
            "21  17     order.created  https://x/h (3)  Completed             1 of 5    -           5m ago"
        );
        assert!(
            lines[2].contains("https://x/h (3)")
                && lines[2].contains("PendingRetry, in 30s  2 of 5    HTTP_503")
        );
        assert!(lines[3].contains("PendingRetry, held"));
    }

    #[test]
    fn statuses_are_read_in_any_case() {
        assert_eq!(status("pendingretry"), Ok(SagaStatus::PendingRetry));
        assert!(status("Done").expect_err("no status").contains("DeadLettered"));
    }
}
