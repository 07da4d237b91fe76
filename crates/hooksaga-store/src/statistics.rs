//! What statistics and metrics show: how much waits, what ended, what there is, and who is alive.

use crate::Role;
use hooksaga_saga::{SubscriptionId, Timestamp};

/// How much waits where: for metrics and statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueGauges {
    pub unrouted_events: u64,
    pub pending_sagas: u64,
    pub pending_retry_sagas: u64,
    /// Open sagas of subscriptions that are not active and verified.
    pub held_sagas: u64,
    pub pending_jobs: u64,
    pub leased_jobs: u64,
    pub finished_jobs: u64,
    pub pending_dead_letters: u64,
    /// How long the oldest saga that could run has been due, in microseconds; 0 if none is.
    pub oldest_due_age_micros: u64,
}

impl QueueGauges {
    /// From the columns of a row, which are in the order of the fields. The age is the caller's.
    pub fn of_columns<E>(mut number: impl FnMut(usize) -> Result<u64, E>) -> Result<Self, E> {
        Ok(Self {
            unrouted_events: number(0)?,
            pending_sagas: number(1)?,
            pending_retry_sagas: number(2)?,
            held_sagas: number(3)?,
            pending_jobs: number(4)?,
            leased_jobs: number(5)?,
            finished_jobs: number(6)?,
            pending_dead_letters: number(7)?,
            oldest_due_age_micros: 0,
        })
    }

    /// Sagas in progress: those with a job that is open, or whose result waits to be applied. For the moment between
    /// a job's creation and its saga's move it counts as Pending, too.
    pub fn in_progress_sagas(&self) -> u64 {
        self.pending_jobs + self.leased_jobs + self.finished_jobs
    }
}

/// What ended in one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinuteCount {
    /// Its beginning.
    pub minute: Timestamp,
    pub delivered: u64,
    /// Failed attempts.
    pub failed: u64,
    pub dead_lettered: u64,
}

/// What ended for one subscription in the last 24 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionCount {
    pub subscription_id: SubscriptionId,
    pub delivered: u64,
    pub failed: u64,
    pub dead_lettered: u64,
}

/// Open deliveries of one tenant. A count ends at [`TenantGauges::MOST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantGauges {
    pub pending_sagas: u64,
    pub pending_retry_sagas: u64,
    pub in_progress_sagas: u64,
    /// Open sagas of its subscriptions that are not active and verified.
    pub held_sagas: u64,
}

impl TenantGauges {
    pub const MOST: u32 = 10_000;
}

/// What can be read quickly however much waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The database's clock.
    pub now: Timestamp,
    /// How long the oldest saga that could run has been due, in microseconds; 0 if none is.
    pub oldest_due_age_micros: u64,
    /// The last three hours, oldest first; minutes in which nothing ended are left out.
    pub minutes: Vec<MinuteCount>,
    /// Subscriptions with any in the last 24 hours, by id, at most 1000.
    pub subscriptions: Vec<SubscriptionCount>,
}

/// What there is, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Subscriptions that get deliveries.
    pub active: u64,
    /// Active ones whose URL is not verified.
    pub unverified: u64,
    pub paused: u64,
    /// Switched off by the caretaker.
    pub disabled: u64,
    /// Dead letters that were not sent again.
    pub open_dead_letters: u64,
}

impl Inventory {
    /// How many subscriptions are counted at most: those with the smallest ids.
    pub const MOST_SUBSCRIPTIONS: u32 = 100_000;
    /// How many dead letters are counted at most.
    pub const MOST_LETTERS: u32 = 10_000;
}

/// Connections to the database server that one role uses in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub role: Role,
    /// That may be open.
    pub most: u64,
    pub busy: u64,
}

impl PoolUse {
    /// Every role's. `pools`: of each pool its role, how many of its connections are busy, and how many may be open.
    pub fn of_roles(pools: &(impl Iterator<Item = (Role, (usize, usize))> + Clone)) -> Vec<Self> {
        let of_role = |role: Role| {
            let own = pools.clone().filter(|(of, _)| *of == role);
            let (busy, most) = own.fold((0, 0), |sum, (_, (busy, most))| (sum.0 + busy, sum.1 + most));
            Self { role, most: most as u64, busy: busy as u64 }
        };
        Role::ALL.iter().map(|role| of_role(*role)).collect()
    }
}

/// A worker process that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingWorker {
    pub worker_id: i64,
    pub slots: u32,
    pub version: String,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
}
