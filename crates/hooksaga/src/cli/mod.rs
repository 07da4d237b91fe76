//! The command line: one file per subcommand.

mod bench;
mod completions;
mod dead_letters;
mod deliveries;
mod demo;
mod doctor;
#[cfg(test)]
mod documented_commands_tests;
mod events;
mod history;
mod keys;
mod listen;
mod migrate;
mod options;
mod portal;
mod redrives;
mod remote;
mod send;
mod serve;
mod stats;
mod subscriptions;
mod tail;

use crate::error::CliResult;
use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  hooksaga demo                                          everything in a few seconds
  hooksaga serve --dev                                   a server on 127.0.0.1:8080, nothing to set up
  hooksaga listen --port 9000                            a receiver for development
  hooksaga subscriptions add order.created URL --wait    an endpoint for events, verified
  hooksaga send order.created '{\"order\": 17}' --watch    one event, followed to its endpoints
  hooksaga send --file events.ndjson                     many events
  hooksaga tail                                          deliveries as they happen
  hooksaga events list --since 1h                        recent events
  hooksaga deliveries list --status PendingRetry         deliveries that wait for a retry
  hooksaga dead-letters requeue --subscription 3         dead letters, sent again
  hooksaga redrives start --dead-letters                 all of it again, in the background
  hooksaga stats                                         how everything stands
  hooksaga keys create --name shop --scopes ingest       an API key
  hooksaga portal acme                                   a link to a customer's portal
  hooksaga history search --id 17 archive/*.zst          what retention has removed from the database
  hooksaga migrate                                       prepare a database server
  hooksaga doctor                                        what is wrong here, and what to do about it
  hooksaga bench                                         measure this machine
  hooksaga completions bash                              completion for your shell

Exit codes: 0 done, 1 failed (one line on stderr says why and what to do), 2 wrong usage.";

/// A webhook delivery server: events in, signed callbacks out, at least once.
#[derive(Parser)]
#[command(name = "hooksaga", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Serve),
    Migrate(migrate::Migrate),
    Keys(keys::KeysCommand),
    Send(send::Send),
    Subscriptions(subscriptions::Subscriptions),
    Events(events::Events),
    Deliveries(deliveries::Deliveries),
    DeadLetters(dead_letters::DeadLettersArgs),
    Redrives(redrives::RedrivesArgs),
    Stats(stats::Stats),
    Tail(tail::Tail),
    Portal(portal::Portal),
    History(history::HistoryCommand),
    Doctor(doctor::Doctor),
    Listen(listen::Listen),
    Demo(demo::Demo),
    Bench(bench::Bench),
    Completions(completions::Completions),
}

impl Cli {
    /// Carries out the command.
    pub(crate) async fn run(self) -> CliResult {
        match self.command {
            Command::Serve(command) => Box::pin(command.run()).await,
            Command::Migrate(command) => command.run().await,
            Command::Keys(command) => command.run().await,
            Command::Send(command) => command.run().await,
            Command::Subscriptions(command) => command.run().await,
            Command::Events(command) => command.run().await,
            Command::Deliveries(command) => command.run().await,
            Command::DeadLetters(command) => command.run().await,
            Command::Redrives(command) => command.run().await,
            Command::Stats(command) => command.run().await,
            Command::Tail(command) => command.run().await,
            Command::Portal(command) => command.run().await,
            Command::History(command) => command.run().await,
            Command::Doctor(command) => Box::pin(command.run()).await,
            Command::Listen(command) => command.run().await,
            Command::Demo(command) => Box::pin(command.run()).await,
            Command::Bench(command) => Box::pin(command.run()).await,
            Command::Completions(command) => command.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_shows_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let name = format!("hooksaga {}", command.get_name());
            assert!(help.contains(&name), "{name} has no example");
            assert!(EXAMPLES.contains(&name), "{name} has no example in the overview");
            for inner in command.get_subcommands() {
                let help = inner.get_after_help().map(ToString::to_string).unwrap_or_default();
                let name = format!("{name} {}", inner.get_name());
                assert!(help.contains(&name), "{name} has no example");
            }
        }
    }
}
