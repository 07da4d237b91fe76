//! A client that posts events all the time, and tries each again until it is accepted.

use crate::support::*;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};
use tokio::task::JoinHandle;

pub(super) struct Posting {
    stop: Arc<AtomicBool>,
    posting: Vec<JoinHandle<Vec<i64>>>,
}

/// Posts at a time, and the pause of each between two events.
const CLIENTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(60);

impl Posting {
    /// `first`: a number beyond those of all events that were posted before.
    pub(super) fn start(addresses: &Arc<Mutex<Vec<String>>>, first: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let posting = (0..CLIENTS)
            .map(|client| tokio::spawn(post(client, first, Arc::clone(addresses), Arc::clone(&stop))));
        Self { posting: posting.collect(), stop }
    }

    /// Posts nothing new from now on; the ids of all events that were accepted.
    pub(super) async fn stop(self) -> Vec<i64> {
        self.stop.store(true, Ordering::SeqCst);
        let mut accepted = Vec::new();
        for client in self.posting {
            accepted.extend(client.await.unwrap());
        }
        accepted
    }
}

async fn post(
    client: usize,
    first: usize,
    addresses: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
) -> Vec<i64> {
    let mut accepted = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let number = first + accepted.len();
        accepted.push(accept(&addresses, client, &format!("{client}-{number}")).await);
        tokio::time::sleep(PAUSE).await;
    }
    accepted
}

/// Posts one event to one API after another until it is accepted; its id.
pub(super) async fn accept(addresses: &Mutex<Vec<String>>, first: usize, external_id: &str) -> i64 {
    let event = json!({"event_type": "t", "external_id": external_id, "payload": external_id});
    let mut tried = 0;
    loop {
        let known = addresses.lock().unwrap().clone();
        if let Some(address) = known.get((first + tried) % known.len().max(1)) {
            let api = Api::new(address, Some(ROOT_KEY));
            let answer = tokio::time::timeout(Duration::from_secs(3), api.try_post("/v1/events", &event));
            match answer.await {
                Ok(Some(answer)) if matches!(answer.status, 200 | 201) => {
                    return answer.json()["id"].as_i64().unwrap();
                }
                // Whatever is wrong passes; what the client got wrong would not.
                Ok(Some(answer)) => assert!(answer.status >= 500, "{} {}", answer.status, answer.text()),
                Ok(None) | Err(_) => {}
            }
        }
        tried += 1;
        assert!(tried < 2000, "event {external_id} is never accepted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
