//! Where the database is, and who may serve it: checks of the file and its folder before anything is
//! touched, and the lock that keeps a second server away.

use hooksaga_store::{StoreError, StoreResult};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

/// What every SQLite database file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// A place where a database is or can be.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    /// Absolute and free of links, so that every way to name the file leads to the same lock.
    path: PathBuf,
    /// As the user wrote it, for messages.
    shown: String,
}

/// Held as long as this process serves the database. The operating system releases it when the process
/// ends, however it ends.
#[derive(Debug)]
pub(crate) struct ServerLock {
    _file: File,
}

impl Location {
    /// Checks that the path names a usable database, or a place for a new one, whose folder is then
    /// created. An existing file is only examined.
    pub(crate) fn check(path: &Path) -> StoreResult<Self> {
        let shown = path.display().to_string();
        let Some(name) = path.file_name() else {
            return Err(setup(format!(
                "{shown:?} names no file: set database.url to sqlite://FOLDER/FILE.db"
            )));
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let exists = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => {
                check_file(path, &shown, &metadata)?;
                true
            }
            Ok(_) => {
                return Err(setup(format!(
                    "{shown} is not a file: set database.url to a database file, such as {shown}/hooksaga.db"
                )));
            }
            // Its lock would be another one as soon as the file is there.
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) =>
            {
                return Err(setup(format!(
                    "{shown} is a link that leads to no file: create an empty file where it leads, or set \
                     database.url to the place itself"
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(folder).map_err(|error| {
                    setup(format!(
                        "the folder {} for the database cannot be created ({error}): create it, or set \
                         database.url to a place that this user may write",
                        folder.display()
                    ))
                })?;
                false
            }
            Err(error) => {
                return Err(setup(format!(
                    "the database file {shown} cannot be reached ({error}): check the path and its permissions, \
                     or set database.url to another place"
                )));
            }
        };
        let writable = fs::metadata(folder).is_ok_and(|metadata| !metadata.permissions().readonly());
        if !writable {
            return Err(read_only_folder(folder, "its permissions say so"));
        }
        let path =
            if exists { fs::canonicalize(path) } else { fs::canonicalize(folder).map(|it| it.join(name)) }
                .map_err(|error| {
                    setup(format!(
                        "the path {shown} cannot be resolved ({error}): set database.url to another place"
                    ))
                })?;
        Ok(Self { path, shown })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is anything in the file.
    pub(crate) fn has_content(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() > 0)
    }

    /// Becomes the one server of this database.
    ///
    /// # Errors
    /// If there is one already: [`StoreError::Setup`], and nothing was changed.
    pub(crate) fn lock(&self) -> StoreResult<ServerLock> {
        self.try_lock()?.ok_or_else(|| {
            setup(format!(
                "the database {} is held by another hooksaga server: stop that one first, or set database.url \
                 to another file (an embedded database has one server process)",
                self.shown
            ))
        })
    }

    /// The same; `None` if somebody else holds it.
    pub(crate) fn try_lock(&self) -> StoreResult<Option<ServerLock>> {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let file = private(OpenOptions::new().write(true).create(true).truncate(false))
            .open(&path)
            .map_err(|error| read_only_folder(path.parent().unwrap_or(&path), &error.to_string()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(ServerLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(setup(format!(
                "the file {} cannot be locked ({error}): put the database on a local file system",
                path.display()
            ))),
        }
    }

    /// Makes an empty file for a new database, for this user only: it will hold payloads.
    pub(crate) fn create_file(&self) -> StoreResult<()> {
        private(OpenOptions::new().write(true).create(true).truncate(false)).open(&self.path).map(drop).map_err(
            |error| {
                setup(format!(
                    "the database file {} cannot be created ({error}): set database.url to a place that this user \
                     may write",
                    self.shown
                ))
            },
        )
    }

    /// For a database that belongs to another program.
    pub(crate) fn foreign(&self) -> StoreError {
        setup(format!(
            "{} is another program's SQLite database: set database.url to a file of its own for hooksaga",
            self.shown
        ))
    }
}

fn check_file(path: &Path, shown: &str, metadata: &fs::Metadata) -> StoreResult<()> {
    let read_only = |why: &str| {
        setup(format!(
            "the database file {shown} is read-only ({why}): make it writable for this user, or set database.url \
             to another file"
        ))
    };
    if metadata.permissions().readonly() {
        return Err(read_only("its permissions say so"));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| read_only(&error.to_string()))?;
    let mut head = Vec::with_capacity(MAGIC.len());
    file.take(MAGIC.len() as u64).read_to_end(&mut head).map_err(|error| {
        setup(format!("the database file {shown} cannot be read ({error}): check the disk"))
    })?;
    if !head.is_empty() && head != MAGIC {
        return Err(setup(format!(
            "{shown} is not a SQLite database: set database.url to another file; this one was left as it is"
        )));
    }
    Ok(())
}

fn read_only_folder(folder: &Path, why: &str) -> StoreError {
    setup(format!(
        "the folder {} of the database is read-only ({why}): make it writable for this user, or set database.url \
         to another place",
        folder.display()
    ))
}

fn setup(text: String) -> StoreError {
    StoreError::Setup(text)
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
