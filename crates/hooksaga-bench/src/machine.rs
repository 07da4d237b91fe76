//! How busy the machine is with other things than the measurement.

use super::usage::{self, Postmaster};
use std::{
    fs,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

/// The machine's CPU time since it was started, all cores together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    /// Of every process, and of the kernel.
    busy: Duration,
    /// What the host gave to other machines.
    stolen: Duration,
    /// With what nobody used.
    all: Duration,
}

impl Machine {
    fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// The first line: user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen. What comes after
    /// is contained in the first two.
    fn parse(text: &str) -> Option<Self> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        let sum = |indexes: &[usize]| indexes.iter().map(|index| ticks.get(*index)).sum::<Option<u64>>();
        let (busy, stolen, free) = (sum(&[0, 1, 2, 5, 6])?, sum(&[7])?, sum(&[3, 4])?);
        let [busy, stolen, all] = [busy, stolen, busy + stolen + free].map(usage::ticks);
        Some(Self { busy, stolen, all })
    }
}

/// The machine and the measurement at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    machine: Machine,
    /// Of this process, its children and the database server.
    own: Duration,
}

impl Sample {
    /// What others have used since then, and what the host took, as parts of all CPU time.
    fn others_since(self, before: Self) -> (f64, f64) {
        let all = self.machine.all.saturating_sub(before.machine.all);
        if all.is_zero() {
            return (0.0, 0.0);
        }
        let part = |time: Duration| (time.as_secs_f64() / all.as_secs_f64()).clamp(0.0, 1.0);
        let busy = self.machine.busy.saturating_sub(before.machine.busy);
        let others = busy.saturating_sub(self.own.saturating_sub(before.own));
        (part(others), part(self.machine.stolen.saturating_sub(before.machine.stolen)))
    }
}

/// Watches the machine during a run.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The database server, and the CPU time that it had used before the run.
    database: OnceLock<(Postmaster, Duration)>,
    first: Sample,
    lately: Mutex<Lately>,
}

/// When it was last looked, and the part that others used until then.
#[derive(Clone, Copy, Debug)]
struct Lately {
    sample: Sample,
    others: f64,
}

impl Watch {
    /// Less tells nothing: the kernel counts in hundredths of a second.
    const SHORTEST: Duration = Duration::from_millis(500);

    pub(crate) fn start() -> Self {
        let first = Sample { machine: Machine::now(), own: usage::family_cpu() };
        let lately = Mutex::new(Lately { sample: first, others: 0.0 });
        Self { database: OnceLock::new(), first, lately }
    }

    /// From now on the work of this database server is the measurement's.
    pub(crate) fn include(&self, database: Postmaster) {
        self.database.get_or_init(|| (database, database.cpu()));
    }

    fn sample(&self) -> Sample {
        let database = self.database.get().map(|(server, before)| server.cpu().saturating_sub(*before));
        Sample { machine: Machine::now(), own: usage::family_cpu() + database.unwrap_or_default() }
    }

    /// The part of the CPU time that others used since this was last asked; at least over half a second.
    pub(crate) fn others_lately(&self) -> f64 {
        let sample = self.sample();
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        if sample.machine.all.saturating_sub(lately.sample.machine.all) >= Self::SHORTEST {
            *lately = Lately { sample, others: sample.others_since(lately.sample).0 };
        }
        lately.others
    }

    /// What others used during the whole run, and what the host took.
    pub(crate) fn whole(&self) -> (f64, f64) {
        self.sample().others_since(self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let read = Machine::parse("cpu  100 10 50 800 20 3 7 10 99 99\ncpu0 1 2 3\n");
        let ticks = usage::ticks;
        assert_eq!(read, Some(Machine { busy: ticks(170), stolen: ticks(10), all: ticks(1000) }));
        assert_eq!(Machine::parse("cpu  1 2 3"), None);
        assert_eq!(Machine::parse(""), None);
        assert!(Machine::now().all > Duration::ZERO);
    }

    #[test]
    fn others_are_what_is_busy_but_not_our_own() {
        let at = |busy, stolen, all, own| {
            let [busy, stolen, all, own] = [busy, stolen, all, own].map(Duration::from_secs);
            Sample { machine: Machine { busy, stolen, all }, own }
        };
        let (others, stolen) = at(60, 15, 200, 40).others_since(at(10, 5, 100, 10));
        assert!((others - 0.2).abs() < 1e-9 && (stolen - 0.1).abs() < 1e-9, "{others} {stolen}");
        // Ticks are coarse: our own time can seem to be more than all.
        assert!(at(11, 0, 20, 12).others_since(at(10, 0, 10, 10)).0.abs() < 1e-9);
        assert!(at(10, 0, 10, 10).others_since(at(10, 0, 10, 10)).0.abs() < 1e-9);
    }
}
