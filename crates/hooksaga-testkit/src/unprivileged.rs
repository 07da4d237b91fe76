//! Runs server programs without root's rights, and never longer than this process.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
    process::Command,
};

/// A user that servers may run as when the tests run as root.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// The user to drop to; `None` unless this process is root.
fn fallback_user() -> Option<User> {
    is_root().then(|| {
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| passwd.lines().find_map(|line| parse_passwd(line, name)))
            .expect("running as root needs a user `postgres` or `nobody` to drop to")
    })
}

fn parse_passwd(line: &str, name: &str) -> Option<User> {
    let mut fields = line.split(':');
    (fields.next()? == name).then_some(())?;
    let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(User { uid, gid })
}

/// A command that runs `program` without root's rights and dies with this process.
///
/// `setpriv` (util-linux) sets the death signal after it has changed the user; set before, the change
/// would clear it.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    command_ended_by("INT", program)
}

/// The same for a program that ends by another signal.
pub(crate) fn command_ended_by(signal: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = fallback_user() {
        command.args([&format!("--reuid={}", user.uid), &format!("--regid={}", user.gid), "--clear-groups"]);
    }
    command.arg(format!("--pdeathsig={signal}")).arg("--").arg(program);
    command
}

/// Makes a folder the server user's own.
pub(crate) fn give(path: &Path) -> io::Result<()> {
    match fallback_user() {
        Some(user) => chown(path, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}
