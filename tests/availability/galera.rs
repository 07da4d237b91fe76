//! MariaDB Galera Cluster: three nodes, a process of the product on each, and one that knows them all.

use super::*;
use hooksaga_testkit::{galera::GaleraCluster, mariadb};

const NODES: usize = 3;

/// Two processes that write the same rows on two nodes are not kept apart by locks: the one that commits second loses and
/// tries again, within the time of the request. A node that is killed takes the leases of its process with it, and no
/// more. A process whose URL names every node goes on with another one, while its own is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_may_be_killed_at_any_time() {
    let mut cluster = tokio::task::block_in_place(|| GaleraCluster::start(NODES));
    mariadb::execute(&cluster.url(0), "CREATE DATABASE hooksaga").await;
    let on_node =
        |number: usize| settings(Installation::on_server(&format!("{}/hooksaga", cluster.url(number))));
    let installations: Vec<Installation> =
        (0..NODES).map(on_node).chain([settings(on_any_node(&cluster))]).collect();
    let migrated = run(&installations[0], &["migrate"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let mut servers = Vec::new();
    for installation in &installations {
        servers.push(installation.serve().await);
    }
    let receiver = Receiver::start().await;
    let subscriptions = subscribe(&servers[0].api(), &receiver).await;

    let addresses: Vec<String> = servers.iter().map(|server| server.address().to_owned()).collect();
    let places = Places::new(addresses.clone());
    let load = Load::start(&places, CLIENTS, EVERY);
    // Posts to all nodes at once, and nothing else happens.
    load.goes_on(400, PATIENCE * 2).await;
    tokio::time::sleep(long().unwrap_or_default()).await;
    let victims = if long().is_some() { 0..NODES } else { 1..2 };
    for victim in victims {
        for place in [victim, NODES] {
            places.set(place, None);
        }
        tokio::task::block_in_place(|| cluster.kill(victim));
        load.goes_on(100, PATIENCE).await;
        it_accepts_steadily(&servers[NODES].api()).await;
        places.set(NODES, Some(&addresses[NODES]));
        load.goes_on(100, PATIENCE).await;
        tokio::time::sleep(long().unwrap_or_default()).await;
        tokio::task::block_in_place(|| cluster.revive(victim));
        eventually("the process on the node is ready again", || async {
            (servers[victim].api_with(None).get("/readyz").await.status == 200).then_some(())
        })
        .await;
        places.set(victim, Some(&addresses[victim]));
        load.goes_on(100, PATIENCE).await;
    }
    let seen = load.stop().await;
    check("galera", &servers[0].api(), &seen, &subscriptions, &receiver).await;
    assert!(seen.longest < ACCEPTED_WITHIN, "{:?}", seen.longest);
    assert_eq!(seen.failures, [], "every node that was up accepted what it was sent");
}

/// The node that is killed in the short version comes first.
fn on_any_node(cluster: &GaleraCluster) -> Installation {
    let hosts = [1, 2, 0].map(|number| {
        let url = cluster.url(number);
        url.rsplit_once('@').map(|(_, host)| host.to_owned()).expect("a URL with a login")
    });
    let url = cluster.url(1).replace(&hosts[0], &hosts.join(","));
    Installation::on_server(&format!("{url}/hooksaga"))
}

/// Every connection of the process that led to the dead node has been replaced.
async fn it_accepts_steadily(api: &Api) {
    let nobodys = json!({"event_type": "nobody", "payload": 1});
    eventually("it goes on with another node", || async {
        for _ in 0..10 {
            let answer = api.try_post("/v1/events", &nobodys).await;
            answer.filter(|answer| answer.status == 201)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        (api.try_get("/readyz").await?.status == 200).then_some(())
    })
    .await;
}
