//! The folder of an embedded database: it holds payloads and keys, so it is its owner's alone.

use crate::error::{CliError, CliResult};
use std::{
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// What others must not have: any right at all.
const OTHERS: u32 = 0o077;

/// The files that hooksaga makes there.
const BESIDE: [&str; 2] = ["root.key", "secret.key"];

/// Creates the folder for this database file, for its owner only, unless it is there.
pub(crate) fn create(database: &Path) -> CliResult {
    let Some(folder) = named_folder(database) else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        CliError::new(format!(
            "the folder {} for the database cannot be created ({error}): create it, or set database.url to a place \
             that this user may write",
            folder.display()
        ))
    })
}

/// One line about what others can reach, if they can.
pub(crate) fn complaint(database: &Path) -> Option<String> {
    let open: Vec<String> = named_folder(database)
        .map(Path::to_path_buf)
        .into_iter()
        .chain(files(database))
        .filter(|path| fs::metadata(path).is_ok_and(|data| data.permissions().mode() & OTHERS != 0))
        .map(|path| path.display().to_string())
        .collect();
    let shown = open.join(", ");
    let one_or_more = open.first()?;
    Some(format!(
        "other users of this machine may have access to {shown}: run `chmod go= {}`",
        if open.len() == 1 { one_or_more.clone() } else { open.join(" ") }
    ))
}

/// The database's folder, if the path names one: the working folder is not ours.
fn named_folder(database: &Path) -> Option<&Path> {
    database.parent().filter(|folder| !folder.as_os_str().is_empty() && *folder != Path::new("."))
}

fn files(database: &Path) -> impl Iterator<Item = PathBuf> {
    let name = database.file_name().unwrap_or_default().to_os_string();
    let own = ["", "-wal", "-shm"].into_iter().map(move |suffix| {
        let mut name = name.clone();
        name.push(suffix);
        name
    });
    own.chain(BESIDE.into_iter().map(Into::into)).map(|name| database.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_pipeline::random_hex;

    #[test]
    fn a_new_folder_is_private_and_what_is_open_is_named_in_one_line() {
        let scratch = std::env::temp_dir().join(format!("hooksaga-folder-{}", random_hex(8)));
        let database = scratch.join("data/hooksaga.db");
        create(&database).expect("created");
        create(&database).expect("there already");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&scratch.join("data")), 0o700);
        assert_eq!(complaint(&database), None);

        fs::write(scratch.join("data/root.key"), "x").expect("writes");
        fs::set_permissions(scratch.join("data/root.key"), fs::Permissions::from_mode(0o640))
            .expect("changes");
        let line = complaint(&database).expect("root.key is open");
        assert!(line.contains("root.key") && line.contains("chmod") && !line.contains('\n'), "{line}");
        assert!(!line.contains("hooksaga.db"), "{line}");
        fs::remove_dir_all(&scratch).expect("tidies up");
    }
}
