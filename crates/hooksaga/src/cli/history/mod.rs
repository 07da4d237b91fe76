//! `hooksaga history`: reads what the janitor has archived, without a server and without a database.

mod archive;
mod record;
mod show;

use super::remote::{Period, event_id, event_type, tenant, visible};
use crate::{
    error::{CliError, CliResult},
    output::{self, ProgressBar},
};
use archive::Unreadable;
use clap::{Args, Subcommand};
use hooksaga_saga::{EventType, Tenant};
use jiff::Timestamp;
use record::{Head, RecordedEvent};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
Examples:
  hooksaga history list archive/2026-01-*.ndjson.zst
  hooksaga history search --external-id order-17 archive/*.zst
  hooksaga history search --tenant acme --type order.created --since 2026-01-01T00:00:00Z --json archive/*.zst

The files are those of retention.archive: what was removed from the database, an event per line. They are read one after
the other; memory does not grow with them. After a crash of the server an event may be there twice.";

/// Read archived history: what retention has removed from the database
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct HistoryCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the events of these files, a line each
    #[command(after_help = "Example:\n  hooksaga history list archive/*.ndjson.zst")]
    List {
        /// Print JSON, one object per line, without payloads
        #[arg(long)]
        json: bool,
        /// Archive files, as `retention.archive` has them
        #[arg(required = true, value_name = "FILES")]
        files: Vec<PathBuf>,
    },
    /// Show events with their payloads, deliveries and attempts
    #[command(after_help = "Example:\n  hooksaga history search --id 17 archive/*.ndjson.zst")]
    Search(Search),
}

#[derive(Args)]
struct Search {
    #[command(flatten)]
    filter: FilterArgs,
    /// Print each event as its line in the file
    #[arg(long)]
    json: bool,
    /// Archive files, as `retention.archive` has them
    #[arg(required = true, value_name = "FILES")]
    files: Vec<PathBuf>,
}

#[derive(Args)]
struct FilterArgs {
    /// Only this event; evt_17, as receivers see it, works too
    #[arg(long, value_name = "ID", value_parser = event_id)]
    id: Option<i64>,
    /// Only the one with this external_id
    #[arg(long, value_name = "ID", value_parser = visible)]
    external_id: Option<String>,
    /// Only this tenant's
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,
    /// Only those of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = event_type)]
    event_type: Option<EventType>,
    #[command(flatten)]
    period: Period,
}

impl FilterArgs {
    fn matches(&self, event: &RecordedEvent) -> bool {
        // What is no time was refused on the command line; in a file it is in no period.
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let created = time(&event.created_at);
        let bound = |text: &Option<String>| text.as_deref().and_then(time);
        self.id.is_none_or(|id| id == event.id)
            && (self.external_id.is_none() || self.external_id == event.external_id)
            && self.tenant.as_ref().is_none_or(|tenant| tenant.as_str() == event.tenant)
            && self.event_type.as_ref().is_none_or(|name| name.as_str() == event.event_type)
            && bound(&self.period.since).is_none_or(|since| created.is_some_and(|at| at >= since))
            && bound(&self.period.until).is_none_or(|until| created.is_some_and(|at| at < until))
    }
}

impl HistoryCommand {
    pub(super) async fn run(self) -> CliResult {
        // Files are read where nobody waits.
        let work = move || match self.command {
            Command::List { json, files } => list(json, &files),
            Command::Search(search) => search.run(),
        };
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(CliError::new(format!("reading the files was interrupted: {error}"))))
    }
}

fn list(json: bool, files: &[PathBuf]) -> CliResult {
    let mut rows = show::Rows::new(|line: &str| output::try_line(line));
    let found =
        read_all(files, |_, _, line, head| if json { show::head_json(head) } else { rows.add(line, head) });
    rows.end();
    found.end("the files hold no events")
}

impl Search {
    fn run(self) -> CliResult {
        let mut shown = 0_u64;
        let found = read_all(&self.files, |file, number, line, head| {
            if !self.filter.matches(head) {
                return Ok(true);
            }
            let goes_on = if self.json {
                show::json(line)
            } else {
                let place = format!("{}, line {number}", file.display());
                show::event(shown > 0, &place, line, head)?
            };
            shown += 1;
            Ok(goes_on)
        });
        if shown == 0 && found.events > 0 {
            output::note(format!("none of {} matches", output::count(found.events, "archived event")));
        }
        found.end("the files hold no events")
    }
}

/// The result of reading all the files.
#[derive(Default)]
struct Found {
    events: u64,
    /// What is wrong with the last file that cannot be opened or read: the line that the program ends with.
    unread: Option<String>,
    /// Something is in the files that cannot be read.
    damaged: bool,
}

impl Found {
    fn end(self, empty: &str) -> CliResult {
        if self.damaged {
            if let Some(unread) = self.unread {
                output::note(unread);
            }
            return Err(CliError::new(
                "some of it could not be read (see above): restore these files from a backup",
            ));
        }
        if let Some(unread) = self.unread {
            return Err(CliError::new(format!(
                "{unread}; correct the name or the file's rights, and try again"
            )));
        }
        if self.events == 0 {
            output::note(empty);
        }
        Ok(())
    }
}

type Each<'a> = dyn FnMut(&PathBuf, u64, &str, &RecordedEvent) -> CliResult<bool> + 'a;

/// Calls `each` with every event of the files, with its place and its line, until it returns false. An error of `each` is
/// one record that cannot be read: it is counted, and the next one is read. What is missing in a file, and which file
/// cannot be read at all, is reported on stderr, and the next file is read.
fn read_all(
    files: &[PathBuf],
    mut each: impl FnMut(&PathBuf, u64, &str, &RecordedEvent) -> CliResult<bool>,
) -> Found {
    let each: &mut Each<'_> = &mut each;
    let mut found = Found::default();
    let mut progress = Progress::of(files.len());
    for (place, file) in files.iter().enumerate() {
        let shown = file.display();
        let mut unreadable = 0_u64;
        let reading = archive::read(file, |number, line| {
            progress.show(place, file, number);
            let head = serde_json::from_str::<Head>(line).ok();
            match head.and_then(|head| each(file, number, line, &head.event).ok()) {
                Some(goes_on) => {
                    found.events += 1;
                    goes_on
                }
                None => {
                    unreadable += 1;
                    true
                }
            }
        });
        progress.clear();
        let reading = match reading {
            Ok(reading) => reading,
            Err(error) => {
                let unread = format!("cannot read {shown}: {error}");
                if let Some(earlier) = found.unread.replace(unread) {
                    output::note(earlier);
                }
                continue;
            }
        };
        for gap in &reading.gaps {
            output::note(format!("{shown}: {}", gap.text()));
        }
        if reading.more_gaps > 0 {
            output::note(format!("{shown}: and {} more like these", output::count(reading.more_gaps, "gap")));
        }
        found.damaged |= reading.damaged;
        if unreadable > 0 {
            let lines = output::count(unreadable, "line");
            output::note(format!(
                "{shown}: {lines} in it are no archived events: is it a file of retention.archive?"
            ));
            found.damaged = true;
        }
        if reading.stopped {
            break;
        }
    }
    found
}

/// Shows how far the reading of files has come, now and then, and makes room for what is printed between.
struct Progress {
    bar: ProgressBar,
    at: Instant,
    visible: bool,
}

impl Progress {
    const EVERY: Duration = Duration::from_millis(250);

    fn of(files: usize) -> Self {
        let total = Some(files as u64).filter(|files| *files > 1);
        Self { bar: ProgressBar::new(total), at: Instant::now(), visible: false }
    }

    /// Before a line of this file is looked at.
    fn show(&mut self, file: usize, name: &Path, line: u64) {
        self.clear();
        if self.at.elapsed() >= Self::EVERY {
            (self.at, self.visible) = (Instant::now(), true);
            self.bar
                .show(file as u64, &format!("{}, line {line}", output::clean_line(&name.to_string_lossy())));
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.visible) {
            self.bar.clear();
        }
    }
}

impl Unreadable {
    fn text(&self) -> String {
        match self {
            Self::Torn { after_line } => format!(
                "it breaks off after line {after_line}: if this is a copy, copy it again; if its writer was killed, nothing is \
                 lost, since what was being written stayed in the database and was archived later"
            ),
            Self::Damaged { after_line, why } => format!("damaged after line {after_line}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_record_that_cannot_be_read_costs_itself_and_the_end_says_so() {
        let event = |id: u32| {
            format!(
                r#"{{"event": {{"id": {id}, "tenant": "t", "event_type": "a", "created_at": "2026-01-31T12:00:00Z"}}}}"#
            )
        };
        let text = [event(1), "no JSON".to_owned(), event(2), event(3)].join("\n") + "\n";
        let path =
            std::env::temp_dir().join(format!("hooksaga-history-{}", hooksaga_pipeline::random_hex(8)));
        std::fs::write(&path, text).expect("writes");
        let mut seen = Vec::new();
        let found = read_all(std::slice::from_ref(&path), |_, _, _, head| {
            seen.push(head.id);
            if head.id == 2 { Err(CliError::new("not as expected")) } else { Ok(true) }
        });
        std::fs::remove_file(&path).expect("removes");
        assert_eq!((seen, found.events, found.damaged), (vec![1, 2, 3], 2, true));
        assert!(found.end("").is_err());
    }

    #[test]
    fn the_last_line_names_a_file_that_cannot_be_read() {
        let folder =
            std::env::temp_dir().join(format!("hooksaga-history-{}", hooksaga_pipeline::random_hex(8)));
        let found = read_all(&[folder.join("first"), folder.join("last")], |_, _, _, _| Ok(true));
        let error = found.end("").expect_err("neither is there").to_string();
        let named = error.starts_with(&format!("cannot read {}: ", folder.join("last").display()));
        assert!(named && error.contains("try again") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_torn_end_says_what_to_do_with_a_copy() {
        let text = Unreadable::Torn { after_line: 7 }.text();
        for part in
            ["after line 7", "if this is a copy, copy it again", "if its writer was killed, nothing is lost"]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        filter: FilterArgs,
    }

    #[test]
    fn every_filter_counts_and_periods_are_half_open() {
        let event = RecordedEvent {
            id: 17,
            tenant: "acme".to_owned(),
            event_type: "order.created".to_owned(),
            external_id: Some("order-17".to_owned()),
            correlation_id: None,
            created_at: "2026-01-31T12:00:00.000000Z".to_owned(),
        };
        let matches = |arguments: &[&str]| {
            let arguments = [&["history"], arguments].concat();
            Wrapper::try_parse_from(arguments).expect("understood").filter.matches(&event)
        };
        for yes in [
            &[][..],
            &["--id", "evt_17"],
            &["--external-id", "order-17", "--tenant", "acme"],
            &["--type", "order.created"],
            &["--since", "2026-01-31T12:00:00Z", "--until", "2026-01-31T13:00:01+01:00"],
        ] {
            assert!(matches(yes), "{yes:?}");
        }
        for no in [
            &["--id", "18"][..],
            &["--external-id", "order-1"],
            &["--tenant", "acme2"],
            &["--type", "order"],
            &["--until", "2026-01-31T12:00:00Z"],
            &["--since", "2026-01-31T12:00:01Z"],
            &["--id", "17", "--tenant", "other"],
        ] {
            assert!(!matches(no), "{no:?}");
        }
    }
}
