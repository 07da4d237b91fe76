//! The HTTP API: it translates between HTTP and the pipeline, and decides nothing about deliveries.
//!
//! [`api`] makes the router of every route, [`Probes`] the one for processes that run no API, [`serve`] puts
//! either on a listener. A request passes, from the outside in:
//!
//! 1. `observe`: log, metrics, and the headers that every response has;
//! 2. `linger`: an early refusal waits until the client has stopped sending, so that it is heard;
//! 3. the route's extractors, in the order in which they are written at the handler: `auth` (401, 403), the id
//!    in the path (400), query parameters (422), the body (415, 413, 400);
//! 4. the handler in `api/`: reads the body field by field (`json`, `validate`: 422), calls a store, responds
//!    with a type of `dto/`.
//!
//! Every refusal is a `problem::Problem`. Nothing here panics, and nothing that a client sends causes a 5xx,
//! except 503 when there is too much of it.

mod api;
mod audit;
mod auth;
mod body;
mod body_room;
mod cached;
mod cursor;
mod dashboard;
mod docs;
mod drain_body;
mod dto;
mod errors;
mod explanation;
mod hide_blocked_addresses;
mod json;
mod listener;
mod listing;
mod observe;
mod open_work;
mod openapi;
mod path;
mod probes;
mod problem;
mod query;
mod refreshed;
mod request_rates;
mod state;
mod time;
mod validate;

pub use api::{ApiParts, api};
pub use auth::{generate_key, hash_key};
pub use dashboard::{PortalLook, warm_up};
pub use listener::{Deadlines, ListenerGauges, ListenerOptions, Tls, TlsError, Unmetered, serve};
pub use probes::Probes;
