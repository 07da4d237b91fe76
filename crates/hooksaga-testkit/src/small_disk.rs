//! A disk of a fixed size that a test can fill and empty while a database server uses it.
//!
//! It is a tmpfs in a mount namespace of its own: only programs that are started on it see it, and it ends with them. Root may
//! make one anywhere but in a container without `CAP_SYS_ADMIN`; others need user namespaces.

use crate::{scratch::ScratchDir, unprivileged};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// What takes the space that a test takes away.
const BALLAST: &str = "ballast";

/// A mounted disk; it goes when this and the servers on it have ended.
#[derive(Debug)]
pub struct SmallDisk {
    mount_point: ScratchDir,
    /// The first process of the namespace. It ends when its standard input does, and so with the tests.
    holder: Child,
}

impl SmallDisk {
    /// Mounts a disk of this many MiB; nothing where this user may not.
    pub fn mount(mib: u32) -> Option<Self> {
        let mount_point = ScratchDir::new("disk");
        let mount =
            format!("mount -t tmpfs -o size={mib}m,mode=0777 tmpfs \"$0\" && echo mounted && exec cat");
        let mut holder = Command::new("unshare");
        if !unprivileged::is_root() {
            // Whoever has made a user namespace may mount in it, and stays who they are.
            holder.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        let mut holder = holder
            .args(["--mount", "--", "sh", "-c", &mount])
            .arg(mount_point.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare (util-linux) can be run");
        let mut said = [0; 8];
        let is_mounted = holder.stdout.as_mut().unwrap().read_exact(&mut said).is_ok();
        let disk = Self { mount_point, holder };
        is_mounted.then_some(disk)
    }

    /// Where it is, for programs on it.
    pub fn path(&self) -> &Path {
        self.mount_point.path()
    }

    /// Where it is for everybody else.
    fn seen_from_outside(&self) -> PathBuf {
        let path = self.path().strip_prefix("/").expect("a scratch folder has an absolute path");
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(path)
    }

    /// Makes a folder for a server, and returns its path for programs on this disk.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let folder = self.seen_from_outside().join(name);
        fs::create_dir(&folder).unwrap();
        unprivileged::give(&folder).unwrap();
        self.path().join(name)
    }

    /// Takes all the space that is left.
    pub fn fill(&self) {
        let mut ballast = File::create(self.seen_from_outside().join(BALLAST)).unwrap();
        let written = io::copy(&mut io::repeat(0), &mut ballast);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    /// Gives back what [`Self::fill`] took.
    pub fn make_room(&self) {
        fs::remove_file(self.seen_from_outside().join(BALLAST)).unwrap();
    }

    fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--target={}", self.holder.id())).arg("--mount");
        if !unprivileged::is_root() {
            inside.args(["--user", "--preserve-credentials"]);
        }
        inside.arg("--").arg(command.get_program()).args(command.get_args());
        inside
    }
}

/// The same program with the same arguments, where it sees this disk, if there is one.
pub(crate) fn on(disk: Option<&SmallDisk>, command: Command) -> Command {
    match disk {
        Some(disk) => disk.enter(&command),
        None => command,
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
