//! The two key files beside an embedded database: `secret.key`, which signing secrets are encrypted with,
//! and `root.key`, the first API key.
//!
//! Both are readable by their owner only and appear complete or not at all. Only the process that holds the
//! database's server lock creates them, so no two create one at the same time.

use crate::error::{CliError, CliResult};
use hooksaga_pipeline::{SecretKey, random_hex};
use hooksaga_store::{KeyStore, NewApiKey, Scopes};
use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// The path of a key file beside this database file.
fn beside(database: &Path, name: &str) -> PathBuf {
    database.with_file_name(name)
}

/// The key in `secret.key`; made now if there is none and no secret was ever encrypted.
///
/// `sealed_with`: the ids of the keys that stored secrets are encrypted with. If there are any, a new key
/// could not open them, so a missing file is an error then.
pub(crate) fn secret_key(database: &Path, sealed_with: &[String]) -> CliResult<SecretKey> {
    let path = beside(database, "secret.key");
    if let Some(text) = read(&path)? {
        return text.parse().map_err(|_| {
            CliError::new(format!(
                "{} is not a key (32 bytes in base64): restore it from a backup",
                path.display()
            ))
        });
    }
    if !sealed_with.is_empty() {
        return Err(CliError::new(format!(
            "{} is missing, and the stored signing secrets are encrypted with it: \
             restore it from a backup, or set secrets.key to its content",
            path.display()
        )));
    }
    let key = SecretKey::generate();
    create(&path, &key.to_base64())?;
    Ok(key)
}

/// Makes the first API key, with every scope, if there is none yet; returns the file it is in if it did.
///
/// The file comes first: after a crash in between, the next start stores the key that is in the file.
pub(crate) async fn root_key(database: &Path, keys: &dyn KeyStore) -> CliResult<Option<PathBuf>> {
    if !keys.list().await?.is_empty() {
        return Ok(None);
    }
    let path = beside(database, "root.key");
    let key = match read(&path)? {
        Some(key) if key.starts_with("hsk_") => key,
        Some(_) => {
            return Err(CliError::new(format!(
                "{} holds no API key: remove it, and the next start makes a new one",
                path.display()
            )));
        }
        None => {
            let key = hooksaga_http::generate_key();
            create(&path, &key)?;
            key
        }
    };
    let sha256 = hooksaga_http::hash_key(&key);
    let (tenant, expires_in) = (None, None);
    let root = NewApiKey { name: "root".to_owned(), scopes: Scopes::all(), sha256, tenant, expires_in };
    keys.create(&root).await?;
    Ok(Some(path))
}

fn read(path: &Path) -> CliResult<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::new(format!("cannot read {}: {error}", path.display()))),
    }
}

/// Writes a new file that only its owner can read, whole or not at all, and durably.
fn create(path: &Path, text: &str) -> CliResult {
    let temporary = path.with_extension(format!("{}.tmp", random_hex(8)));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    })();
    written.map_err(|error| {
        // It may not be there; then there is nothing to tidy up.
        let _ = fs::remove_file(&temporary);
        CliError::new(format!("cannot create {}: {error}; check the folder's rights", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("hooksaga-keyfiles-{}", random_hex(8)));
            fs::create_dir(&path).expect("a scratch folder");
            Self(path)
        }

        fn database(&self) -> PathBuf {
            self.0.join("hooksaga.db")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_secret_key_is_made_once_for_its_owner_only() {
        let folder = Folder::new();
        let made = secret_key(&folder.database(), &[]).expect("made");
        let again = secret_key(&folder.database(), &[made.key_id().to_owned()]).expect("read");
        assert_eq!(made.key_id(), again.key_id());
        let names: Vec<_> =
            fs::read_dir(&folder.0).expect("lists").flatten().map(|f| f.file_name()).collect();
        assert_eq!(names, ["secret.key"], "nothing is left over");
        let mode = fs::metadata(folder.0.join("secret.key")).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_lost_secret_key_is_never_replaced_while_secrets_need_it() {
        let folder = Folder::new();
        let error = secret_key(&folder.database(), &["abc".to_owned()]).expect_err("lost").to_string();
        assert!(error.contains("secret.key is missing") && error.contains("secrets.key"), "{error}");
        assert!(fs::read_dir(&folder.0).expect("lists").next().is_none(), "nothing was created");
    }

    #[test]
    fn a_damaged_secret_key_is_named_and_not_shown() {
        let folder = Folder::new();
        fs::write(folder.0.join("secret.key"), "hunter2").expect("writes");
        let error = secret_key(&folder.database(), &[]).expect_err("damaged").to_string();
        assert!(error.contains("secret.key") && !error.contains("hunter2"), "{error}");
    }
}
