//! What must happen to deliveries, told pass by pass.

mod attempts;
mod descriptors;
mod fairness;
mod leases;
mod life;
mod logging;
mod running;
mod subscriptions;
mod unwritten;
