//! What to measure.

use crate::scenarios::Scenario;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Plan {
    pub events: u64,
    pub clients: usize,
    pub payload_bytes: usize,
    /// Endpoints per event in the fan-out measurement; 0 leaves it out.
    pub fan_out: usize,
    /// Events a second in the latency measurements; 0 leaves them out.
    pub rate: u32,
    /// How long a latency measurement takes.
    pub seconds: u32,
    /// Finished deliveries to measure beside; 0 leaves it out.
    pub history: u64,
    /// Waiting deliveries to measure beside; 0 leaves it out.
    pub backlog: u64,
    /// Numbers of hanging endpoints to measure beside.
    pub hanging: Vec<usize>,
    /// Deliveries that wait for the hanging endpoints.
    pub hanging_backlog: usize,
    /// Throughput, latency and what the fields above name.
    pub speed: bool,
    pub scenarios: Vec<Scenario>,
    /// Events a second whose costs are measured.
    pub rates: Vec<u32>,
    /// How long each of them takes, in seconds.
    pub rate_seconds: u32,
    /// Numbers of servers on one database.
    pub copies: Vec<usize>,
    /// Sizes of payloads, in bytes.
    pub sizes: Vec<usize>,
    /// How long the load is sustained, in minutes.
    pub minutes: u32,
    /// Deliveries that wait for an endpoint with a rate limit, and events and dead letters that are sent again.
    pub waiting: usize,
    /// What another product reaches.
    pub peer: OtherProduct,
    /// After that no further scenario begins.
    pub longest: Duration,
    /// The database is an empty one that was named for this.
    pub given: bool,
}

/// Deliveries a second of another product on a machine of this kind.
#[derive(Clone, Copy, Debug)]
pub struct OtherProduct {
    pub single: f64,
    /// With ten endpoints per event.
    pub fan_out: f64,
}

impl Plan {
    /// Events a second for a healthy endpoint.
    pub(crate) fn healthy_rate(&self) -> u32 {
        const DEFAULT: u32 = 300;
        if self.rate == 0 { DEFAULT } else { self.rate }
    }
}
