//! What `hooksaga doctor` finds out about a database. An examination changes nothing, and each of its steps may fail by
//! itself.

use crate::{
    ClockReading, Role, StoreError, StoreResult,
    migration::{Migration, Recorded, check_released, check_usable, latest},
};

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
