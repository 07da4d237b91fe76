//! The saga's proof: properties of the pure functions, and a model check of the protocol around them.
//!
//! - [`properties`] throws arbitrary input at every public function.
//! - [`simulation`] runs the allotment with endpoints that throttle, hang and are slow, in simulated time.
//! - [`model`] explores every interleaving of the pipeline's transactions, with crashes, lost
//!   acknowledgements and expired leases at any point, and shows which guards the protocol needs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod model;
mod properties;
mod simulation;
