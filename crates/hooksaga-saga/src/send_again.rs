//! What an operator's requeue or resend creates.

use crate::{Saga, Timestamp};

/// The saga that follows one that has ended, and its generation; `None` while the saga is open.
///
/// The ended saga itself is not touched. Whoever asks computes the same generation, and the unique key
/// (event, subscription, generation) lets only one of them in.
pub fn send_again(
    ended: &Saga,
    generation: u32,
    max_retry_limit: u32,
    now: Timestamp,
) -> Option<(u32, Saga)> {
    ended.status.is_final().then(|| (generation.saturating_add(1), Saga::new(max_retry_limit, now)))
}
