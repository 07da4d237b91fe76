//! What an operator's requeue creates.

use crate::{Saga, SagaStatus, Timestamp};

/// The saga that follows a dead one, and its generation; nothing unless the saga is dead.
///
/// The dead saga itself is not touched. Two requeues compute the same generation, and the unique key
/// (event, subscription, generation) lets only one of them in.
pub fn requeue(dead: &Saga, generation: u32, max_retry_limit: u32, now: Timestamp) -> Option<(u32, Saga)> {
    (dead.status == SagaStatus::DeadLettered)
        .then(|| (generation.saturating_add(1), Saga::new(max_retry_limit, now)))
}
