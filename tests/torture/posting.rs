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
    pub(super) fn start(addresses: &Arc<Mutex<Vec<String>>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let posting =
            (0..CLIENTS).map(|client| tokio::spawn(post(client, Arc::clone(addresses), Arc::clone(&stop))));
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

async fn post(client: usize, addresses: Arc<Mutex<Vec<String>>>, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut accepted = Vec::new();
    let mut number = 0_usize;
    while !stop.load(Ordering::SeqCst) {
        let external_id = format!("{client}-{number}");
        let event = json!({"event_type": "t", "external_id": external_id, "payload": [client, number]});
        let mut tried = 0;
        let id = loop {
            let known = addresses.lock().unwrap().clone();
            if let Some(address) = known.get((client + tried) % known.len().max(1)) {
                let api = Api::new(address, Some(ROOT_KEY));
                let answer = tokio::time::timeout(Duration::from_secs(3), api.try_post("/v1/events", &event));
                match answer.await {
                    Ok(Some(answer)) if matches!(answer.status, 200 | 201) => {
                        break answer.json()["id"].as_i64().unwrap();
                    }
                    // Whatever is wrong passes; what the client got wrong would not.
                    Ok(Some(answer)) => assert!(answer.status >= 500, "{} {}", answer.status, answer.text()),
                    Ok(None) | Err(_) => {}
                }
            }
            tried += 1;
            assert!(tried < 2000, "event {external_id} is never accepted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        accepted.push(id);
        number += 1;
        tokio::time::sleep(PAUSE).await;
    }
    accepted
}
