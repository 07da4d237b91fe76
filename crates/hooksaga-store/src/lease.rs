//! Leases: the right to work on a row until a given time.

use hooksaga_saga::{JobId, Timestamp};

/// The fence of a lease: random, drawn anew for every claim. A write under an old token changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub i64);

/// A leased job's identity: all that a fenced write needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    pub job_id: JobId,
    pub token: LeaseToken,
}

/// Something held under a lease.
#[derive(Clone, Debug)]
pub struct Lease<T> {
    pub job_id: JobId,
    pub token: LeaseToken,
    /// By the database's clock.
    pub until: Timestamp,
    pub held: T,
}

impl<T> Lease<T> {
    /// What a fenced write names.
    pub fn as_ref(&self) -> LeaseRef {
        LeaseRef { job_id: self.job_id, token: self.token }
    }
}
