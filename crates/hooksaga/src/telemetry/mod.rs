//! Logs: structured records on stdout, written by a thread of their own.
//!
//! Text for people on a terminal, one flat JSON object per line otherwise. A reader that does not keep up
//! never holds up deliveries: what does not fit into the buffer or cannot be written is lost and counted, and the log says so. Nothing that
//! is logged holds a secret: their types do not show them.

mod json;
mod lines;

use crate::{
    config::{LogConfig, LogFormat},
    output,
};
use json::JsonLines;
pub(crate) use lines::dropped_records;
use lines::{LogLines, Writing};
use std::{fs::File, io::Write, os::fd::AsFd};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// The target of records that are shown at every log level: where the server listens, where its key is.
pub(crate) const ANNOUNCEMENT: &str = "hooksaga::announcement";

/// Keeps the log going; flushes it when dropped.
pub(crate) struct Telemetry(Writing);

impl Telemetry {
    /// Sends the program's log to stdout from now on.
    pub(crate) fn start(config: &LogConfig) -> Self {
        let (lines, writing) = LogLines::start(stdout(), |dropped, error| match error {
            Some(error) => {
                tracing::warn!(dropped, %error, "log records were lost: stdout could not be written")
            }
            None => tracing::warn!(dropped, "log records were lost: the reader of the log does not keep up"),
        });
        let layer = match config.format {
            LogFormat::Text => tracing_subscriber::fmt::layer()
                .with_writer(move || lines.clone())
                .with_ansi(output::wants_colors())
                .with_target(false)
                .boxed(),
            LogFormat::Json => {
                JsonLines::new(jiff::Timestamp::now, move |line| lines.append(line.as_bytes())).boxed()
            }
        };
        // Only a test that starts two servers in one process has a subscriber already; the first one stays.
        let _ = tracing_subscriber::registry().with(filter(config.level)).with(layer).try_init();
        Self(writing)
    }
}

/// Stdout without the buffer that the standard library has before it: what is written has left this process.
fn stdout() -> Box<dyn Write + Send> {
    match std::io::stdout().as_fd().try_clone_to_owned() {
        Ok(stdout) => Box::new(File::from(stdout)),
        Err(_) => Box::new(std::io::stdout()),
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        let dropped = self.0.end();
        if dropped > 0 {
            output::note(format!(
                "{dropped} log records were lost: stdout could not be written, or its reader did not keep up"
            ));
        }
    }
}

/// Our own records from `level` on; those of libraries only if they are warnings.
fn filter(level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("hooksaga", level)
        .with_target(ANNOUNCEMENT, level.max(LevelFilter::INFO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn announcements_are_always_shown_and_libraries_only_warn() {
        let quiet = filter(LevelFilter::ERROR);
        assert!(quiet.would_enable(ANNOUNCEMENT, &Level::INFO));
        assert!(!quiet.would_enable("hooksaga_pipeline::router", &Level::INFO));
        assert!(!quiet.would_enable("hyper", &Level::WARN));

        let verbose = filter(LevelFilter::DEBUG);
        assert!(verbose.would_enable("hooksaga_pipeline::router", &Level::DEBUG));
        assert!(verbose.would_enable("hooksaga::delivery", &Level::DEBUG));
        assert!(!verbose.would_enable("hyper", &Level::INFO));
    }
}
