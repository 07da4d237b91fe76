//! Isolation: whatever other endpoints do, a healthy one's deliveries are hardly later than without them.
//!
//! Each scenario has a place, a server and receivers of its own. The healthy endpoint's p95 from post to arrival is measured
//! alone and beside the trouble, on the same machine in the same minute, and compared as SPEC rule FB-1 says: within the
//! larger of twice its value alone and 100 ms more.
//!
//! Not here: names whose resolution hangs. The server asks the system's name servers, and those of a whole machine are not
//! a benchmark's to change; the delivery client's own tests have a name server on loopback for that.

mod beside;
mod many;
mod paused;
mod stage;
mod throttled;
mod verification;

use super::{Report, Reporter, error::BenchResult, site::Site};
use stage::Stage;

/// What a healthy endpoint is measured beside, or what is measured of one that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Endpoints that hang, with the default number of worker slots.
    Hanging,
    /// The same with few.
    HangingAt64,
    HangingAt16,
    /// Endpoints that answer slowly, with thousands of deliveries waiting.
    Slow,
    /// An endpoint at full load that begins to hang.
    Turning,
    /// Endpoints that want to be verified and hang.
    Verification,
    /// An endpoint that refuses what is too much for it.
    Throttled,
    /// A paused subscription with open jobs.
    Paused,
    /// An event type with thousands of subscribers.
    Many,
}

impl Scenario {
    pub const ALL: [Self; 9] = [
        Self::Hanging,
        Self::HangingAt64,
        Self::HangingAt16,
        Self::Slow,
        Self::Turning,
        Self::Verification,
        Self::Throttled,
        Self::Paused,
        Self::Many,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hanging => "hanging",
            Self::HangingAt64 => "hanging-64",
            Self::HangingAt16 => "hanging-16",
            Self::Slow => "slow",
            Self::Turning => "turning",
            Self::Verification => "verification",
            Self::Throttled => "throttled",
            Self::Paused => "paused",
            Self::Many => "many",
        }
    }
}

/// The scenarios of one run.
pub(super) struct Isolation<'a> {
    pub(super) site: &'a Site,
    pub(super) progress: &'a dyn Reporter,
    pub(super) clients: usize,
    pub(super) payload_bytes: usize,
    /// Events a second for the healthy endpoint.
    pub(super) rate: u32,
    pub(super) report: &'a mut Report,
}

impl Isolation<'_> {
    pub(super) async fn measure(&mut self, scenario: Scenario) -> BenchResult {
        match scenario {
            Scenario::Hanging => self.hanging(None).await,
            Scenario::HangingAt64 => self.hanging(Some("64")).await,
            Scenario::HangingAt16 => self.hanging(Some("16")).await,
            Scenario::Slow => self.slow().await,
            Scenario::Turning => self.turning().await,
            Scenario::Verification => self.verification().await,
            Scenario::Throttled => self.throttled().await,
            Scenario::Paused => self.paused().await,
            Scenario::Many => self.many().await,
        }
    }

    async fn stage(&self, name: &str, settings: &[(&'static str, &'static str)]) -> BenchResult<Stage<'_>> {
        Stage::set(self, name, settings).await
    }
}
