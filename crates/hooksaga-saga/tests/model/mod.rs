//! A model check of the delivery protocol: the transactions that docs/STATE_MACHINE.md numbers 1 to 8, the
//! lease cleaner and the hand back, around the real [`hooksaga_saga::step`], `apply_result`,
//! `may_create_job` and `send_again`.
//!
//! | file | holds |
//! |---|---|
//! | `state` | the database reduced to what matters, and each process's memory |
//! | `appending` | a small model of its own: two who append one `external_id`, through the API and the outbox |
//! | `announcing` | a small model of its own: how the caretaker notes and announces a verification |
//! | `back_ends` | the tests: each back end's exact set of guards, each left out |
//! | `caring` | a small model of its own: what the caretaker does |
//! | `limiting` | a small model of its own: rate limits, at admission and at the start |
//! | `missing` | a small model of its own: whom an event missed is counted while it is routed |
//! | `removing` | a small model of its own: what the janitor removes, and who sends again meanwhile |
//! | `guards` | every guard of the protocol as a switch, and the size of a run |
//! | `steps/` | what each component can do next, one file per component |
//! | `invariants` | what must hold in every state and across every step, and what "finished" means |
//! | `search` | breadth-first search, the check that everything finishes, readable traces |
//! | `whole` | the tests: the protocol as it is |
//! | `left_out` | the tests: the protocol with guards left out, so that the check is seen to fail |
//! | `redriving` | a model of its own: redrives, and catching up after a verification |
//!
//! One event, one subscription or two, two copies of every component. Faults are not counted: any number of
//! crashes (of processes, and of a database that forgets deferred commits), lost acknowledgements, expired leases,
//! pauses and hand backs may happen, because none of them leaves a trace that grows. Time is not a state either: whoever
//! reads the clock may read anything that makes a difference (a retry is due, or not yet; the clock stands still, goes
//! back, goes on).

mod announcing;
mod appending;
mod back_ends;
mod caring;
mod guards;
mod invariants;
mod left_out;
mod limiting;
mod missing;
mod redriving;
mod removing;
mod search;
mod state;
mod steps;
mod whole;
