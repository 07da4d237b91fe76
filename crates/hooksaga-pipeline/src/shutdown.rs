//! The order to stop, given once and heard by everyone.

use tokio::sync::watch;

/// A handle on the order to stop. Clones share it; it cannot be taken back.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Sender<bool>);

impl Shutdown {
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Gives the order. Again is a no-op.
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }

    pub fn is_triggered(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once the order is given, at once if it was given before.
    pub async fn wait(&self) {
        // The sender is borrowed for as long as this waits, so the channel cannot close under it.
        let _ = self.0.subscribe().wait_for(|stop| *stop).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}
