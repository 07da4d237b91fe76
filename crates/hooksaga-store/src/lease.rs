//! Leases: the right to work on a row until a given time.

use crate::DeliveryJob;
use hooksaga_saga::{JobId, SagaId, Timestamp};
use std::time::Duration;

/// The fence of a lease: random, and another one for every claim. A write under an old token changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub i64);

impl LeaseToken {
    /// A lease under this token.
    pub fn lasting(self, lasts: Duration) -> LeaseRequest {
        LeaseRequest { token: self, lasts }
    }
}

/// A lease as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    pub token: LeaseToken,
    /// From the database's clock at the claim.
    pub lasts: Duration,
}

/// A leased job's identity: all that a fenced write needs. A job has two names, its id and the attempt that it is, and
/// each back end finds it by the one that it has an index for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    pub job_id: JobId,
    pub saga_id: SagaId,
    pub attempt_at: Timestamp,
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

impl Lease<DeliveryJob> {
    /// What a fenced write names.
    pub fn as_ref(&self) -> LeaseRef {
        let DeliveryJob { saga_id, attempt_at, .. } = self.held;
        LeaseRef { job_id: self.job_id, saga_id, attempt_at, token: self.token }
    }
}
