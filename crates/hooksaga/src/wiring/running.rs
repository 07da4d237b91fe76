//! The components of a process while they run, and their end.

use crate::error::CliError;
use hooksaga_http::Probes;
use hooksaga_pipeline::Shutdown;
use std::time::Duration;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

/// How long the API still accepts once readiness has gone, if somebody asks for it regularly: a balancer sends requests
/// here until it has noticed.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// What requests that have begun get to finish, even if the grace period is over.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// The running components.
pub(crate) struct RunningServer {
    /// What moves deliveries along.
    pub(super) components: JoinSet<&'static str>,
    pub(super) components_stop: Shutdown,
    /// The listeners, and ingestion behind them.
    pub(super) serving: JoinSet<&'static str>,
    pub(super) serving_stop: Shutdown,
    pub(super) probes: Probes,
    /// Clients come here.
    pub(super) serves_api: bool,
    pub(super) forwarder: tokio::task::JoinHandle<()>,
    /// Ends the forwarder, after everyone who may leave it something.
    pub(super) forwarder_stop: Shutdown,
}

impl RunningServer {
    /// Waits until a component ends although nobody asked it to.
    pub(crate) async fn failure(&mut self) -> CliError {
        let ended = |ended: Result<&'static str, tokio::task::JoinError>| match ended {
            Ok(name) => format!("{name} ended unexpectedly"),
            Err(error) => format!("a component failed: {error}"),
        };
        let what = tokio::select! {
            Some(component) = self.components.join_next() => ended(component),
            Some(listener) = self.serving.join_next() => ended(listener),
            forwarder = &mut self.forwarder => ended(forwarder.map(|()| "the forwarder of wake-ups")),
        };
        CliError::new(format!("{what}: this is a bug, please report it; starting again is safe"))
    }

    /// Ends everything, in this order: readiness goes, so that balancers look elsewhere; the components finish what
    /// is in flight, while the API still accepts and serves, at least until a balancer has noticed; then the listeners
    /// close, and the requests that had begun finish. Says what did not end within the grace period.
    pub(crate) async fn stop(mut self, grace: Duration) {
        let began = Instant::now();
        let deadline = began + grace;
        let is_watched = self.serves_api && self.probes.are_watched();
        self.probes.stop();
        self.components_stop.trigger();
        if timeout_at(deadline, all_ended(&mut self.components)).await.is_err() {
            tracing::warn!(
                "the grace period is over: deliveries in flight will be tried again when their lease has run out"
            );
            self.components.abort_all();
        }
        if is_watched {
            sleep_until(deadline.min(began + NOTICED_WITHIN)).await;
        }
        self.serving_stop.trigger();
        let deadline = deadline.max(Instant::now() + LAST_REQUESTS);
        if timeout_at(deadline, all_ended(&mut self.serving)).await.is_err() {
            tracing::warn!("the grace period is over: requests in progress are cut off");
            self.serving.abort_all();
        }

        self.forwarder_stop.trigger();
        // One that had ended before was a failure, and told as such.
        if !self.forwarder.is_finished() {
            match timeout_at(deadline.max(Instant::now() + LAST_REQUESTS), self.forwarder).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::error!(%error, "the forwarder of wake-ups failed while it stopped")
                }
                Err(_) => tracing::warn!(
                    "the grace period is over: other processes may hear of new work a little later"
                ),
            }
        }
    }
}

async fn all_ended(tasks: &mut JoinSet<&'static str>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a component failed while it stopped");
        }
    }
}
