//! The key that signing secrets are encrypted with: whether there is one, and whether it opens what is stored.

use super::{
    database::in_time,
    finding::{Finding, Verdict},
};
use crate::{
    config::{BackendUrl, Config},
    wiring,
};
use hooksaga_pipeline::SecretKey;
use hooksaga_store::{StoreError, StoreResult};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::time::Instant;

const CHECK: &str = "signing key";

/// Where the key is, and the key, if it is there.
struct Found {
    place: String,
    key: Option<Arc<SecretKey>>,
}

pub(super) async fn judge(config: &Config, deadline: Instant) -> Finding {
    let found = match find(config, deadline).await {
        Ok(found) => found,
        Err(finding) => return finding,
    };
    match in_time(deadline, wiring::sealing_keys(&config.database)).await {
        Ok(sealed_with) => judge_found(&found, &sealed_with),
        Err(error) => {
            Finding::warning(CHECK, format!("it could not be tried: {error}"), "see the other checks")
        }
    }
}

async fn find(config: &Config, deadline: Instant) -> Result<Found, Finding> {
    if let (BackendUrl::Sqlite(database), None) = (&config.database.backend, &config.secrets.key) {
        let file = database.with_file_name("secret.key");
        let content = in_time(deadline, read(file.clone())).await.map_err(|_| {
            let found = format!("{} could not be read in time", file.display());
            Finding::problem(CHECK, found, "check the disk that it is on")
        })?;
        return find_in_file(&file, content, config.secrets.old_key.as_ref());
    }
    let key = wiring::secret_key(config, &[])
        .map_err(|error| Finding::from_line(CHECK, Verdict::Problem, &error.to_string()))?;
    Ok(Found { place: "secrets.key".to_owned(), key: Some(key) })
}

/// What a file holds, or why it cannot be read. A disk that hangs holds up nobody but who waits for this.
async fn read(file: PathBuf) -> StoreResult<std::io::Result<String>> {
    tokio::task::spawn_blocking(move || std::fs::read_to_string(file))
        .await
        .map_err(|error| StoreError::Unavailable(format!("reading was interrupted ({error})")))
}

/// The key in the file beside an embedded database. Unlike a start this does not make one.
fn find_in_file(
    file: &Path,
    content: std::io::Result<String>,
    old: Option<&Arc<SecretKey>>,
) -> Result<Found, Finding> {
    let place = file.display().to_string();
    let key = match content {
        Ok(text) => text.trim().parse::<SecretKey>().map_err(|_| {
            Finding::problem(CHECK, format!("{place} is not a key"), "restore it from a backup")
        })?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found { place, key: None }),
        Err(error) => {
            let found = format!("{place} cannot be read ({error})");
            return Err(Finding::problem(CHECK, found, "let this user read it, as the server's must"));
        }
    };
    let key = match old {
        Some(old) => key.with_old(Arc::clone(old)),
        None => key,
    };
    Ok(Found { place, key: Some(Arc::new(key)) })
}

/// `sealed_with`: the ids of the keys that the stored secrets are encrypted with.
fn judge_found(Found { place, key }: &Found, sealed_with: &[String]) -> Finding {
    match key {
        Some(key) if sealed_with.iter().all(|id| key.opens(id)) => {
            Finding::ok(CHECK, format!("{place} opens every stored signing secret"))
        }
        Some(_) => Finding::problem(
            CHECK,
            format!("{place} does not open the stored signing secrets: they are encrypted with another key"),
            "set the key that they were created with, as secrets.old_key if there is a new one",
        ),
        None if sealed_with.is_empty() => Finding::ok(
            CHECK,
            format!(
                "{place} is not there yet, and nothing is encrypted: the first `hooksaga serve` makes it"
            ),
        ),
        None => Finding::problem(
            CHECK,
            format!("{place} is missing, and stored signing secrets are encrypted with it"),
            "restore it from a backup, or set secrets.key to its content",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(content: std::io::Result<String>, sealed_with: &[&str]) -> Finding {
        let sealed_with: Vec<String> = sealed_with.iter().map(|&id| id.to_owned()).collect();
        match find_in_file(Path::new("data/secret.key"), content, None) {
            Ok(found) => judge_found(&found, &sealed_with),
            Err(finding) => finding,
        }
    }

    #[test]
    fn a_missing_key_is_a_problem_only_where_something_is_encrypted() {
        let missing = || Err(ErrorKind::NotFound.into());
        assert_eq!(judge(missing(), &[]).verdict, Verdict::Ok);
        assert_eq!(judge(missing(), &["one"]).verdict, Verdict::Problem);
        assert_eq!(judge(Err(ErrorKind::PermissionDenied.into()), &[]).verdict, Verdict::Problem);
    }

    #[test]
    fn a_key_has_to_open_what_is_stored() {
        let key = || Ok(format!("{}=\n", "A".repeat(43)));
        assert_eq!(judge(key(), &[]).verdict, Verdict::Ok);
        let another = judge(key(), &["one"]);
        assert!(another.verdict == Verdict::Problem && another.found.contains("another key"), "{another:?}");
        let damaged = judge(Ok("hunter2".to_owned()), &[]);
        assert!(
            damaged.verdict == Verdict::Problem && !format!("{damaged:?}").contains("hunter2"),
            "{damaged:?}"
        );
    }
}
