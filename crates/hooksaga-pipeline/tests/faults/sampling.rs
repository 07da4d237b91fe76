//! Selects which calls of a scenario fail when a run does not try all of them. Each run selects others, so that
//! repeated runs cover all calls. `HOOKSAGA_FAULT_OFFSET` repeats a run's choice, which it prints;
//! `HOOKSAGA_FAULT_STRIDE=1` takes every call.

use super::Fault;
use crate::support::backend::Backend;

/// The distance between two places: on the embedded database every one is taken.
pub(super) fn stride(backend: Backend, on_servers: usize) -> usize {
    let usual = if backend == Backend::Sqlite { 1 } else { on_servers };
    number("HOOKSAGA_FAULT_STRIDE").unwrap_or(usual).clamp(1, usual)
}

/// The first place. Each fault begins at another one.
pub(super) fn first(stride: usize, fault: Fault) -> usize {
    (rotation() + fault as usize) % stride
}

/// Another number in each run.
#[expect(clippy::print_stdout, reason = "shown of a run that fails, to repeat it")]
pub(super) fn rotation() -> usize {
    let rotation = number("HOOKSAGA_FAULT_OFFSET").unwrap_or(std::process::id() as usize);
    println!("HOOKSAGA_FAULT_OFFSET={rotation}");
    rotation
}

pub(super) fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}
