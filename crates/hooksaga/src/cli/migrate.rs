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
    /// assigned again, and repair what lists are read from. Stop every hooksaga process first
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
        let restored = match self.after_restore {
            true => Some(Restored {
                repaired: wiring::repair_lists(&config.database).await?,
                moved: wiring::move_ids_forward(&config.database).await?,
            }),
            false => None,
        };
        match (self.json, restored) {
            (true, restored) => print_json(&report, &restored.unwrap_or_default()),
            (false, Some(restored)) => print_restored(&restored),
            (false, None) => {}
        }
        Ok(())
    }
}

/// What `--after-restore` did.
#[derive(Default)]
struct Restored {
    /// Rows of the lists of dead letters.
    repaired: u64,
    moved: Vec<MovedIds>,
}

fn print_restored(restored: &Restored) {
    match restored.repaired {
        0 => output::line("lists of dead letters: complete"),
        rows => output::line(format!("lists of dead letters: {} repaired", output::count(rows, "row"))),
    }
    for moved in &restored.moved {
        output::line(format!("{}: ids go on after {}", moved.table, moved.after));
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

fn print_json(report: &MigrationReport, restored: &Restored) {
    let moved = restored.moved.iter();
    let moved: Vec<_> = moved.map(|moved| json!({ "table": moved.table, "after": moved.after })).collect();
    let done = json!({
        "applied": report.applied, "version": report.version, "roles": report.roles,
        "repaired_rows": restored.repaired, "moved_ids": moved,
    });
    output::line(done.to_string());
}
