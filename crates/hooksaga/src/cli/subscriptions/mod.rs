//! `hooksaga subscriptions`: who gets which events.

mod add;
mod care;
mod change;
mod show;
mod verify;

use super::remote::{self, CommonListArgs, Empty, One, QueryString, visible};
use crate::{error::CliResult, output::Now};
use clap::{Args, Subcommand};
use hooksaga_saga::{Invalid, Topics};

const EXAMPLES: &str = "\
Examples:
  hooksaga subscriptions add order.created https://example.com/hook --wait
  hooksaga subscriptions add 'order.*,invoice.paid' https://example.com/hook --tenant acme
  hooksaga subscriptions list --verified false
  hooksaga subscriptions show 3
  hooksaga subscriptions update 3 --callback-url https://example.com/new --wait
  hooksaga subscriptions pause 3
  hooksaga subscriptions resume 3
  hooksaga subscriptions verify 3 --wait
  hooksaga subscriptions test 3
  hooksaga subscriptions rotate-secret 3
  hooksaga subscriptions delete 3";

const PAUSING: &str = "Example:
  hooksaga subscriptions pause 3

Events that come while it is paused do not wait for it. Once it is active again, send them with
`hooksaga redrives start --events --subscription 3 --since TIME`. Take a time well before the pause: what was stored before it may
have been routed during it. Each event is sent only once.";

const RESUMING: &str = "Examples:
  hooksaga subscriptions resume 3
  hooksaga redrives start --events --subscription 3 --since 2h     what came while it was paused";

/// Add, list and change subscriptions: who gets which events
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", remote::WHERE))]
pub(super) struct Subscriptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Add(add::Add),
    /// List subscriptions, newest first
    #[command(after_help = "Example:\n  hooksaga subscriptions list --tenant acme --active true")]
    List(ListArgs),
    /// Show one subscription
    #[command(after_help = "Example:\n  hooksaga subscriptions show 3")]
    Show(One),
    Update(change::Update),
    /// Pause a subscription: its open deliveries wait, and new events do not go to it
    #[command(after_help = PAUSING)]
    Pause(One),
    /// Resume a subscription: the deliveries that waited go on
    #[command(after_help = RESUMING)]
    Resume(One),
    Verify(verify::Verify),
    /// Make a new signing secret and print it, this once; older ones sign too for 24 hours
    #[command(after_help = "Example:\n  hooksaga subscriptions rotate-secret 3")]
    RotateSecret(One),
    /// Send a test event to one subscription, whatever its topics
    #[command(after_help = "Example:\n  hooksaga subscriptions test 3")]
    Test(One),
    /// Delete a subscription for good; its open deliveries end as dead letters, its history stays
    #[command(after_help = "Example:\n  hooksaga subscriptions delete 3")]
    Delete(One),
}

#[derive(Args)]
struct ListArgs {
    /// Only those with exactly this topic
    #[arg(long = "type", value_name = "TOPIC", value_parser = visible)]
    event_type: Option<String>,
    /// Only those of this endpoint
    #[arg(long, value_name = "URL", value_parser = visible)]
    callback_url: Option<String>,
    /// Only those that are active, or only those that are paused
    #[arg(long, value_name = "BOOL")]
    active: Option<bool>,
    /// Only those whose endpoint is verified, or only those whose endpoint is not
    #[arg(long, value_name = "BOOL")]
    verified: Option<bool>,
    /// Only those that the server switched off, or only the others
    #[arg(long, value_name = "BOOL")]
    disabled: Option<bool>,
    #[command(flatten)]
    list: CommonListArgs,
}

impl ListArgs {
    async fn run(self) -> CliResult {
        let query = QueryString::new("/v1/subscriptions")
            .with("event_type", self.event_type)
            .with("callback_url", self.callback_url)
            .with("active", self.active)
            .with("verified", self.verified)
            .with("disabled", self.disabled);
        let now = Now::local();
        let empty = Empty {
            matching: "no such subscriptions",
            at_all: "no subscriptions: add one with `hooksaga subscriptions add TYPE URL --wait`",
        };
        self.list.show(query, &show::TITLES, empty, |one| show::row(&one, now)).await
    }
}

impl Subscriptions {
    pub(super) async fn run(self) -> CliResult {
        match self.command {
            Command::Add(command) => command.run().await,
            Command::List(command) => command.run().await,
            Command::Show(one) => show::run(one).await,
            Command::Update(command) => command.run().await,
            Command::Pause(one) => change::set_active(one, false).await,
            Command::Resume(one) => change::set_active(one, true).await,
            Command::Verify(command) => command.run().await,
            Command::RotateSecret(one) => change::rotate_secret(one).await,
            Command::Test(one) => care::test(one).await,
            Command::Delete(one) => care::delete(one).await,
        }
    }
}

/// The topics of a subscription, separated by commas.
fn topics(text: &str) -> Result<Topics, String> {
    let topics: Vec<&str> = text.split(',').map(str::trim).collect();
    topics.join(",").parse().map_err(|invalid: Invalid| format!("topics {invalid}"))
}

/// The same as the API takes them.
fn topic_list(topics: &Topics) -> Vec<&str> {
    topics.as_str().split(',').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_separated_by_commas() {
        let read = topics("order.*, invoice.paid").expect("two topics");
        assert_eq!(topic_list(&read), ["invoice.paid", "order.*"]);
        for wrong in ["", "a,,b", "a/b", "*.x"] {
            assert!(topics(wrong).is_err(), "{wrong}");
        }
    }
}
