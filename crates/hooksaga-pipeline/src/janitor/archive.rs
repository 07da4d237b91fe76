//! The archive: files of what was removed, a line of JSON per event, compressed with zstd.
//!
//! Each process writes its own files, one per day (UTC): `2026-01-31.HOST-PID.ndjson.zst`. No other process continues a
//! file, not even one with the same host name and process id: what a crash left half-written stays at its end. Each
//! batch is a separate frame with a checksum; readers see concatenated frames as one stream.
//!
//! Promises: when [`Archive::commit`] has returned, its lines and the file's name are on disk. Lines that were appended but
//! not committed are removed before anything else is written. A file that somebody moves or deletes meanwhile is not
//! written to any more: a commit that finds its name gone, or leading elsewhere, copies its own part to a new file first.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

/// A folder of history.
#[derive(Clone, Debug)]
pub struct Archive(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    /// Of this process.
    name: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of what is appended.
    day: String,
    /// Made with the first text of a day.
    open: Option<OpenFile>,
    /// Of the file, among those of this process.
    number: u64,
}

/// The file of a day.
#[derive(Debug)]
struct OpenFile {
    file: File,
    path: PathBuf,
    /// Length of the committed part, in bytes.
    committed: u64,
    len: u64,
}

impl Archive {
    const MODE: u32 = 0o640;
    const FOLDER_MODE: u32 = 0o750;
    /// Files of a process with one name on one day: there is one more for each restart under the same number.
    const MOST_FILES: u32 = 10_000;
    /// A good deal smaller than at the quickest level, and still as quick as it has to be.
    const LEVEL: i32 = 3;

    /// Makes the folder, if it is not there, and sees whether it can be written to.
    ///
    /// # Errors
    /// If it cannot.
    pub fn open(folder: &Path) -> io::Result<Self> {
        make_folder(folder)?;
        let name = format!("{}-{}", host(), std::process::id());
        let probe = folder.join(format!(".{name}.probe"));
        fs::write(&probe, b"")?;
        fs::remove_file(&probe)?;
        Ok(Self(Arc::new(Inner { folder: folder.to_owned(), name, state: Mutex::default() })))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Takes back what was not committed, and moves on to the file of today. Returns the number of the file: as long as that
    /// is the same, the file is there, with all that was committed to it.
    #[expect(clippy::disallowed_methods, reason = "the name of a file decides nothing")]
    pub(super) async fn begin(&self) -> io::Result<u64> {
        let day = day(SystemTime::now());
        self.blocking(move |inner| inner.begin(&day)).await
    }

    /// Appends text; it is durable once `commit` returns.
    pub(super) async fn append(&self, text: Vec<u8>) -> io::Result<()> {
        self.blocking(move |inner| inner.append(&text)).await
    }

    /// Makes what was appended durable. Returns the number of the file that it is in.
    pub(super) async fn commit(&self) -> io::Result<u64> {
        self.blocking(Inner::commit).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.unwrap_or_else(|_| Err(io::Error::other("writing was interrupted")))
    }
}

impl Inner {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, day: &str) -> io::Result<u64> {
        let mut state = self.state();
        // One that cannot be cut back is left as it is, with half a frame or line at its end.
        let take_back = |open: &mut OpenFile| Ok::<_, io::Error>(open.is_in_place()? && open.take_back()?);
        let is_usable =
            state.day == day && state.open.as_mut().is_some_and(|open| take_back(open).unwrap_or(false));
        if !is_usable {
            *state = State { day: day.to_owned(), open: None, number: state.number + 1 };
        }
        Ok(state.number)
    }

    /// A new file, under a name that nobody has taken.
    fn create(&self, day: &str) -> io::Result<OpenFile> {
        for n in 1..=Archive::MOST_FILES {
            let more = if n == 1 { String::new() } else { format!("-{n}") };
            let path = self.folder.join(format!("{day}.{}{more}.ndjson.zst", self.name));
            match OpenOptions::new().read(true).write(true).create_new(true).mode(Archive::MODE).open(&path) {
                Ok(file) => {
                    // Whatever the umask is.
                    file.set_permissions(Permissions::from_mode(Archive::MODE))?;
                    // A file that is on disk is of no use without its name.
                    File::open(&self.folder)?.sync_all()?;
                    return Ok(OpenFile { file, path, committed: 0, len: 0 });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("there are too many files of this day"))
    }

    fn append(&self, text: &[u8]) -> io::Result<()> {
        let mut compressor = zstd::bulk::Compressor::new(Archive::LEVEL)?;
        // Damage is found by every reader, also where the text can still be unpacked.
        compressor.include_checksum(true)?;
        let frame = compressor.compress(text)?;
        let mut state = self.state();
        let State { day, open, .. } = &mut *state;
        let open = match open {
            Some(open) => open,
            None => open.insert(self.create(day)?),
        };
        open.file.write_all(&frame)?;
        open.len += frame.len() as u64;
        Ok(())
    }

    fn commit(&self) -> io::Result<u64> {
        let mut state = self.state();
        let State { day, open, number } = &mut *state;
        let Some(open) = open else { return Ok(*number) };
        open.file.sync_all()?;
        if !open.is_in_place()? {
            // Checked once more: if somebody moves this one away too, that is an error.
            let mut new = self.create(day)?;
            open.copy_rest_to(&mut new)?;
            new.file.sync_all()?;
            *open = new;
            *number += 1;
            if !open.is_in_place()? {
                return Err(io::Error::other("the file is moved or deleted while it is written"));
            }
        }
        open.committed = open.len;
        Ok(*number)
    }
}

impl OpenFile {
    /// Whether the name still leads to this file, and nobody has cut it.
    fn is_in_place(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (own.dev(), own.ino()) && own.len() >= self.len),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Truncates the file to the committed length. Always returns true, so that conditions can be chained.
    fn take_back(&mut self) -> io::Result<bool> {
        self.file.set_len(self.committed)?;
        self.file.seek(SeekFrom::Start(self.committed))?;
        self.len = self.committed;
        Ok(true)
    }

    /// Copies what was not committed.
    fn copy_rest_to(&mut self, new: &mut Self) -> io::Result<()> {
        let rest = self.len - self.committed;
        self.file.seek(SeekFrom::Start(self.committed))?;
        new.len = io::copy(&mut (&self.file).take(rest), &mut new.file)?;
        if new.len < rest {
            return Err(io::Error::other("the file was cut while it was written"));
        }
        Ok(())
    }
}

/// Makes a folder and those above it that are missing. Their names are on disk then.
fn make_folder(folder: &Path) -> io::Result<()> {
    let is_missing = |place: &&Path| !place.as_os_str().is_empty() && !place.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    fs::DirBuilder::new().recursive(true).mode(Archive::FOLDER_MODE).create(folder)?;
    for made in missing {
        let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// The day of a time, in UTC.
fn day(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let epoch = jiff::civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    epoch.saturating_add(jiff::SignedDuration::from_secs(seconds)).date().to_string()
}

/// The host's name, as it can stand in a file's name.
fn host() -> String {
    let name = rustix::system::uname();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let name: String = name.nodename().to_string_lossy().chars().map(plain).take(64).collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_testkit::scratch::ScratchDir;

    /// The files of a folder, each as the text that it holds.
    fn texts(folder: &Path) -> Vec<(String, String)> {
        let mut texts = Vec::new();
        for entry in fs::read_dir(folder).expect("there") {
            let path = entry.expect("readable").path();
            let text = zstd::decode_all(File::open(&path).expect("readable")).expect("zstd");
            let name = path.file_name().expect("named").to_string_lossy().into_owned();
            texts.push((name, String::from_utf8(text).expect("UTF-8")));
        }
        texts.sort();
        texts
    }

    #[test]
    fn a_file_per_day_grows_and_what_was_not_committed_is_taken_back() {
        let folder = ScratchDir::new("archive");
        let path = folder.path().join("of/history");
        let archive = Archive::open(&path).expect("usable");
        let inner = &archive.0;
        inner.begin("2026-01-31").expect("begun");
        inner.append(b"one\n").expect("appended");
        inner.append(b"two\n").expect("appended");
        inner.commit().expect("committed");
        inner.append(b"half a li").expect("appended");
        inner.begin("2026-01-31").expect("begun");
        inner.append(b"three\n").expect("appended");
        inner.commit().expect("committed");
        inner.begin("2026-02-01").expect("begun");
        inner.append(b"four\n").expect("appended");
        inner.commit().expect("committed");

        let name = format!("{}-{}", host(), std::process::id());
        let files = texts(&path);
        let expected = [("2026-01-31", "one\ntwo\nthree\n"), ("2026-02-01", "four\n")];
        assert_eq!(files, expected.map(|(day, text)| (format!("{day}.{name}.ndjson.zst"), text.to_owned())));
        for (file, _) in files {
            let mode = fs::metadata(path.join(file)).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
        }

        // A process with the same name and id does not reuse another's file.
        let again = Archive::open(&path).expect("usable");
        again.0.begin("2026-02-01").expect("begun");
        again.0.append(b"five\n").expect("appended");
        again.0.commit().expect("committed");
        assert_eq!(texts(&path)[1], (format!("2026-02-01.{name}-2.ndjson.zst"), "five\n".to_owned()));
    }

    #[test]
    fn a_file_that_is_moved_deleted_or_cut_is_left_for_a_new_one() {
        let folder = ScratchDir::new("archive");
        let archive = Archive::open(folder.path()).expect("usable");
        let inner = &archive.0;
        let name = |more: &str| format!("2026-01-31.{}-{}{more}.ndjson.zst", host(), std::process::id());
        let first = folder.path().join(name(""));
        let committed = |text: &[u8], meanwhile: &dyn Fn()| {
            inner.begin("2026-01-31").expect("begun");
            inner.append(text).expect("appended");
            meanwhile();
            inner.append(b"and\n").expect("appended");
            inner.commit().expect("committed");
        };
        let held = || texts(folder.path()).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        // Between two batches.
        committed(b"one\n", &|| ());
        fs::remove_file(&first).expect("deleted");
        committed(b"two\n", &|| ());
        assert_eq!(held(), ["two\nand\n"]);
        // Within one: what was committed before stays where it went.
        let moved = folder.path().join("0-moved");
        committed(b"three\n", &|| fs::rename(&first, &moved).expect("moved"));
        assert_eq!(texts(folder.path())[1], (name(""), "three\nand\n".to_owned()));
        assert!(texts(folder.path())[0].1.starts_with("two\nand\n"));
        // Another file under the name.
        committed(b"four\n", &|| {
            fs::remove_file(&first).expect("deleted");
            fs::copy(&moved, &first).expect("copied");
        });
        assert_eq!(texts(folder.path())[1], (name("-2"), "four\nand\n".to_owned()));
        // Cut between two batches.
        let last = folder.path().join(name("-2"));
        File::options().write(true).open(&last).expect("there").set_len(0).expect("cut");
        committed(b"five\n", &|| ());
        fs::remove_file(&last).expect("deleted");
        assert!(held().contains(&"five\nand\n".to_owned()), "{:?}", held());
    }

    #[test]
    fn a_commit_into_a_folder_that_is_gone_fails() {
        let folder = ScratchDir::new("archive");
        let path = folder.path().join("history");
        let archive = Archive::open(&path).expect("usable");
        archive.0.begin("2026-01-31").expect("begun");
        archive.0.append(b"one\n").expect("appended");
        fs::remove_dir_all(&path).expect("deleted");
        assert!(archive.0.commit().is_err(), "whoever removes rows now would lose them");
    }

    #[test]
    fn damage_to_a_frame_is_found_by_its_checksum() {
        let folder = ScratchDir::new("archive");
        let archive = Archive::open(folder.path()).expect("usable");
        archive.0.begin("2026-01-31").expect("begun");
        archive.0.append(b"one line\n").expect("appended");
        archive.0.commit().expect("committed");
        let entry = fs::read_dir(folder.path()).expect("there").next().expect("a file").expect("readable");
        let mut bytes = fs::read(entry.path()).expect("readable");
        assert_ne!(bytes[4] & 0b100, 0, "the flag of the checksum");
        // Short text is stored as it is; behind it stand the four bytes of the checksum.
        let at = bytes.len() - 4 - 3;
        bytes[at] ^= 1;
        assert!(zstd::decode_all(bytes.as_slice()).is_err());
    }

    #[test]
    fn missing_folders_are_made_and_those_that_are_there_stay() {
        let folder = ScratchDir::new("archive");
        let path = folder.path().join("a/b/c");
        make_folder(&path).expect("made");
        make_folder(&path).expect("there already");
        assert!(path.is_dir());
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_refused() {
        let folder = ScratchDir::new("archive");
        let file = folder.path().join("a-file");
        fs::write(&file, "x").expect("written");
        assert!(Archive::open(&file.join("folder")).is_err());
    }

    #[test]
    fn days_are_those_of_utc() {
        let at = |seconds| day(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!([at(0), at(1_769_903_999), at(1_769_904_000)], ["1970-01-01", "2026-01-31", "2026-02-01"]);
    }
}
