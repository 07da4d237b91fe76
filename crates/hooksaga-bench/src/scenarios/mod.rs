//! Scenarios: each has a workspace, servers and receivers of its own, and can be measured alone.
//!
//! *Costs*: what a delivery costs at each rate, what more copies of the server gain, what large payloads cost, and what
//! it is like after a while with history being removed.
//!
//! *Isolation*: whatever other endpoints do, a healthy one's deliveries are hardly later than without them. The healthy
//! endpoint's p95 from post to arrival is measured alone and beside the trouble, on the same machine in the same minute, and
//! compared as SPEC rule FB-1 says: within the larger of twice its value alone and 100 ms more.
//!
//! Not here: names whose resolution hangs. The server asks the system's name servers, and those of a whole machine are not
//! a benchmark's to change; the delivery client's own tests have a name server on loopback for that.

mod beside_hanging;
mod copies;
mod large_fanout;
mod limited;
mod paused;
mod payloads;
mod previously_healthy;
mod rates;
mod redrive;
mod setup;
mod sustained;
mod throttled;
mod verification;

use super::{
    Plan, ProgressDisplay, Report, error::BenchResult, measure::MeasureContext, report::Bar,
    targets::Targets, workspaces::Workspaces,
};
use setup::Setup;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// What a delivery costs at each of several rates.
    Rates,
    /// Several servers on one database.
    Copies,
    /// Payloads of several sizes.
    Payloads,
    /// Minutes of load while history is removed.
    Sustained,
    /// Endpoints that hang, with the default number of worker slots.
    Hanging,
    /// The same with few.
    HangingAt64,
    HangingAt16,
    /// Endpoints that have answered before and begin to hang together, with the default number of worker slots.
    KnownHanging,
    /// The same with few.
    KnownHangingAt64,
    KnownHangingAt16,
    /// Endpoints that hang, with large payloads.
    LargeHanging,
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
    /// An endpoint with a rate limit, with thousands of deliveries waiting.
    Limited,
    /// Thousands of old events that are sent to a new endpoint.
    Redrive,
    /// Thousands of dead letters that are sent again.
    RedriveLetters,
}

impl Scenario {
    pub const ALL: [Self; 20] = [
        Self::Rates,
        Self::Copies,
        Self::Payloads,
        Self::Sustained,
        Self::Hanging,
        Self::HangingAt64,
        Self::HangingAt16,
        Self::KnownHanging,
        Self::KnownHangingAt64,
        Self::KnownHangingAt16,
        Self::LargeHanging,
        Self::Slow,
        Self::Turning,
        Self::Verification,
        Self::Throttled,
        Self::Paused,
        Self::Many,
        Self::Limited,
        Self::Redrive,
        Self::RedriveLetters,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Rates => "rates",
            Self::Copies => "copies",
            Self::Payloads => "payloads",
            Self::Sustained => "sustained",
            Self::Hanging => "hanging",
            Self::HangingAt64 => "hanging-64",
            Self::HangingAt16 => "hanging-16",
            Self::KnownHanging => "known-hanging",
            Self::KnownHangingAt64 => "known-hanging-64",
            Self::KnownHangingAt16 => "known-hanging-16",
            Self::LargeHanging => "large-hanging",
            Self::Slow => "slow",
            Self::Turning => "turning",
            Self::Verification => "verification",
            Self::Throttled => "throttled",
            Self::Paused => "paused",
            Self::Many => "many",
            Self::Limited => "limited",
            Self::Redrive => "redrive",
            Self::RedriveLetters => "redrive-letters",
        }
    }
}

/// The scenarios of one run.
pub(super) struct Scenarios<'a> {
    pub(super) plan: &'a Plan,
    pub(super) workspaces: &'a Workspaces,
    pub(super) progress: &'a dyn ProgressDisplay,
    pub(super) report: &'a mut Report,
}

impl<'a> Scenarios<'a> {
    pub(super) async fn measure(&mut self, scenario: Scenario) -> BenchResult {
        match scenario {
            Scenario::Rates => self.rates().await,
            Scenario::Copies => self.copies().await,
            Scenario::Payloads => self.payloads().await,
            Scenario::Sustained => self.sustained().await,
            Scenario::Hanging => self.hanging(None).await,
            Scenario::HangingAt64 => self.hanging(Some("64")).await,
            Scenario::HangingAt16 => self.hanging(Some("16")).await,
            Scenario::KnownHanging => self.known_hanging(None).await,
            Scenario::KnownHangingAt64 => self.known_hanging(Some("64")).await,
            Scenario::KnownHangingAt16 => self.known_hanging(Some("16")).await,
            Scenario::LargeHanging => self.large_hanging().await,
            Scenario::Slow => self.slow().await,
            Scenario::Turning => self.turning().await,
            Scenario::Verification => self.verification().await,
            Scenario::Throttled => self.throttled().await,
            Scenario::Paused => self.paused().await,
            Scenario::Many => self.many().await,
            Scenario::Limited => self.limited().await,
            Scenario::Redrive => self.redrive().await,
            Scenario::RedriveLetters => self.redrive_letters().await,
        }
    }

    fn targets(&self) -> &'static Targets {
        Targets::of(self.workspaces.database())
    }

    /// Clients and a receiver.
    async fn bench(&self, payload_bytes: usize) -> BenchResult<MeasureContext<'a>> {
        MeasureContext::open(self.progress, self.plan.clients, payload_bytes).await
    }

    async fn setup(&self, name: &str, settings: &[(&'static str, &'static str)]) -> BenchResult<Setup<'a>> {
        Setup::start(self, name, settings).await
    }

    /// Nothing may arrive twice while all is well. What is lost ends a measurement by itself.
    fn add_repeats(&mut self, name: &str, repeats: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
        let repeats = repeats as f64;
        self.report.add(format!("{name}: delivered more than once"), repeats, "", Some(Bar::AtMost(0.0)));
    }
}

/// The middle one of some values.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_name_of_its_own() {
        let mut names = Scenario::ALL.map(Scenario::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Scenario::ALL.len());
    }

    #[test]
    fn the_middle_is_not_the_mean() {
        assert!((middle(vec![9.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!(middle(Vec::new()).abs() < 1e-9);
    }
}
