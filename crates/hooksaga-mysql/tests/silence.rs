//! A server that never responds: connections that are open and dead. No call waits forever, and the next ones go to
//! new connections.

use crate::{
    adapter::{failure, fresh, options},
    connecting::event,
};
use hooksaga_mysql::connect;
use hooksaga_store::{Stage, StoreError, TenantScope};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Which bytes still go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passing {
    All,
    /// Nothing on connections that are open; new ones work.
    NewConnections,
    Nothing,
}

/// A server between the product and the database that can fall silent without closing anything.
struct Proxy {
    port: u16,
    passing: watch::Sender<Passing>,
}

impl Proxy {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (passing, seen) = watch::channel(Passing::All);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let born_in = *seen.borrow();
                let server = TcpStream::connect(&server).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let (there, back) = (seen.clone(), seen.clone());
                tokio::spawn(async move { forward(&mut from_client, &mut to_server, there, born_in).await });
                tokio::spawn(async move { forward(&mut from_server, &mut to_client, back, born_in).await });
            }
        });
        Self { port, passing }
    }
}

/// Forwards until the end, or holds everything back for as long as it is to be silent.
async fn forward(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    mut passing: watch::Receiver<Passing>,
    born_in: Passing,
) {
    let mut bytes = [0; 4096];
    loop {
        let Ok(count) = from.read(&mut bytes).await else { return };
        let passes = |now: &Passing| *now == Passing::All || *now == born_in && *now != Passing::Nothing;
        if count == 0 || passing.wait_for(passes).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// The URL of the same database through a proxy.
async fn proxied(url: &str) -> (Proxy, String) {
    let (login, rest) = url.rsplit_once('@').unwrap();
    let (server, database) = rest.split_once('/').unwrap();
    let proxy = Proxy::before(server.to_owned()).await;
    let url = format!("{login}@127.0.0.1:{}/{database}", proxy.port);
    (proxy, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_are_left_for_new_ones() {
    let db = fresh().await;
    let (proxy, url) = proxied(&db.plain_url).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    let mut listener = stores.wakeups.listen().await.unwrap().unwrap();
    // Several idle connections, all of which lead nowhere from now on.
    let ingest = Arc::clone(&stores.ingest);
    let append = || async { ingest.append(&[event("1", None)]).await };
    for result in [tokio::join!(append(), append()), tokio::join!(append(), append())] {
        result.0.unwrap();
        result.1.unwrap();
    }
    // A connection is back in its pool a moment after its call has ended.
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.passing.send(Passing::NewConnections).unwrap();

    let began = Instant::now();
    let (appended, heard) = tokio::join!(append(), listener.next());
    let error = failure(appended);
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("did not respond"), "{error}");
    let error = failure::<Stage>(heard);
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    // No second call pays for the other idle connections.
    let began = Instant::now();
    append().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_unavailable_and_then_used_again() {
    let db = fresh().await;
    let (proxy, url) = proxied(&db.plain_url).await;
    let stores = connect(options(&url)).await.unwrap().stores();
    stores.reader.stats(&TenantScope::All).await.unwrap();
    proxy.passing.send(Passing::Nothing).unwrap();

    let began = Instant::now();
    let silent = tokio::join!(stores.reader.ready(), stores.worker.leave(1), connect(options(&url)));
    for error in [failure(silent.0), failure(silent.1), failure(silent.2)] {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(error.to_string().contains("did not respond"), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    proxy.passing.send(Passing::All).unwrap();
    stores.reader.ready().await.unwrap();
    stores.worker.leave(1).await.unwrap();
}
