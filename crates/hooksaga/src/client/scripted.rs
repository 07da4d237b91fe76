//! A server for tests that returns the given responses in order, and records the requests.

use hooksaga_testkit::server::{Server, read_request};
use serde_json::Value;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

/// One response.
#[derive(Clone)]
pub(crate) struct Reply(u16, String);

impl Reply {
    pub(crate) fn new(status: u16, body: &Value) -> Self {
        Self(status, body.to_string())
    }

    /// None: the connection is closed instead.
    pub(crate) fn lost() -> Self {
        Self(0, String::new())
    }
}

/// Starts a server that responds to this many requests per connection, takes one more, and closes; its address and how many
/// connections it has had.
pub(crate) async fn closing_after(requests: usize) -> (String, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let server = Server::start(move |mut stream: TcpStream, _| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            for _ in 0..requests {
                if read_request(&mut stream).await.is_none() {
                    return;
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
            }
            read_request(&mut stream).await;
        }
    })
    .await;
    (keep(server), connections)
}

/// Keeps a server until the test's runtime ends; its address.
fn keep(server: Server) -> String {
    let url = format!("http://{}", server.address);
    tokio::spawn(async move {
        let _server = server;
        std::future::pending::<()>().await;
    });
    url
}

/// The bodies that were sent.
pub(crate) struct Requests(Arc<Mutex<Vec<Value>>>);

impl Requests {
    pub(crate) fn take(&self) -> Vec<Value> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }
}

/// Starts it; returns its address. Beyond the script every request gets 500.
pub(crate) async fn serve(script: Vec<Reply>) -> (String, Requests) {
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let bodies = Arc::clone(&asked);
    let server =
        Server::start(move |stream, _| converse(stream, Arc::clone(&script), Arc::clone(&bodies))).await;
    (keep(server), Requests(asked))
}

async fn converse(mut stream: TcpStream, script: Arc<Mutex<VecDeque<Reply>>>, asked: Arc<Mutex<Vec<Value>>>) {
    while let Some(request) = read_request(&mut stream).await {
        let body = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        asked.lock().expect("not poisoned").push(body);
        let reply = script.lock().expect("not poisoned").pop_front();
        let Reply(status, body) = reply.unwrap_or(Reply(500, "the script has ended".to_owned()));
        if status == 0 {
            return;
        }
        let head =
            format!("HTTP/1.1 {status} Reply\r\nretry-after: 0\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
            return;
        }
    }
}
