//! Calls that wait for a database server.

use std::time::{Duration, Instant};

/// A call that waits for the server. Whoever asked may give it up sooner than the back end would, and ask again: then a
/// connection that is dead without anybody noticing would be given to the next one, for ever.
#[derive(Debug)]
pub struct CallGuard<F: FnMut()> {
    began: Instant,
    ended: bool,
    suspect: F,
}

impl<F: FnMut()> CallGuard<F> {
    /// A call that was given up after this long may have waited for a dead connection.
    const SUSPICIOUS: Duration = Duration::from_secs(1);

    /// Begins one. `suspect` puts the connections that may be dead out of use.
    pub fn begin(suspect: F) -> Self {
        Self { began: Instant::now(), ended: false, suspect }
    }

    /// The call ended, with any result.
    pub fn end<T>(mut self, done: T) -> T {
        self.ended = true;
        done
    }
}

impl<F: FnMut()> Drop for CallGuard<F> {
    /// When a call is given up, its connection is back in the pool by now: it was dropped first.
    fn drop(&mut self) {
        if !self.ended && self.began.elapsed() > Self::SUSPICIOUS {
            (self.suspect)();
        }
    }
}
