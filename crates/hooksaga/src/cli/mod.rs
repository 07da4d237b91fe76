//! The command line: one file per subcommand.

mod bench;
mod demo;
mod keys;
mod listen;
mod migrate;
mod options;
mod send;
mod serve;

use crate::failure::Outcome;
use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  hooksaga demo                                          the whole story in a few seconds
  hooksaga serve --dev                                   a server on 127.0.0.1:8080, nothing to set up
  hooksaga listen --port 9000                            a receiver for development
  hooksaga send order.created '{\"order\": 17}'            one event
  hooksaga send --file events.ndjson                     many events
  hooksaga keys create --name shop --scopes ingest       an API key
  hooksaga migrate                                       prepare a database server
  hooksaga bench                                         how fast it is here

Exit codes: 0 done, 1 failed (one line on stderr says why and what to do), 2 wrong usage.";

/// A webhook delivery server: events in, signed callbacks out, at least once.
#[derive(Parser)]
#[command(name = "hooksaga", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Serve),
    Migrate(migrate::Migrate),
    Keys(keys::Keys),
    Send(send::Send),
    Listen(listen::Listen),
    Demo(demo::Demo),
    Bench(bench::Bench),
}

impl Cli {
    /// Carries out the command.
    pub(crate) async fn run(self) -> Outcome {
        match self.command {
            Command::Serve(command) => Box::pin(command.run()).await,
            Command::Migrate(command) => command.run().await,
            Command::Keys(command) => command.run().await,
            Command::Send(command) => command.run().await,
            Command::Listen(command) => command.run().await,
            Command::Demo(command) => Box::pin(command.run()).await,
            Command::Bench(command) => Box::pin(command.run()).await,
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
        }
    }
}
