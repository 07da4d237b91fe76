//! The HTTP server of all tests: it does exactly what a test says, byte by byte. It parses HTTP/1.1 itself, because a
//! test must be able to send what no HTTP library would let it send.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// A server that hands every connection to a script. When it is dropped, its connections end too.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    /// `script` gets each connection and its number, from 1.
    pub async fn start<F, S>(script: S) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        S: Fn(TcpStream, usize) -> F + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                // Fails only on a connection that is closed already, which the script will see.
                let _ = stream.set_nodelay(true);
                let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                open.spawn(script(stream, number));
                while open.try_join_next().is_some() {}
            }
        });
        Self { address, accepted, task }
    }

    /// Answers every request on a connection with the same bytes, and keeps it open.
    pub async fn always(response: impl Into<Vec<u8>>) -> Self {
        let response: Arc<[u8]> = response.into().into();
        Self::start(move |mut stream, _| {
            let response = Arc::clone(&response);
            async move {
                while read_request(&mut stream).await.is_some() {
                    if stream.write_all(&response).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request as it was received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The request line and the headers.
    pub head: String,
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    /// The value of a header that is there exactly once.
    pub fn header(&self, name: &str) -> &str {
        let mut values = self.values(name);
        let value = values.next().unwrap_or_else(|| panic!("no header {name} in {}", self.head));
        assert!(values.next().is_none(), "header {name} twice in {}", self.head);
        value
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.head.lines().filter_map(move |line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// The next request of a connection; `None` once the client has closed it.
pub async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> Option<ReceivedRequest> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let mut body = bytes.split_off(head_end + 4);
    let request = ReceivedRequest { head: String::from_utf8(bytes).unwrap(), body: Vec::new() };
    let length: usize = request.values("content-length").next().unwrap_or("0").parse().unwrap();
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(ReceivedRequest { body, ..request })
}

/// Reads one request and writes these bytes.
pub async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, response: &[u8]) {
    read_request(stream).await.expect("a request");
    stream.write_all(response).await.expect("the client reads");
}

/// Keeps a connection open until the client closes it.
pub async fn hold<S: AsyncRead + Unpin>(mut stream: S) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}
