//! A webhook receiver on loopback that behaves, or misbehaves, as a test tells it.

mod behaviour;
mod request;

pub use behaviour::Behaviour;
pub use request::Arrival;

use crate::server::{Server, read_request};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    net::TcpStream,
    sync::watch,
    time::{Instant, timeout_at},
};

/// A running receiver; it stops when dropped.
#[derive(Debug)]
pub struct Receiver {
    server: Server,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    arrivals: Mutex<Vec<Arrival>>,
    /// What the next requests to a path get; the last one stays.
    scripts: Mutex<HashMap<String, Vec<Behaviour>>>,
    /// The same for verification challenges.
    verification: Mutex<HashMap<String, Vec<Behaviour>>>,
    changed: watch::Sender<usize>,
}

impl Receiver {
    /// Starts on a free port. Until told otherwise it answers challenges as it should, and deliveries
    /// with 200.
    pub async fn start() -> Self {
        let state = Arc::new(State {
            arrivals: Mutex::default(),
            scripts: Mutex::default(),
            verification: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let shared = Arc::clone(&state);
        let server = Server::start(move |stream, _| serve(stream, Arc::clone(&shared))).await;
        Self { server, state }
    }

    /// The URL of a path here.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }

    /// Deliveries to `path` get these responses one after another; the last one repeats.
    pub fn answer(&self, path: &str, behaviours: impl IntoIterator<Item = Behaviour>) {
        set(&self.state.scripts, path, behaviours);
    }

    /// Challenges to `path` get these responses one after another; the last one repeats.
    pub fn answer_challenge(&self, path: &str, behaviours: impl IntoIterator<Item = Behaviour>) {
        set(&self.state.verification, path, behaviours);
    }

    /// Deliveries (not challenges) that arrived at `path`, in order.
    pub fn deliveries(&self, path: &str) -> Vec<Arrival> {
        self.select(|arrival| arrival.path == path && !arrival.is_challenge())
    }

    /// Challenges that arrived at `path`, in order.
    pub fn challenges(&self, path: &str) -> Vec<Arrival> {
        self.select(|arrival| arrival.path == path && arrival.is_challenge())
    }

    /// How many connections were ever accepted.
    pub fn connections(&self) -> usize {
        self.server.accepted()
    }

    /// Waits until at least `count` deliveries arrived at `path`; panics after `patience`.
    pub async fn wait_for(&self, path: &str, count: usize, patience: Duration) -> Vec<Arrival> {
        let deadline = Instant::now() + patience;
        let mut changed = self.state.changed.subscribe();
        loop {
            let arrived = self.deliveries(path);
            if arrived.len() >= count {
                return arrived;
            }
            let more = timeout_at(deadline, changed.changed()).await;
            assert!(
                more.is_ok(),
                "{} of {count} deliveries arrived at {path} in {patience:?}",
                arrived.len()
            );
        }
    }

    fn select(&self, wanted: impl Fn(&Arrival) -> bool) -> Vec<Arrival> {
        self.state.arrivals.lock().unwrap().iter().filter(|arrival| wanted(arrival)).cloned().collect()
    }
}

fn set(
    scripts: &Mutex<HashMap<String, Vec<Behaviour>>>,
    path: &str,
    behaviours: impl IntoIterator<Item = Behaviour>,
) {
    let mut script: Vec<_> = behaviours.into_iter().collect();
    assert!(!script.is_empty(), "at least one behaviour");
    script.reverse();
    scripts.lock().unwrap().insert(path.to_owned(), script);
}

fn next(scripts: &Mutex<HashMap<String, Vec<Behaviour>>>, path: &str) -> Option<Behaviour> {
    let mut scripts = scripts.lock().unwrap();
    let script = scripts.get_mut(path)?;
    if script.len() > 1 { script.pop() } else { script.last().cloned() }
}

/// Serves one connection until it closes or a behaviour ends it.
async fn serve(mut stream: TcpStream, state: Arc<State>) {
    while let Some(request) = read_request(&mut stream).await {
        let arrival = Arrival::from(request);
        let behaviour = if arrival.is_challenge() {
            next(&state.verification, &arrival.path).unwrap_or(Behaviour::AnswerChallenge)
        } else {
            next(&state.scripts, &arrival.path).unwrap_or(Behaviour::Status(200))
        };
        state.arrivals.lock().unwrap().push(arrival.clone());
        state.changed.send_modify(|count| *count += 1);
        if !behaviour.perform(&mut stream, &arrival).await {
            return;
        }
    }
}
