//! `retention.*`: how long history is kept, and where it goes.

use super::{ConfigError, duration::show_duration, settings::Settings};
use hooksaga_saga::Retention;
use std::{path::PathBuf, time::Duration};

const SHORTEST: Duration = Retention::SHORTEST;

/// Longer times than a century are typing errors.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Clone, Debug, Default)]
pub(crate) struct RetentionConfig {
    /// How long finished events stay; `None`: for good.
    pub(crate) finished: Option<Duration>,
    /// How long dead letters stay, with what their requeue needs; `None`: for good.
    pub(crate) dead_letters: Option<Duration>,
    /// The folder that what is removed is written to first.
    pub(crate) archive: Option<PathBuf>,
}

impl RetentionConfig {
    /// How long history stays; `None`: for good.
    pub(crate) fn policy(&self) -> Option<Retention> {
        self.finished.map(|finished| Retention { finished, dead_letters: self.dead_letters })
    }

    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let finished = settings.duration_or_off("retention.finished", SHORTEST, LONGEST)?.flatten();
        let key = "retention.dead_letters";
        let dead_letters = settings.duration_or_off(key, SHORTEST, LONGEST)?.unwrap_or(finished);
        match (finished, dead_letters) {
            (Some(finished), Some(dead)) if dead < finished => {
                let finished = show_duration(finished);
                return Err(settings.complain(
                    key,
                    &format!("it must be at least as long as retention.finished ({finished})"),
                ));
            }
            (None, Some(_)) => {
                return Err(settings.complain(
                    key,
                    "nothing is removed while retention.finished is off: set that too, or remove this",
                ));
            }
            _ => {}
        }
        let archive = settings.text("retention.archive")?.map(PathBuf::from);
        if archive.as_ref().is_some_and(|folder| folder.as_os_str().is_empty()) {
            return Err(settings.complain("retention.archive", "the name of the folder is empty"));
        }
        if archive.is_some() && finished.is_none() {
            return Err(settings.complain(
                "retention.archive",
                "nothing is removed, and so archived, while retention.finished is off: set that too, or remove this",
            ));
        }
        Ok(Self { finished, dead_letters, archive })
    }
}
