//! Far more payload waits for a slow endpoint than a process may hold: it holds no more than it may, and all is delivered.

use super::*;
use hooksaga_testkit::server::{Server as Endpoint, read_request};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::{io::AsyncWriteExt, task::JoinSet};

on_every_back_end! {
    large_jobs_take_bounded_memory,
}

const MIB: usize = 1 << 20;

/// All that a process with every component may ever hold, its code and its other memory included.
const MOST_MIB: u64 = 256;

/// Posts at a time.
const CLIENTS: usize = 8;

/// That bound depends on it, however the program was built.
#[tokio::test]
async fn the_allocator_gives_large_memory_back_at_once() {
    // jemalloc prints its configuration. Where it stands in the place of the C library's malloc the variable has no prefix.
    let installation = Installation::sqlite()
        .with("_RJEM_MALLOC_CONF", "confirm_conf:true")
        .with("MALLOC_CONF", "confirm_conf:true");
    let printed = run(&installation, &["--version"]).await.stderr;
    let printed = String::from_utf8_lossy(&printed);
    assert!(printed.contains("Set conf value: oversize_threshold:524288"), "{printed}");
}

/// An endpoint that takes one payload of a MiB every 300 ms on each connection, once it is open.
struct Gate {
    endpoint: Endpoint,
    is_open: Arc<AtomicBool>,
    arrived: Arc<AtomicUsize>,
}

impl Gate {
    async fn start() -> Self {
        let (is_open, arrived) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (opened, counter) = (Arc::clone(&is_open), Arc::clone(&arrived));
        let endpoint = Endpoint::start(move |mut stream, _| {
            let (opened, counter) = (Arc::clone(&opened), Arc::clone(&counter));
            async move {
                while read_request(&mut stream).await.is_some_and(|request| request.body.len() == MIB) {
                    while !opened.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
                        return;
                    }
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
        .await;
        Self { endpoint, is_open, arrived }
    }
}

#[expect(clippy::print_stdout, reason = "the figure of a run, for whoever asked for it")]
async fn large_jobs_take_bounded_memory(installation: Installation) {
    let jobs: usize = std::env::var("HOOKSAGA_LARGE_JOBS").map_or(512, |text| text.parse().unwrap());
    let installation = installation
        .with("HOOKSAGA_CALLBACKS_ALLOW_TRUSTED", "true")
        .with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "300s")
        .with("HOOKSAGA_WORKER_LEASE_DURATION", "330s");
    let server = installation.serve().await;
    let (api, gate) = (server.api(), Gate::start().await);
    let new = json!({"event_type": "t", "callback_url": gate.endpoint.url()});
    let id = api.post("/v1/subscriptions", &new).await.expect(201)["id"].as_i64().unwrap();
    api.post(&format!("/v1/subscriptions/{id}/verify"), &json!({"trusted": true})).await;
    eventually("it is vouched for", || async {
        api.subscription(id).await["verified"].as_bool()?.then_some(())
    })
    .await;

    let event = Arc::new(json!({"event_type": "t", "payload": "x".repeat(MIB - 2)}));
    let mut posting = JoinSet::new();
    for _ in 0..CLIENTS {
        let (api, event) = (api.clone(), Arc::clone(&event));
        posting.spawn(async move {
            for _ in 0..jobs / CLIENTS {
                api.post("/v1/events", &event).await.expect(201);
            }
        });
    }
    posting.join_all().await;
    gate.is_open.store(true, Ordering::SeqCst);
    eventually("all is delivered", || async { (gate.arrived.load(Ordering::SeqCst) >= jobs).then_some(()) })
        .await;
    let most = server.peak_mib();
    println!("{jobs} jobs of 1 MiB: the whole process took {most} MiB at most");
    assert!(most < MOST_MIB, "{jobs} jobs of 1 MiB took {most} MiB");
    eventually("every result is applied", || async {
        let stats = api.get("/v1/stats").await.expect(200);
        stats["open_deliveries"].as_object()?.values().all(|count| count == 0).then_some(())
    })
    .await;
    assert_eq!(server.terminate().await, Some(0));
}
