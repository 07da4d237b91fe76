//! The queue for the connections on which the API's lists run.

use crate::{QUERY_LIMIT, StoreError, StoreResult};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds how many queries run at a time. One that has waited for [`QUERY_LIMIT`] is not begun: such a line is made of slow
/// queries, and its end would wait forever.
pub struct QueryQueue(Arc<Semaphore>);

impl QueryQueue {
    pub fn new(connections: usize) -> Self {
        Self(Arc::new(Semaphore::new(connections.max(1))))
    }

    /// Waits for a turn, which lasts until it is dropped: when the query has ended in the database, even if its caller
    /// has gone.
    ///
    /// # Errors
    /// [`StoreError::TooSlow`] after [`QUERY_LIMIT`].
    pub async fn turn(&self) -> StoreResult<OwnedSemaphorePermit> {
        match tokio::time::timeout(QUERY_LIMIT, Arc::clone(&self.0).acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) => Err(StoreError::Unavailable("the readers have stopped".to_owned())),
            Err(_) => {
                Err(StoreError::TooSlow("too many slow queries are running; try again later".to_owned()))
            }
        }
    }
}
