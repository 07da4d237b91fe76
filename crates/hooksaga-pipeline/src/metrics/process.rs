//! What the operating system says about this process, under the names that every Prometheus client uses.
//!
//! Read from `/proc` when somebody asks. A system without it shows none of these.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use std::fs;

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(usage) = Usage::read() else { return Ok(()) };
        let cpu = ConstCounter::new(usage.cpu_seconds);
        cpu.encode(encoder.encode_descriptor(
            "process_cpu",
            "User and system CPU time",
            Some(&Unit::Seconds),
            cpu.metric_type(),
        )?)?;
        for (name, help, unit, value) in [
            ("process_resident_memory", "Resident memory", Some(Unit::Bytes), Some(usage.resident_bytes)),
            ("process_virtual_memory", "Virtual memory", Some(Unit::Bytes), Some(usage.virtual_bytes)),
            ("process_open_fds", "Open file descriptors", None, usage.open_fds),
            ("process_max_fds", "File descriptors that may be open", None, usage.max_fds),
            ("process_start_time", "Start, since the Unix epoch", Some(Unit::Seconds), usage.started_at),
        ] {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?)?;
        }
        Ok(())
    }
}

struct Usage {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
    started_at: Option<f64>,
}

impl Usage {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The second field, the program's name in parentheses, may hold blanks.
        let fields: Vec<f64> = stat
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .skip(1)
            .map_while(|field| field.parse().ok())
            .collect();
        // Numbered as in proc(5), where the field after the state is the fourth.
        let field = |number: usize| fields.get(number - 4).copied();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as f64,
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64),
            max_fds: number_after("/proc/self/limits", "Max open files"),
            started_at: number_after("/proc/stat", "btime")
                .zip(field(22))
                .map(|(boot, at)| boot + at / ticks),
        })
    }
}

/// The first number in the line that begins like this.
fn number_after(file: &str, beginning: &str) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(beginning))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn this_process_is_described() {
        let usage = Usage::read().expect("Linux has /proc");
        assert!(usage.resident_bytes > 1e6 && usage.virtual_bytes >= usage.resident_bytes);
        assert!(
            usage.open_fds.is_some_and(|open| open >= 3.0 && usage.max_fds.is_some_and(|max| open < max))
        );
        #[expect(clippy::disallowed_methods, reason = "compared with the operating system's clock")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
        assert!(usage.started_at.is_some_and(|at| (now - 3600.0..now + 1.0).contains(&at)));
        let burn = std::time::Instant::now();
        while burn.elapsed().as_millis() < 60 {
            std::hint::spin_loop();
        }
        assert!(Usage::read().is_some_and(|later| later.cpu_seconds > usage.cpu_seconds));
    }
}
