//! `hooksaga completions`: scripts that complete the command line in a shell.

use crate::error::{CliError, CliResult};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::{self, Write};

const EXAMPLES: &str = "\
Examples:
  hooksaga completions bash > ~/.local/share/bash-completion/completions/hooksaga
  hooksaga completions zsh > ~/.zfunc/_hooksaga
  hooksaga completions fish > ~/.config/fish/completions/hooksaga.fish";

/// Print a completion script for a shell
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Completions {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> CliResult {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::Cli::command(), "hooksaga", &mut script);
        match io::stdout().lock().write_all(&script) {
            // `hooksaga completions bash | head -1` is nobody's mistake.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::new(format!("cannot write the script: {error}")))
            }
            _ => Ok(()),
        }
    }
}
