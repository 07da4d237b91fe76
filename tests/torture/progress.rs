//! A fault that lasts stops nobody else: an event that is posted after it began comes through in time.

use super::posting::accept;
use crate::support::*;
use std::{sync::Mutex, time::Instant};

/// Posts an event and waits until its delivery to this subscription, whose endpoint works, is complete. The event's id, and how
/// long that took.
pub(super) async fn one_event_completes(
    addresses: &Mutex<Vec<String>>,
    subscription: i64,
    external_id: &str,
    within: Duration,
) -> (i64, Duration) {
    let began = Instant::now();
    let complete = async {
        let event = accept(addresses, 0, external_id).await;
        for asked in 0_usize.. {
            let known = addresses.lock().unwrap().clone();
            let api = Api::new(&known[asked % known.len()], Some(ROOT_KEY));
            if is_delivered(&api, event, subscription).await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        event
    };
    let event = tokio::time::timeout(within, complete).await;
    (
        event.unwrap_or_else(|_| panic!("{external_id}: no event comes through within {within:?}")),
        began.elapsed(),
    )
}

async fn is_delivered(api: &Api, event: i64, subscription: i64) -> bool {
    let path = format!("/v1/deliveries?event_id={event}");
    let answer = tokio::time::timeout(Duration::from_secs(3), api.try_get(&path)).await.ok().flatten();
    answer.filter(|answer| answer.status == 200).is_some_and(|answer| {
        let found = answer.json();
        let deliveries = found["items"].as_array().unwrap();
        deliveries.iter().any(|one| one["subscription_id"] == subscription && one["status"] == "Completed")
    })
}
