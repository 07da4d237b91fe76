//! What must happen to deliveries, told pass by pass.

mod attempts;
mod descriptors;
mod fairness;
mod leases;
mod life_cycle;
mod logging;
mod rate_limits;
mod running;
mod subscriptions;
mod tampered;
mod unwritable_results;
