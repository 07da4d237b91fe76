//! `hooksaga migrate`: creates or upgrades the schema and the roles.

use super::options::ConfigOptions;
use crate::{error::CliResult, output, wiring};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  hooksaga migrate
  hooksaga migrate --database-url postgres://hooksaga@db.example.com/hooksaga
  hooksaga migrate --print-roles > roles.sql        for an administrator to run
  hooksaga migrate --after-restore                  the database comes from a backup

Safe to run again and from several places at once. The embedded database is also migrated by `serve`.
A hosted database without the right to create roles: set database.roles = \"off\".";

/// Create or upgrade the schema and the roles, and print what was done
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Migrate {
    #[command(flatten)]
    options: ConfigOptions,

    /// Print the SQL that creates the roles, for an administrator, and change nothing
    #[arg(long)]
    print_roles: bool,

    /// The database was restored from a backup: move every id forward, so that none that was assigned since the backup is
    /// assigned again, and repair what lists are read from. Stop every hooksaga process first
    #[arg(long, conflicts_with = "print_roles")]
    after_restore: bool,
}

impl Migrate {
    pub(super) async fn run(self) -> CliResult {
        let config = self.options.load(Vec::new(), false)?;
        if self.print_roles {
            output::line(wiring::role_sql(&config.database)?.trim_end());
            return Ok(());
        }
        let on_step = |step: &str| output::line(format!("applied {step}"));
        let report = wiring::migrate(&config.database, &on_step).await?;
        if report.applied.is_empty() {
            output::line(format!("the schema was already current (version {})", report.version));
        } else {
            output::line(format!("the schema is at version {}", report.version));
        }
        if !report.roles.is_empty() {
            output::line(format!("roles: {}", report.roles));
        }
        if self.after_restore {
            match wiring::repair_lists(&config.database).await? {
                0 => output::line("lists of dead letters: complete"),
                rows => {
                    output::line(format!("lists of dead letters: {} repaired", output::count(rows, "row")))
                }
            }
            for moved in wiring::move_ids_forward(&config.database).await? {
                output::line(format!("{}: ids go on after {}", moved.table, moved.after));
            }
        }
        Ok(())
    }
}
