//! SIGTERM and SIGINT: how the program is asked to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals that ask a program to end, listened for from the moment that this is created.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn listen() -> Self {
        let open = |kind| signal(kind).expect("a signal handler can be installed inside the runtime");
        Self { terminate: open(SignalKind::terminate()), interrupt: open(SignalKind::interrupt()) }
    }

    /// Waits for the next of them.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits for the first of them.
pub(crate) async fn first() {
    StopSignals::listen().next().await;
}
