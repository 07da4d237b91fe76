//! Waking components in other processes: a hint, never needed for correctness.

use crate::StoreResult;
use async_trait::async_trait;
use std::fmt;

/// The stages that can be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    Verifier,
    Router,
    /// Sagas became due.
    Schedule,
    /// Jobs finished.
    Apply,
    Worker,
    /// A subscription is active and verified again: its parked jobs can go on.
    Resume,
    DeadLetters,
    /// An endpoint said that it is gone, or was verified.
    Caretaker,
    /// A redrive was started, or a subscription verified.
    Redrives,
}

impl Stage {
    pub const ALL: &'static [Self] = &[
        Self::Verifier,
        Self::Router,
        Self::Schedule,
        Self::Apply,
        Self::Worker,
        Self::Resume,
        Self::DeadLetters,
        Self::Caretaker,
        Self::Redrives,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verifier => "verifier",
            Self::Router => "router",
            Self::Schedule => "schedule",
            Self::Apply => "apply",
            Self::Worker => "worker",
            Self::Resume => "resume",
            Self::DeadLetters => "dead_letters",
            Self::Caretaker => "caretaker",
            Self::Redrives => "redrives",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Signals between processes on one database.
#[async_trait]
pub trait Wakeups: Send + Sync {
    /// Tells other processes that these stages have work. Callers coalesce.
    async fn notify(&self, stages: &[Stage]) -> StoreResult<()>;

    /// Opens a listener; `None` where the back end has no signals (the poll has to do).
    async fn listen(&self) -> StoreResult<Option<Box<dyn WakeListener>>>;
}

/// An open listener.
#[async_trait]
pub trait WakeListener: Send {
    /// The next stage that another process woke. An error ends the listener: open a new one.
    async fn next(&mut self) -> StoreResult<Stage>;
}

/// For back ends with a single process: there is no other process to notify.
#[derive(Clone, Copy, Debug)]
pub struct NoWakeups;

#[async_trait]
impl Wakeups for NoWakeups {
    async fn notify(&self, _stages: &[Stage]) -> StoreResult<()> {
        Ok(())
    }

    async fn listen(&self) -> StoreResult<Option<Box<dyn WakeListener>>> {
        Ok(None)
    }
}
