//! The redriver: large work in small steps, beside live traffic. It takes redrives on, and lets subscriptions that were
//! verified catch up.
//!
//! Promises: one saga per event, subscription and generation, whatever crashes in between and however many redrivers
//! there are; a step is one short transaction, and after each step it rests for twice as long as the step took. Work
//! that fails because one of its rows cannot be read is postponed, so that other work continues.
//!
//! Not done here: deciding who may start a redrive (the API does), and what a step makes of a row (`hooksaga_saga::choose`
//! does).

use crate::{
    DELIVERY_LOG_TARGET, DeliveryLog, Driver, LogThrottle, Metrics, Progress, Shutdown, Signals,
    driver::Rhythm, step_size::StepSize,
};
use hooksaga_store::{
    RedriveStatus, RedriveStep, RedriveStore, Stage, StepLimits, StepOf, StoreError, StoreResult,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub struct Redriver {
    store: Arc<dyn RedriveStore>,
    /// Attempts of sagas whose subscription has no limit of its own.
    default_limit: u32,
    /// How old the events may be that a subscription gets once it is verified; `None` means that it gets none.
    catch_up: Option<Duration>,
    step_size: StepSize,
    /// The line that catching up fails.
    failures: LogThrottle,
    signals: Signals,
    metrics: Arc<Metrics>,
    log: DeliveryLog,
}

impl Redriver {
    /// Rows examined for each that may be written.
    const LOOKS: u32 = 5;
    const NAME: &str = "redriver";
    const LOG_EVERY: Duration = Duration::from_secs(30);
    /// How long a subscription that cannot catch up lets others go first.
    const PUT_OFF: Duration = Duration::from_secs(10);

    pub fn new(
        store: Arc<dyn RedriveStore>,
        default_limit: u32,
        catch_up: Option<Duration>,
        signals: Signals,
        metrics: Arc<Metrics>,
        log: DeliveryLog,
    ) -> Self {
        Self {
            store,
            default_limit,
            catch_up,
            step_size: StepSize::new(),
            failures: LogThrottle::new(Self::LOG_EVERY),
            signals,
            metrics,
            log,
        }
    }

    pub async fn run(&self, shutdown: &Shutdown) {
        let driver = Driver {
            name: Self::NAME,
            rhythm: Rhythm::WokenSeldom(Stage::Redrives),
            signals: &self.signals,
            metrics: &self.metrics,
            shutdown,
        };
        driver
            .run(|| async {
                let (progress, rest) = self.step().await?;
                // Always rest after a step, so that live traffic gets the database. The rest is short, so shutdown need not
                // interrupt it.
                tokio::time::sleep(rest).await;
                Ok(progress)
            })
            .await;
    }

    /// One step of catching up, and one of a redrive: neither waits for the other to end.
    pub async fn run_once(&self) -> StoreResult<Progress> {
        Ok(self.step().await?.0)
    }

    /// Does what `run_once` does; also returns how long to rest after it.
    async fn step(&self) -> StoreResult<(Progress, Duration)> {
        let started = Instant::now();
        let size = self.step_size.rows();
        let limits =
            StepLimits { examine: size * Self::LOOKS, create: size, default_limit: self.default_limit };
        let steps = self.steps(limits).await.inspect_err(|error| self.step_size.failed(error))?;
        self.metrics.redrives_running(self.store.running().await?);
        if steps.is_empty() {
            return Ok((Progress::IDLE, Duration::ZERO));
        }
        self.metrics.pass(Self::NAME, started.elapsed());
        steps.iter().for_each(|step| self.account(step));
        Ok((Progress::Worked, self.step_size.rest_after(started.elapsed())))
    }

    async fn steps(&self, limits: StepLimits) -> StoreResult<Vec<RedriveStep>> {
        let caught_up = self.store.catch_up(limits, self.catch_up).await;
        if caught_up.as_ref().is_err_and(StoreError::is_of_rows) {
            self.noting(self.store.put_off_catch_up(Self::PUT_OFF).await);
        }
        let advanced = self.store.advance(limits).await;
        if advanced.as_ref().is_err_and(StoreError::is_of_rows) {
            self.noting(self.store.put_off_redrive().await);
        }
        let advanced = match advanced {
            Ok(advanced) => advanced,
            Err(error) => {
                // What was caught up with is to be delivered all the same.
                caught_up.iter().flatten().for_each(|step| self.account(step));
                return Err(error);
            }
        };
        match caught_up {
            Ok(caught_up) => Ok(caught_up.into_iter().chain(advanced).collect()),
            // A subscription that cannot catch up is no reason for a redrive to wait.
            Err(error) if advanced.is_some() => {
                self.cannot_catch_up(&error);
                Ok(advanced.into_iter().collect())
            }
            Err(error) => Err(error),
        }
    }

    /// If postponing fails, too, the same work is simply tried again at once.
    fn noting(&self, put_off: StoreResult<()>) {
        if let Err(error) = put_off {
            self.metrics.store_error(Self::NAME, &error);
        }
    }

    /// Logged when it first happens, and every 30 s while it lasts.
    fn cannot_catch_up(&self, error: &StoreError) {
        self.step_size.failed(error);
        self.metrics.store_error(Self::NAME, error);
        if self.failures.is_due(Instant::now()).is_some() {
            tracing::error!(component = Self::NAME, %error, "a subscription cannot catch up; redrives continue");
        }
    }

    fn account(&self, step: &RedriveStep) {
        let redrive_id = match step.of {
            StepOf::Redrive(id) => Some(id.0),
            StepOf::CatchUp(_) => None,
        };
        self.signals.wake_schedule_for(step.sagas.iter().map(|saga| (saga.subscription_id, 1)));
        self.metrics.redriven(step.created());
        if self.log.wants(false) {
            for saga in &step.sagas {
                tracing::info!(
                    target: DELIVERY_LOG_TARGET,
                    stage = Self::NAME,
                    delivery_status = "Pending",
                    tenant = saga.trace.tenant.as_str(),
                    correlation_id = saga.trace.correlation_id.as_str(),
                    saga_id = saga.requeued.saga_id.0,
                    subscription_id = saga.subscription_id.0,
                    redrive_id,
                    "{}",
                    if redrive_id.is_some() { "sent again" } else { "caught up after its verification" }
                );
            }
        }
        match (step.of, step.ended) {
            // Where nobody catches up that is no news.
            (StepOf::CatchUp(id), Some(RedriveStatus::Cancelled)) if self.catch_up.is_some() => {
                tracing::warn!(
                    subscription_id = id.0,
                    "a subscription no longer catches up with the events before its verification: it was deleted, or \
                     could not be delivered to for longer than callbacks.catch_up"
                );
            }
            (StepOf::Redrive(id), Some(RedriveStatus::Failed)) => {
                tracing::warn!(
                    redrive_id = id.0,
                    "a redrive failed: its subscription cannot be delivered to"
                );
            }
            (StepOf::Redrive(id), Some(status)) => {
                tracing::info!(redrive_id = id.0, %status, "a redrive has ended");
            }
            (StepOf::CatchUp(_), _) | (StepOf::Redrive(_), None) => {}
        }
    }
}
