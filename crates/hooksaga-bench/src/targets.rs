//! What figures are held against, by back end: bars, below which `--check` fails, and goals, which are shown as reached or
//! missed and fail nothing.

use crate::report::Bar;

/// What one figure is held against.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Yardstick {
    pub(crate) bar: Option<Bar>,
    pub(crate) goal: Option<Bar>,
}

impl Yardstick {
    const NONE: Self = Self { bar: None, goal: None };

    /// Without its bar: it holds for another figure.
    pub(crate) fn only_goal(self) -> Self {
        Self { bar: None, ..self }
    }

    /// Nothing, unless the figure was taken under the conditions that the target is for.
    pub(crate) fn when(self, holds: bool) -> Self {
        if holds { self } else { Self::NONE }
    }
}

const fn bar(bar: Bar) -> Yardstick {
    Yardstick { bar: Some(bar), goal: None }
}

const fn goal(goal: Bar) -> Yardstick {
    Yardstick { bar: None, goal: Some(goal) }
}

const fn both(bar: Bar, goal: Bar) -> Yardstick {
    Yardstick { bar: Some(bar), goal: Some(goal) }
}

/// The rate that latency and the costs of light load have their targets at.
pub(crate) const LIGHT: u32 = 300;

/// The payload size, in bytes, that has a target.
pub(crate) const LARGE_PAYLOAD: usize = 100 << 10;

/// All targets of one back end. Times are in milliseconds, speeds per second, costs per delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Targets {
    pub(crate) single: Yardstick,
    pub(crate) single_to_ceiling: Yardstick,
    pub(crate) single_to_peer: Yardstick,
    pub(crate) fan_out_to_ceiling: Yardstick,
    pub(crate) fan_out_to_peer: Yardstick,
    pub(crate) saturated_cpu: Yardstick,
    /// From post to arrival at [`LIGHT`].
    pub(crate) p50: Yardstick,
    pub(crate) p99: Yardstick,
    pub(crate) light_cpu: Yardstick,
    pub(crate) light_commits: Yardstick,
    pub(crate) light_syncs: Yardstick,
    pub(crate) light_bytes: Yardstick,
    /// Several copies ÷ one.
    pub(crate) copies: Yardstick,
    /// Of [`LARGE_PAYLOAD`].
    pub(crate) large_payloads: Yardstick,
    /// Beside the janitor ÷ without it.
    pub(crate) beside_janitor: Yardstick,
}

impl Targets {
    /// By the name of the database.
    pub(crate) fn of(database: &str) -> &'static Self {
        match database {
            "SQLite" => &SQLITE,
            "PostgreSQL" => &POSTGRES,
            _ => &MYSQL,
        }
    }
}

static SQLITE: Targets = Targets {
    single: Yardstick::NONE,
    single_to_ceiling: bar(Bar::AtLeast(0.15)),
    single_to_peer: goal(Bar::AtLeast(20.0)),
    fan_out_to_ceiling: Yardstick::NONE,
    fan_out_to_peer: goal(Bar::AtLeast(10.0)),
    saturated_cpu: goal(Bar::AtMost(0.07)),
    p50: both(Bar::AtMost(2.5), Bar::AtMost(0.9)),
    p99: both(Bar::AtMost(10.0), Bar::AtMost(2.5)),
    light_cpu: goal(Bar::AtMost(0.4)),
    light_commits: Yardstick::NONE,
    light_syncs: Yardstick::NONE,
    light_bytes: goal(Bar::AtMost(25_000.0)),
    copies: Yardstick::NONE,
    large_payloads: goal(Bar::AtLeast(3000.0)),
    beside_janitor: bar(Bar::AtLeast(0.9)),
};

static POSTGRES: Targets = Targets {
    single: Yardstick::NONE,
    single_to_ceiling: bar(Bar::AtLeast(0.10)),
    single_to_peer: goal(Bar::AtLeast(15.0)),
    fan_out_to_ceiling: bar(Bar::AtLeast(0.22)),
    fan_out_to_peer: goal(Bar::AtLeast(8.0)),
    saturated_cpu: both(Bar::AtMost(0.20), Bar::AtMost(0.12)),
    p50: both(Bar::AtMost(2.5), Bar::AtMost(1.2)),
    p99: both(Bar::AtMost(10.0), Bar::AtMost(4.0)),
    light_cpu: goal(Bar::AtMost(0.9)),
    light_commits: goal(Bar::AtMost(4.0)),
    light_syncs: goal(Bar::AtMost(2.0)),
    light_bytes: Yardstick::NONE,
    copies: goal(Bar::AtLeast(0.95)),
    large_payloads: goal(Bar::AtLeast(2000.0)),
    beside_janitor: bar(Bar::AtLeast(0.9)),
};

/// Of MySQL and MariaDB. The bars are wider: they hold what it does, and the goals say where it is to be.
static MYSQL: Targets = Targets {
    single: goal(Bar::AtLeast(7000.0)),
    single_to_ceiling: bar(Bar::AtLeast(0.05)),
    single_to_peer: Yardstick::NONE,
    fan_out_to_ceiling: Yardstick::NONE,
    fan_out_to_peer: Yardstick::NONE,
    saturated_cpu: Yardstick::NONE,
    p50: both(Bar::AtMost(10.0), Bar::AtMost(3.0)),
    p99: both(Bar::AtMost(25.0), Bar::AtMost(8.0)),
    light_cpu: Yardstick::NONE,
    light_commits: Yardstick::NONE,
    light_syncs: Yardstick::NONE,
    light_bytes: Yardstick::NONE,
    copies: goal(Bar::AtLeast(0.95)),
    large_payloads: Yardstick::NONE,
    beside_janitor: bar(Bar::AtLeast(0.9)),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_goal_is_easier_than_its_bar() {
        for targets in [&SQLITE, &POSTGRES, &MYSQL] {
            for target in [targets.saturated_cpu, targets.p50, targets.p99] {
                match (target.bar, target.goal) {
                    (Some(Bar::AtMost(bar)), Some(Bar::AtMost(goal))) => assert!(goal < bar, "{target:?}"),
                    (None, _) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(POSTGRES.p50.when(false).bar.is_none() && POSTGRES.p50.when(true).bar.is_some());
        for targets in [&SQLITE, &POSTGRES, &MYSQL] {
            assert_eq!(targets.beside_janitor.bar, Some(Bar::AtLeast(0.9)), "promised, on every back end");
        }
        let goal = POSTGRES.p50.only_goal();
        assert!(goal.bar.is_none() && goal.goal.is_some());
    }
}
