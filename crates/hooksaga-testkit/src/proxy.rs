//! A server between the product and its database that misbehaves on demand: cuts every connection, refuses new ones, falls
//! silent without closing any, loses connections for good without closing them, or cuts one at the n-th thing that a client says.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The server never hears it.
    BeforeSending,
    /// The server hears it, and the client never hears the response.
    BeforeTheResponse,
}

/// A running proxy. It goes on for as long as its runtime does.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    server: String,
    passing: watch::Sender<bool>,
    /// New connections are closed at once.
    refusing: AtomicBool,
    /// How often everything was cut.
    cuts: watch::Sender<u64>,
    /// What clients have said so far: one piece of bytes that arrived together is one of them.
    said: AtomicU64,
    cut_at: Mutex<Option<(u64, Cut)>>,
    has_cut: AtomicBool,
    /// How often the connections that there were have been lost.
    lost: AtomicU64,
    /// The next connection on which a client says COMMIT is lost, before the server hears it.
    loses_a_commit: AtomicBool,
}

impl Proxy {
    /// Before the server at `host:port`.
    pub async fn before(server: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            server: server.to_owned(),
            passing: watch::Sender::new(true),
            refusing: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            said: AtomicU64::new(0),
            cut_at: Mutex::default(),
            has_cut: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            loses_a_commit: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !shared.refusing.load(Ordering::SeqCst) {
                    tokio::spawn(connect(client, Arc::clone(&shared)));
                }
            }
        });
        Self { port, state }
    }

    /// Before the server that a database URL names: the proxy, and the URL through it.
    pub async fn for_url(url: &str) -> (Self, String) {
        let (login, rest) = url.rsplit_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let proxy = Self::before(server).await;
        let url = format!("{login}@127.0.0.1:{}/{database}", proxy.port);
        (proxy, url)
    }

    /// Closes every connection.
    pub fn cut_all(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Closes every connection, and new ones at once.
    pub fn refuse(&self) {
        self.state.refusing.store(true, Ordering::SeqCst);
        self.cut_all();
    }

    /// New connections go through again.
    pub fn accept_again(&self) {
        self.state.refusing.store(false, Ordering::SeqCst);
    }

    /// From now on nothing goes through, and nothing is closed; new connections are accepted and silent too.
    pub fn fall_silent(&self) {
        self.state.passing.send_replace(false);
    }

    /// Everything goes through again, what was held back first.
    pub fn speak_again(&self) {
        self.state.passing.send_replace(true);
    }

    /// The connections that there are now are silent for good, and are not closed. New ones are not concerned.
    pub fn lose_all(&self) {
        self.state.lost.fetch_add(1, Ordering::SeqCst);
    }

    /// The same for the next connection on which a client says COMMIT, before the server hears it: a client that is
    /// frozen in the middle of its transaction.
    pub fn lose_a_commit(&self) {
        self.state.loses_a_commit.store(true, Ordering::SeqCst);
    }

    /// Whether that has happened, or was not asked for.
    pub fn has_lost_the_commit(&self) -> bool {
        !self.state.loses_a_commit.load(Ordering::SeqCst)
    }

    /// Cuts one connection at the `n`-th thing that clients say from now on, counted from 0.
    pub fn cut_at(&self, n: u64, cut: Cut) {
        let n = self.state.said.load(Ordering::SeqCst) + n;
        *self.state.cut_at.lock().unwrap() = Some((n, cut));
        self.state.has_cut.store(false, Ordering::SeqCst);
    }

    /// Whether that has happened.
    pub fn has_cut(&self) -> bool {
        self.state.has_cut.load(Ordering::SeqCst)
    }

    /// How many things clients have said.
    pub fn said(&self) -> u64 {
        self.state.said.load(Ordering::SeqCst)
    }
}

async fn connect(client: TcpStream, state: Arc<State>) {
    let mut cuts = state.cuts.subscribe();
    cuts.mark_unchanged();
    let Ok(server) = TcpStream::connect(&state.server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Closed when either direction ends, or the connection is cut.
    let over = Arc::new(watch::Sender::new(false));
    let there = tokio::spawn(forward(from_client, to_server, Arc::clone(&state), Arc::clone(&over), true));
    let back = tokio::spawn(forward(from_server, to_client, state, Arc::clone(&over), false));
    let mut seen = over.subscribe();
    tokio::select! {
        _ = cuts.changed() => {}
        _ = seen.wait_for(|over| *over) => {}
    }
    over.send_replace(true);
    let _ = tokio::join!(there, back);
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: Arc<State>,
    over: Arc<watch::Sender<bool>>,
    from_client: bool,
) {
    let mut ended = over.subscribe();
    let passing = async {
        let mut passing = state.passing.subscribe();
        let mut bytes = vec![0; 64 * 1024];
        let (born, mut is_lost) = (state.lost.load(Ordering::SeqCst), false);
        loop {
            let Ok(count) = from.read(&mut bytes).await else { return };
            if count == 0 || passing.wait_for(|passing| *passing).await.is_err() {
                return;
            }
            is_lost |=
                state.lost.load(Ordering::SeqCst) > born || from_client && state.loses(&bytes[..count]);
            if is_lost {
                continue;
            }
            let cut = if from_client { state.cut_now() } else { None };
            if cut == Some(Cut::BeforeSending) {
                return;
            }
            if cut == Some(Cut::BeforeTheResponse) {
                // The other direction ends before the server can respond; what it was told it works on all the same.
                over.send_replace(true);
            }
            if to.write_all(&bytes[..count]).await.is_err() || cut.is_some() {
                return;
            }
        }
    };
    // A direction that cuts sends what it holds first.
    let stopped = async {
        let _ = ended.wait_for(|over| *over).await;
        if from_client {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        biased;
        () = passing => {}
        () = stopped => {}
    }
    over.send_replace(true);
}

impl State {
    fn loses(&self, said: &[u8]) -> bool {
        self.loses_a_commit.load(Ordering::SeqCst)
            && said.windows(6).any(|word| word == b"COMMIT")
            && self.loses_a_commit.swap(false, Ordering::SeqCst)
    }

    fn cut_now(&self) -> Option<Cut> {
        let n = self.said.fetch_add(1, Ordering::SeqCst);
        let mut wanted = self.cut_at.lock().unwrap();
        let (at, cut) = (*wanted)?;
        (at == n).then(|| {
            *wanted = None;
            self.has_cut.store(true, Ordering::SeqCst);
            cut
        })
    }
}
