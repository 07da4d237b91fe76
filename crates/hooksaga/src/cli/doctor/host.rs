//! This machine: the data folder, the disk, the limit of open files.

use super::finding::{Finding, Verdict};
use crate::{
    config::{BackendUrl, Config},
    data_folder, descriptors,
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

/// How long the disks may take, all together: one that hangs (NFS without its server) would never end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Less is trouble within hours.
const LITTLE: u64 = 1 << 30;
/// Less is trouble now: SQLite needs room for its log.
const ALMOST_NONE: u64 = 128 << 20;
/// In hundredths of the disk.
const LITTLE_SHARE: u64 = 10;

/// The folder of an embedded database and that of the archive, and the room on their disks.
pub(super) async fn places(config: &Config) -> Vec<Finding> {
    let deadline = deadline();
    let database = match &config.database.backend {
        BackendUrl::Sqlite(path) => Some(path.clone()),
        BackendUrl::Postgres(_) | BackendUrl::MySql(_) => None,
    };
    let archive = config.retention.archive.clone();
    let disks: Vec<PathBuf> = database.as_deref().map(folder_of).into_iter().chain(archive.clone()).collect();
    if disks.is_empty() {
        return vec![Finding::ok(
            "disk",
            "the database server's disk cannot be seen from here: watch it there",
        )];
    }
    // All at once: one that hangs takes no time from the others.
    let mut looks: Vec<(&'static str, PathBuf, JoinHandle<Finding>)> = Vec::new();
    let mut look = |check, place: PathBuf, judge: fn(&Path) -> Finding| {
        let path = place.clone();
        looks.push((check, place, spawn_blocking(move || judge(&path))));
    };
    if let Some(path) = database {
        look("data folder", path, data_folder);
    }
    if let Some(folder) = archive {
        look("archive", folder, archive_folder);
    }
    for place in disks {
        look("disk", place, disk);
    }
    let mut findings = Vec::new();
    for (check, place, look) in looks {
        findings.push(in_time(check, &place, deadline, look).await);
    }
    findings
}

/// Until when looks that begin now are waited for.
pub(super) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// What a look found, if it ends before the deadline.
pub(super) async fn in_time(
    check: &'static str,
    place: &Path,
    deadline: Instant,
    look: JoinHandle<Finding>,
) -> Finding {
    match tokio::time::timeout_at(deadline, look).await {
        Ok(Ok(finding)) => finding,
        Ok(Err(_)) | Err(_) => Finding::problem(
            check,
            format!("{} could not be looked at within {} s", place.display(), PATIENCE.as_secs()),
            "check the disk or the network file system that it is on",
        ),
    }
}

fn data_folder(database: &Path) -> Finding {
    const CHECK: &str = "data folder";
    let folder = folder_of(database);
    let shown = folder.display();
    if !folder.exists() {
        return Finding::ok(
            CHECK,
            format!("{shown} is not there yet: the first start makes it, for its owner only"),
        );
    }
    if let Err(error) = writable(&folder) {
        return Finding::problem(
            CHECK,
            format!("{shown} cannot be written by this user ({error})"),
            "run hooksaga as the folder's owner, or give it to this user with chown",
        );
    }
    match data_folder::complaint(database) {
        Some(line) => Finding::from_line(CHECK, Verdict::Warning, &line),
        None => Finding::ok(CHECK, format!("{shown} and the keys in it are its owner's alone")),
    }
}

fn archive_folder(folder: &Path) -> Finding {
    const CHECK: &str = "archive";
    let shown = folder.display();
    match writable(nearest(folder)) {
        Ok(()) if folder.exists() => Finding::ok(CHECK, format!("{shown} can be written")),
        Ok(()) => Finding::ok(CHECK, format!("{shown} is not there yet: it can be made")),
        Err(error) => Finding::problem(
            CHECK,
            format!("{shown} cannot be written ({error}): nothing is removed while it cannot be archived"),
            "create the folder for the user that runs hooksaga, or change retention.archive",
        ),
    }
}

/// The place itself, or where it would be made.
fn nearest(place: &Path) -> &Path {
    let there = place.ancestors().find(|place| place.exists());
    there.filter(|place| !place.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether this user may create files there.
fn writable(folder: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD};
    if !folder.is_dir() {
        return Err(rustix::io::Errno::NOTDIR);
    }
    rustix::fs::accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Room on the disk of a folder that this process writes to.
fn disk(place: &Path) -> Finding {
    // A folder that is not there yet will be on its parent's disk.
    match rustix::fs::statvfs(nearest(place)) {
        Ok(room) => {
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            judge(place, free, room.f_blocks.saturating_mul(room.f_frsize))
        }
        Err(error) => Finding::warning(
            "disk",
            format!("cannot read the free space at {} ({error})", place.display()),
            "check the path and its permissions",
        ),
    }
}

fn judge(place: &Path, free: u64, size: u64) -> Finding {
    const CHECK: &str = "disk";
    let share = u128::from(free) * 100 / u128::from(size.max(1));
    let found = format!("{} of {} ({share} %) are free at {}", bytes(free), bytes(size), place.display());
    let advice = "make room, or let retention.finished remove history";
    match free {
        _ if free < ALMOST_NONE => Finding::problem(CHECK, found, advice),
        _ if free < LITTLE || share < u128::from(LITTLE_SHARE) => Finding::warning(CHECK, found, advice),
        _ => Finding::ok(CHECK, found),
    }
}

fn bytes(count: u64) -> String {
    match count {
        _ if count >= 1 << 30 => format!("{}.{} GiB", count >> 30, ((count % (1 << 30)) * 10) >> 30),
        _ => format!("{} MiB", count >> 20),
    }
}

/// The limit that a server started from here would get.
pub(super) fn descriptors(deliveries: u32) -> Finding {
    judge_descriptors(descriptors::highest(), deliveries)
}

fn judge_descriptors(limit: Option<u64>, deliveries: u32) -> Finding {
    const CHECK: &str = "open files";
    let Some(limit) = limit else { return Finding::ok(CHECK, "no limit") };
    let wanted = deliveries.saturating_add(1024);
    if !descriptors::suffices(limit, deliveries) {
        return Finding::problem(
            CHECK,
            format!(
                "at most {limit} here: too few for worker.concurrency = {deliveries}, so deliveries may fail"
            ),
            format!("raise the limit to {wanted} or more (LimitNOFILE in the unit, ulimit -n in a shell)"),
        );
    }
    if limit < u64::from(wanted) {
        return Finding::warning(
            CHECK,
            format!(
                "at most {limit} here: enough for worker.concurrency = {deliveries}, and few for clients of the API"
            ),
            format!("raise the limit to {wanted} or more (LimitNOFILE in the unit, ulimit -n in a shell)"),
        );
    }
    Finding::ok(CHECK, format!("at most {limit} here, worker.concurrency is {deliveries}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_disk_that_hangs_is_a_problem_and_not_waited_for() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hanging = spawn_blocking(move || {
            let _ = ended.recv();
            Finding::ok("disk", "at last")
        });
        let soon = Instant::now() + Duration::from_millis(20);
        let finding = in_time("disk", Path::new("/far/away"), soon, hanging).await;
        assert!(finding.verdict == Verdict::Problem && finding.found.contains("/far/away"), "{finding:?}");
        drop(end);
        let quick = spawn_blocking(|| disk(Path::new(".")));
        let finding = in_time("disk", Path::new("."), Instant::now() + PATIENCE, quick).await;
        assert!(!finding.found.contains("could not be looked at"), "{finding:?}");
    }

    #[test]
    fn room_is_judged_by_what_is_left() {
        const GIB: u64 = 1 << 30;
        for (free, size, verdict) in [
            (50 * GIB, 100 * GIB, Verdict::Ok),
            (5 * GIB, 100 * GIB, Verdict::Warning),
            (GIB / 2, GIB, Verdict::Warning),
            (100 << 20, 100 * GIB, Verdict::Problem),
            (0, 0, Verdict::Problem),
        ] {
            let finding = judge(Path::new("data"), free, size);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
        }
        assert_eq!((bytes(1_610_612_736), bytes(5 << 20)), ("1.5 GiB".to_owned(), "5 MiB".to_owned()));
    }

    #[test]
    fn descriptors_have_to_do_for_deliveries_and_should_for_clients() {
        for (limit, verdict) in [
            (None, Verdict::Ok),
            (Some(20_000), Verdict::Ok),
            (Some(1024), Verdict::Warning),
            (Some(256), Verdict::Problem),
        ] {
            assert_eq!(judge_descriptors(limit, 512).verdict, verdict, "{limit:?}");
        }
    }
}
