//! CPU time, memory and writes of processes, from /proc.

use std::{fs, time::Duration};

/// Clock ticks a second in /proc: 100 on every Linux that there is.
const TICKS: u32 = 100;

/// One process's line in /proc.
struct Stat {
    name: String,
    parent: u32,
    /// Its own time and that of its ended children, in ticks.
    own: u64,
    children: u64,
}

fn stat(process: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name stands in parentheses and may hold anything, parentheses too.
    let (before, after) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = after.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        name,
        parent: u32::try_from(number(1)?).ok()?,
        own: number(11)? + number(12)?,
        children: number(13)? + number(14)?,
    })
}

pub(super) fn ticks(ticks: u64) -> Duration {
    Duration::from_secs(ticks) / TICKS
}

/// The CPU time of one process.
pub(super) fn cpu(process: u32) -> Duration {
    stat(process).map_or(Duration::ZERO, |stat| ticks(stat.own))
}

/// The processes that a process has started and that still run.
fn children(process: u32) -> impl Iterator<Item = (u32, Stat)> {
    let running = fs::read_dir("/proc").into_iter().flatten().flatten();
    let running = running.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    running.filter_map(|id| Some((id, stat(id)?))).filter(move |(_, stat)| stat.parent == process)
}

/// The CPU time of this process and of all that it has started.
pub(super) fn family_cpu() -> Duration {
    let this = std::process::id();
    let ours = stat(this).into_iter().chain(children(this).map(|(_, stat)| stat));
    ticks(ours.map(|stat| stat.own + stat.children).sum())
}

/// How many bytes a process has sent to disks, its ended children included. Nothing if that is not ours to know.
pub(super) fn written(process: u32) -> Option<u64> {
    written_in(&fs::read_to_string(format!("/proc/{process}/io")).ok()?)
}

/// Pages that were written again before they reached the disk count once; files in memory do not count.
fn written_in(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.trim().parse().ok())
}

/// A database server on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Postmaster(u32);

impl Postmaster {
    /// Nothing if the backend is not a process of this machine.
    pub(super) fn of_backend(backend: u32) -> Option<Self> {
        stat(backend).filter(|stat| stat.name == "postgres").map(|stat| Self(stat.parent))
    }

    /// A server that is one process with threads. Nothing if it is not a process of this machine.
    pub(super) fn of_server(process: u32) -> Option<Self> {
        let names = ["mariadbd", "mysqld"];
        stat(process).filter(|stat| names.contains(&stat.name.as_str())).map(|_| Self(process))
    }

    /// The CPU time of all its processes, those that have ended included.
    pub(super) fn cpu(self) -> Duration {
        let own = stat(self.0).map_or(0, |stat| stat.own + stat.children);
        ticks(own + children(self.0).map(|(_, stat)| stat.own).sum::<u64>())
    }

    /// What all its processes have sent to disks. Nothing if that is not ours to know.
    pub(super) fn written(self) -> Option<u64> {
        Some(written(self.0)? + children(self.0).filter_map(|(id, _)| written(id)).sum::<u64>())
    }
}

/// The most memory that a process has ever held, in bytes.
pub(super) fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_memory() {
        assert!(peak_memory(std::process::id()) > 1 << 20);
        assert!(stat(std::process::id()).is_some_and(|stat| stat.parent > 0));
        assert_eq!(cpu(u32::MAX), Duration::ZERO);
        let own = cpu(std::process::id());
        assert!(family_cpu() >= own);
    }

    #[test]
    fn bytes_on_their_way_to_the_disk_are_read() {
        let io = "rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 4096\ncancelled_write_bytes: 5\n";
        assert_eq!(written_in(io), Some(4096));
        assert_eq!(written_in("rchar: 1\n"), None);
        assert!(written(std::process::id()).is_some() && written(u32::MAX).is_none());
    }
}
