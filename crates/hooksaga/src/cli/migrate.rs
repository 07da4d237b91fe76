//! `hooksaga migrate`: creates or upgrades the schema and the roles.

use super::options::ConfigOptions;
use crate::{
    error::CliResult,
    output::{self, ProgressBar},
    wiring,
};
use clap::Args;
use hooksaga_store::migration::{MigrationReport, MovedIds};
use serde_json::json;

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
    /// assigned again. Stop every hooksaga process first
    #[arg(long, conflicts_with = "print_roles")]
    after_restore: bool,

    /// Print what was done as JSON, for scripts
    #[arg(long, conflicts_with = "print_roles")]
    json: bool,
}

impl Migrate {
    pub(super) async fn run(self) -> CliResult {
        let config = self.options.load(Vec::new(), false)?;
        if self.print_roles {
            output::line(wiring::role_sql(&config.database)?.trim_end());
            return Ok(());
        }
        let progress = ProgressBar::new(None);
        let working = || progress.show(0, "migrating; a large database can take minutes");
        let on_step = |step: &str| {
            progress.clear();
            if !self.json {
                output::line(format!("applied {step}"));
            }
            working();
        };
        working();
        let report = wiring::migrate(&config.database, &on_step).await;
        progress.clear();
        let report = report?;
        if !self.json {
            print(&report);
        }
        let moved = match self.after_restore {
            true => wiring::move_ids_forward(&config.database).await?,
            false => Vec::new(),
        };
        if self.json {
            print_json(&report, &moved);
        } else {
            for moved in moved {
                output::line(format!("{}: ids go on after {}", moved.table, moved.after));
            }
        }
        Ok(())
    }
}

fn print(report: &MigrationReport) {
    if report.applied.is_empty() {
        output::line(format!("the schema was already current (version {})", report.version));
    } else {
        output::line(format!("the schema is at version {}", report.version));
    }
    if !report.roles.is_empty() {
        output::line(format!("roles: {}", report.roles));
    }
}

fn print_json(report: &MigrationReport, moved: &[MovedIds]) {
    let moved: Vec<_> =
        moved.iter().map(|moved| json!({ "table": moved.table, "after": moved.after })).collect();
    let done = json!({
        "applied": report.applied, "version": report.version, "roles": report.roles, "moved_ids": moved,
    });
    output::line(done.to_string());
}
