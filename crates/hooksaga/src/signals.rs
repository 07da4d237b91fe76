//! SIGTERM and SIGINT: how the program is asked to end. SIGHUP: how it is asked to read files again.

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

/// Calls `read_again` at each SIGHUP, from the moment that this is called.
pub(crate) fn at_hangup(read_again: impl Fn() + Send + 'static) -> tokio::task::JoinHandle<()> {
    let mut hangup =
        signal(SignalKind::hangup()).expect("a signal handler can be installed inside the runtime");
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            read_again();
        }
    })
}
