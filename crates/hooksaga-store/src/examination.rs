//! What `hooksaga doctor` finds out about a database. An examination changes nothing, and each of its steps may fail by
//! itself.

use crate::{
    Role, StoreError, StoreResult,
    migration::{Migration, Recorded, check_released, check_usable, latest},
};
use hooksaga_saga::Timestamp;
use std::time::{Duration, Instant};

/// What was found. Its texts hold no secret.
#[derive(Clone, Debug)]
pub struct Examination {
    /// The server's name and version.
    pub server: String,
    /// `None` where the process's clock is the database's.
    pub clock: Option<ClockReading>,
    /// Why the schema cannot be used, or which version it has.
    pub schema: StoreResult<SchemaVersion>,
    pub roles: RolesFound,
    /// Settings of the server that endanger what was accepted, one line each.
    pub hazards: Vec<String>,
}

/// The database's clock, and when it showed that.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    pub time: Timestamp,
    /// The middle of the call.
    pub read_at: Instant,
    /// The time is exact to this: half of the call.
    pub give_or_take: Duration,
}

impl ClockReading {
    /// A reading by a call that began at `began` and has just ended.
    pub fn of_call(time: Timestamp, began: Instant) -> Self {
        let half = began.elapsed() / 2;
        Self { time, read_at: began + half, give_or_take: half }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaVersion {
    pub version: i64,
    /// The newest that this program knows. A schema may be newer, and this program work on it all the same.
    pub newest_known: i64,
}

impl SchemaVersion {
    /// Whether it is the newest that this program knows.
    pub fn is_this_programs(&self) -> bool {
        self.version == self.newest_known
    }

    /// Judges the steps that a database records.
    ///
    /// # Errors
    /// As [`check_released`] and [`check_usable`].
    pub fn judge(recorded: &[Recorded], all: &[Migration]) -> StoreResult<Self> {
        check_released(recorded, all)?;
        Ok(Self { version: check_usable(recorded, all)?, newest_known: latest(all) })
    }
}

/// What is known of the roles.
#[derive(Clone, Debug)]
pub enum RolesFound {
    /// An embedded database: the program sees to it.
    Embedded,
    /// `database.roles = "off"`.
    Off,
    /// There is no schema that rights could be on.
    NotLookedAt,
    Checked {
        /// Roles that were tried, each with a session of its own.
        tried: usize,
        faults: Vec<RoleFault>,
        /// What the rights do not protect from, if they are weaker than they could be.
        weakness: Option<String>,
    },
}

/// A role that does not work as it should.
#[derive(Clone, Debug)]
pub struct RoleFault {
    pub role: Role,
    pub fault: Fault,
}

#[derive(Clone, Debug)]
pub enum Fault {
    /// No session as this role could be opened.
    Session(StoreError),
    /// Rights that it lacks, at most [`RoleFault::SHOWN`]: `UPDATE (status) ON webhook_delivery_jobs`.
    Lacks(Vec<String>),
}

impl RoleFault {
    /// How many missing rights are named at most.
    pub const SHOWN: usize = 5;
}
