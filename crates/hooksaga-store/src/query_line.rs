//! The queue for the connections on which the API's lists run.

use crate::{QUERY_LIMIT, StoreError, StoreResult};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bounds how many queries run at a time. One that has waited for [`QUERY_LIMIT`] is not begun: such a line is made of slow
/// queries, and its end would wait for ever.
pub struct QueryLine(Semaphore);

impl QueryLine {
    pub fn new(connections: usize) -> Self {
        Self(Semaphore::new(connections.max(1)))
    }

    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// [`StoreError::TooSlow`] after [`QUERY_LIMIT`].
    pub async fn turn(&self) -> StoreResult<SemaphorePermit<'_>> {
        match tokio::time::timeout(QUERY_LIMIT, self.0.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) => Err(StoreError::Unavailable("the readers have stopped".to_owned())),
            Err(_) => Err(StoreError::TooSlow("other slow queries were before it".to_owned())),
        }
    }
}
