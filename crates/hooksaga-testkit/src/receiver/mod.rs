//! A webhook receiver on loopback that behaves, or misbehaves, as a test tells it.
//!
//! It speaks just enough HTTP/1.1 over plain TCP, by hand: a test must be able to send what no HTTP
//! library would let it send.

mod behaviour;
mod request;

pub use behaviour::Behaviour;
pub use request::Arrival;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::BufStream,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, timeout_at},
};

/// A running receiver; it stops when dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    arrivals: Mutex<Vec<Arrival>>,
    /// What the next requests to a path get; the last one stays.
    scripts: Mutex<HashMap<String, Vec<Behaviour>>>,
    /// The same for verification challenges.
    verification: Mutex<HashMap<String, Vec<Behaviour>>>,
    connections: watch::Sender<usize>,
    changed: watch::Sender<usize>,
}

impl Receiver {
    /// Starts on a free port. Until told otherwise it answers challenges as it should, and deliveries
    /// with 200.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            arrivals: Mutex::default(),
            scripts: Mutex::default(),
            verification: Mutex::default(),
            connections: watch::Sender::new(0),
            changed: watch::Sender::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, task }
    }

    /// The URL of a path here.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Deliveries to `path` get these answers in turn; the last one stays.
    pub fn answer(&self, path: &str, behaviours: impl IntoIterator<Item = Behaviour>) {
        set(&self.state.scripts, path, behaviours);
    }

    /// Challenges to `path` get these answers in turn; the last one stays.
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
        *self.state.connections.borrow()
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

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
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

async fn accept(listener: TcpListener, state: Arc<State>) {
    // A JoinSet, so that open connections end with the receiver.
    let mut open = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        state.connections.send_modify(|count| *count += 1);
        open.spawn(serve(stream, Arc::clone(&state)));
        while open.try_join_next().is_some() {}
    }
}

/// Serves one connection until it closes or a behaviour ends it.
async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut stream = BufStream::new(stream);
    while let Some(arrival) = request::read(&mut stream).await {
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
