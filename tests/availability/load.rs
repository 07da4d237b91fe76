//! Clients that post events at a steady pace to every process that is said to be up, as a balancer would spread them, and
//! try each event again elsewhere until it is accepted.

use crate::support::*;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use tokio::task::JoinHandle;

/// How long a client waits for a response: longer than the product waits for a database that is frozen (35 s), so that it
/// is seen what clients are told then.
const WAITS: Duration = Duration::from_secs(45);

/// Where clients may post: a name for each place that does not change, and where it is at present, if it is up.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<Vec<Place>>>);

#[derive(Clone, Default)]
struct Place {
    address: Option<String>,
    /// A balancer has found that it is not ready.
    is_out: bool,
}

impl Places {
    pub(super) fn new(addresses: impl IntoIterator<Item = String>) -> Self {
        let place = |address| Place { address: Some(address), is_out: false };
        Self(Arc::new(Mutex::new(addresses.into_iter().map(place).collect())))
    }

    pub(super) fn set(&self, number: usize, address: Option<&str>) {
        self.0.lock().unwrap()[number] = Place { address: address.map(str::to_owned), is_out: false };
    }

    /// As a balancer: asks every place regularly whether it is ready, sends it nothing while it is not, and does not wait for
    /// one place before it asks another.
    pub(super) fn probe(&self, every: Duration) -> JoinHandle<()> {
        let places = self.clone();
        tokio::spawn(async move {
            let probes = (0..places.count()).map(|number| places.clone().probe_one(number, every));
            // They end with this task.
            probes.collect::<tokio::task::JoinSet<()>>().join_all().await;
        })
    }

    async fn probe_one(self, number: usize, every: Duration) {
        let mut pace = tokio::time::interval(every);
        loop {
            pace.tick().await;
            let Some(address) = self.address(number) else { continue };
            let api = Api::new(&address, None);
            let probe = tokio::time::timeout(every, api.try_get("/readyz")).await;
            let is_out = probe.ok().flatten().is_none_or(|probe| probe.status != 200);
            let place = &mut self.0.lock().unwrap()[number];
            // Another copy may have come in its place.
            if place.address.as_ref() == Some(&address) {
                place.is_out = is_out;
            }
        }
    }

    fn address(&self, number: usize) -> Option<String> {
        self.0.lock().unwrap()[number].address.clone()
    }

    /// Where it is, if it is up.
    pub(super) fn at(&self, number: usize) -> Option<String> {
        let place = self.0.lock().unwrap()[number].clone();
        place.address.filter(|_| !place.is_out)
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// What the clients saw.
#[derive(Default)]
pub(super) struct Seen {
    /// The ids of the events that were accepted, each once.
    pub(super) accepted: Vec<i64>,
    /// What came instead of an acceptance from a place that was up before and after: status (0 if there was no whole
    /// response) and text.
    pub(super) failures: Vec<(u16, String)>,
    /// The same from a place that was on its way down.
    pub(super) last_words: Vec<(u16, String)>,
    /// Connections that were refused: the client went elsewhere with nothing sent.
    pub(super) turned_away: usize,
    pub(super) longest: Duration,
}

pub(super) struct Load {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// This many clients, each of which begins a post at this interval.
    pub(super) fn start(places: &Places, clients: usize, every: Duration) -> Self {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
        let client = |number| {
            let (places, stop, seen) = (places.clone(), Arc::clone(&stop), Arc::clone(&seen));
            tokio::spawn(post(number, every, places, stop, seen))
        };
        Self { clients: (0..clients).map(client).collect(), stop, seen }
    }

    pub(super) fn accepted(&self) -> usize {
        self.seen.lock().unwrap().accepted.len()
    }

    pub(super) fn failures(&self) -> Vec<(u16, String)> {
        self.seen.lock().unwrap().failures.clone()
    }

    /// Waits until this many more are accepted than now.
    pub(super) async fn goes_on(&self, more: usize, within: Duration) {
        let (wanted, began) = (self.accepted() + more, Instant::now());
        while self.accepted() < wanted {
            let (accepted, failures) = (self.accepted(), self.failures());
            assert!(began.elapsed() < within, "{accepted} of {wanted} after {within:?}: {failures:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Posts nothing new from now on.
    pub(super) async fn stop(self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.await.unwrap();
        }
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

async fn post(client: usize, every: Duration, places: Places, stop: Arc<AtomicBool>, seen: Arc<Mutex<Seen>>) {
    let mut pace = tokio::time::interval(every);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0_usize.. {
        pace.tick().await;
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let external_id = format!("{client}-{number}");
        let event = json!({"event_type": "t", "external_id": external_id, "payload": [client, number]});
        let began = Instant::now();
        let mut tried = 0;
        let id = loop {
            let place = (client + number + tried) % places.count();
            if let Some(id) = try_once(&places, place, &event, &seen).await {
                break id;
            }
            tried += 1;
            assert!(began.elapsed() < Duration::from_secs(120), "event {external_id} is never accepted");
            tokio::time::sleep(Duration::from_millis(if tried < places.count() { 5 } else { 100 })).await;
        };
        let mut seen = seen.lock().unwrap();
        seen.accepted.push(id);
        seen.longest = seen.longest.max(began.elapsed());
    }
}

/// The id of the event, if it was accepted there.
async fn try_once(places: &Places, place: usize, event: &Value, seen: &Mutex<Seen>) -> Option<i64> {
    let address = places.at(place)?;
    let api = Api::new(&address, Some(ROOT_KEY));
    let answer = tokio::time::timeout(WAITS, api.post_unless_refused("/v1/events", event)).await;
    let failure = match answer {
        Ok(Ok(Some(answer))) if matches!(answer.status, 200 | 201) => return answer.json()["id"].as_i64(),
        Ok(Ok(Some(answer))) => (answer.status, answer.text().to_owned()),
        Ok(Ok(None)) => (0, "the connection was cut".to_owned()),
        Ok(Err(_)) => {
            seen.lock().unwrap().turned_away += 1;
            return None;
        }
        Err(_) => (0, format!("no response within {WAITS:?}")),
    };
    let is_up = places.at(place).as_deref() == Some(&address);
    let mut seen = seen.lock().unwrap();
    if is_up { &mut seen.failures } else { &mut seen.last_words }.push(failure);
    None
}
