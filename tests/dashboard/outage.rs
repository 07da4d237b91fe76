//! The database away: what was on the screen stays there, and a page that is asked for says what is the matter.

use super::*;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A way to the database that can be closed.
struct Gate {
    port: u16,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn to(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = watch::Sender::new(true);
        let gate = open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let (address, mut gate) = (address.clone(), gate.clone());
                tokio::spawn(async move {
                    if !*gate.borrow() {
                        return;
                    }
                    let Ok(mut to) = TcpStream::connect(address).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut from, &mut to) => {}
                        _ = gate.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { port, open }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_stays_readable_and_says_that_the_database_is_away() {
    let installation = Installation::postgres().await;
    let url = installation.database_url().unwrap().to_owned();
    let (_, rest) = url.split_once('@').unwrap();
    let address = rest.split('/').next().unwrap();
    let gate = Gate::to(address.to_owned()).await;
    let installation = installation
        .with("HOOKSAGA_DATABASE_URL", &url.replace(address, &format!("127.0.0.1:{}", gate.port)));
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/in")).await;
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "Completed").await;
    let page = signed_in(&server).await;
    page.see("All is well").await;

    gate.open.send_replace(false);
    page.see("This page cannot be refreshed").await;
    assert!(page.text().await.contains("All is well"), "what was known is still there");
    let other = Page::of(&server.url()).await;
    other.open("/sign-in").await;
    sign_in(&other, ROOT_KEY).await;
    other.open("/deliveries").await;
    other.see("The database is not available").await;
    assert_eq!(other.barriers().await, Vec::<String>::new());

    gate.open.send_replace(true);
    page.until("document.getElementById('stale').hidden").await;
    page.see("All is well").await;
    assert_calm(&page);
    assert_calm(&other);
}
