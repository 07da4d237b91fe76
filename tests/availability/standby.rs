//! PostgreSQL with a synchronous standby, both in the URL.

use super::*;
use hooksaga_testkit::{patroni::PatroniCluster, standby::PostgresPair};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    /// SIGSTOP: its connections stay open, and new ones are accepted by the kernel.
    Frozen,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_may_be_killed_and_its_standby_may_be_away() {
    fail_over(Fault::Killed, false).await;
    if long().is_some() {
        for (fault, standby_first) in [(Fault::Killed, true), (Fault::Frozen, false), (Fault::Frozen, true)] {
            fail_over(fault, standby_first).await;
        }
    }
}

async fn fail_over(fault: Fault, standby_first: bool) {
    let mut pair = tokio::task::block_in_place(PostgresPair::start);
    let installation = settings(Installation::on_server(&pair.url(standby_first)));
    let migrated = run(&installation, &["migrate"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let servers = [installation.serve().await, installation.serve().await];
    let receiver = Receiver::start().await;
    let subscriptions = subscribe(&servers[0].api(), &receiver).await;

    let places = Places::new(servers.iter().map(|server| server.address().to_owned()));
    let load = Load::start(&places, CLIENTS, EVERY);
    load.goes_on(200, PATIENCE).await;
    tokio::time::sleep(long().unwrap_or_default()).await;

    // Without the standby nothing is accepted, and nothing is refused for good: it waits.
    tokio::task::block_in_place(|| pair.standby.kill());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let accepted = load.accepted();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(load.accepted(), accepted, "what only the primary has is not accepted");
    tokio::task::block_in_place(|| pair.standby.revive());
    load.goes_on(100, PATIENCE).await;
    let calm = load.failures();

    tokio::task::block_in_place(|| match fault {
        Fault::Killed => pair.primary.kill(),
        Fault::Frozen => pair.primary.freeze(),
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokio::task::block_in_place(|| pair.standby.promote());
    // A frozen primary is found out by the longest time that a call may take.
    load.goes_on(200, PATIENCE * 3).await;
    tokio::time::sleep(long().unwrap_or_default()).await;
    let seen = load.stop().await;
    let what = format!("standby: primary {fault:?}, standby listed first: {standby_first}");
    check(&what, &servers[1].api(), &seen, &subscriptions, &receiver).await;
    assert_eq!(calm, [], "nothing fails while the primary is there");
    told_to_come_back(&seen);
}

/// That is all that clients hear while there is no primary.
fn told_to_come_back(seen: &Seen) {
    let other: Vec<_> = seen.failures.iter().filter(|(status, _)| *status != 503).collect();
    assert!(other.is_empty(), "{other:?}");
}

/// Killed and frozen, with its Patroni: the standby takes over by itself, and the product finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs Patroni and etcd, and minutes: `make availability` runs it"]
async fn under_patroni_the_standby_takes_over_by_itself() {
    let mut cluster = tokio::task::block_in_place(PatroniCluster::start);
    let installation = settings(Installation::on_server(&cluster.url()));
    let migrated = run(&installation, &["migrate"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let servers = [installation.serve().await, installation.serve().await];
    let receiver = Receiver::start().await;
    let subscriptions = subscribe(&servers[0].api(), &receiver).await;
    let places = Places::new(servers.iter().map(|server| server.address().to_owned()));
    let load = Load::start(&places, CLIENTS, EVERY);
    for fault in [Fault::Killed, Fault::Frozen] {
        load.goes_on(200, PATIENCE).await;
        tokio::time::sleep(long().unwrap_or_default()).await;
        let gone = tokio::task::block_in_place(|| match fault {
            Fault::Killed => cluster.kill_primary(),
            Fault::Frozen => cluster.freeze_primary(),
        });
        load.goes_on(200, PATIENCE * 3).await;
        tokio::time::sleep(long().unwrap_or_default()).await;
        tokio::task::block_in_place(|| cluster.revive(gone));
    }
    let seen = load.stop().await;
    check("patroni: killed, frozen", &servers[1].api(), &seen, &subscriptions, &receiver).await;
    told_to_come_back(&seen);
}
