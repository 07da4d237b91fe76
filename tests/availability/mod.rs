//! What is promised when parts of an installation go away under load: nodes of the database, its primary, copies of the
//! product. Every time it is checked that no event that was accepted is lost, that no result was applied twice, that nothing
//! was sent more often than lost leases explain, and that everything ended within 40 s.
//!
//! The suite has a short version of each. `make availability` has the long ones: `HOOKSAGA_AVAILABILITY_SECONDS` of load
//! before and after each fault, and every fault in turn.

mod galera;
mod load;
mod rolling;
mod standby;
mod upgrading;

use crate::{support::*, torture::oracles};
use load::{Load, Places, Seen};

/// Everything that was accepted ends within this time after the last post.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);

/// About 150 events a second, if the machine can.
const CLIENTS: usize = 15;
const EVERY: Duration = Duration::from_millis(100);

/// Where no database is frozen, every event is accepted within this time.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(20);

/// How long the load lasts between faults; nothing in the short version.
fn long() -> Option<Duration> {
    let seconds = std::env::var("HOOKSAGA_AVAILABILITY_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number")))
}

/// A lease outlives a fault of the database that lasts 5 s, and what a dead process had leased is sent again in time.
fn settings(installation: Installation) -> Installation {
    installation
        .with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "2s")
        .with("HOOKSAGA_WORKER_LEASE_DURATION", "12s")
        .with("HOOKSAGA_LOG_DELIVERIES", "none")
}

/// For tests in which no request may be repeated: on a machine that is busy with other tests an endpoint may need seconds
/// to respond, and an attempt that has failed is repeated by right.
fn patient_settings(installation: Installation) -> Installation {
    settings(installation)
        .with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "10s")
        .with("HOOKSAGA_WORKER_LEASE_DURATION", "25s")
}

/// The subscriptions that every event goes to, and where.
async fn subscribe(api: &Api, receiver: &Receiver) -> Vec<(i64, &'static str)> {
    let mut subscriptions = Vec::new();
    for path in ["/one", "/two"] {
        subscriptions.push((api.verified_subscription("t", &receiver.url(path)).await.0, path));
    }
    subscriptions
}

/// Waits until everything has ended, and checks every promise.
#[expect(clippy::print_stdout, reason = "the figures of a run, for whoever asked for it")]
async fn check(what: &str, api: &Api, seen: &Seen, subscriptions: &[(i64, &str)], receiver: &Receiver) {
    let began = std::time::Instant::now();
    oracles::wait_until_settled(api, SETTLED_WITHIN).await;
    let settled = began.elapsed();
    // A node of a cluster may show that a queue is empty before it has heard of what was added elsewhere.
    tokio::time::sleep(Duration::from_millis(500)).await;
    oracles::wait_until_settled(api, SETTLED_WITHIN).await;
    let found = oracles::check(api, &seen.accepted, subscriptions, receiver).await;
    println!(
        "{what}: {} events accepted, {found}; {} responses other than accepted from what was up, {} connections refused; \
         the longest post {:.1} s; settled {:.1} s after the last one",
        seen.accepted.len(),
        seen.failures.len(),
        seen.turned_away,
        seen.longest.as_secs_f64(),
        settled.as_secs_f64()
    );
}

/// Every delivery was one request: none was sent again, and none has failed and was tried once more.
async fn nothing_was_sent_twice(api: &Api, subscriptions: &[(i64, &str)], receiver: &Receiver) {
    let mut seen = std::collections::HashSet::new();
    for (_, path) in subscriptions {
        for arrival in receiver.deliveries(path) {
            let id = arrival.header("webhook-id").unwrap().to_owned();
            if seen.insert((*path, id.clone())) {
                continue;
            }
            let event = id.trim_start_matches("evt_");
            let deliveries = api.get(&format!("/v1/deliveries?event_id={event}")).await.expect(200);
            let mut attempts = Vec::new();
            for delivery in deliveries["items"].as_array().unwrap() {
                attempts.push(api.get(&format!("/v1/deliveries/{}", delivery["saga_id"])).await.expect(200));
            }
            panic!("{path} got {id} twice: {attempts:#?}");
        }
    }
}
