//! Copies of the product are replaced one after the other, under load.

use super::*;

mod postgres {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_rolling_restart_fails_no_request_and_repeats_no_delivery() {
        super::a_rolling_restart_fails_no_request_and_repeats_no_delivery(Installation::postgres().await)
            .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn copies_of_the_api_alone_are_replaced_and_nobody_is_turned_away() {
        super::copies_of_the_api_alone_are_replaced_and_nobody_is_turned_away(Installation::postgres().await)
            .await;
    }
}

/// On a server of their own: on the one that the tests share, others make and drop databases and roles, and while MariaDB does
/// that, every other session waits.
mod mysql {
    use super::*;
    use hooksaga_testkit::mariadb::{self, MariaDbServer};

    async fn on_a_server_of_its_own(scenario: impl AsyncFn(Installation)) {
        // On this thread, which lasts: a server ends with the thread that started it.
        let server = tokio::task::block_in_place(MariaDbServer::start);
        mariadb::execute(&server.url(), "CREATE DATABASE hooksaga").await;
        let installation = Installation::on_server(&format!("{}/hooksaga", server.url()));
        let migrated = run(&installation, &["migrate"]).await;
        assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
        scenario(installation).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_rolling_restart_fails_no_request_and_repeats_no_delivery() {
        on_a_server_of_its_own(super::a_rolling_restart_fails_no_request_and_repeats_no_delivery).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn copies_of_the_api_alone_are_replaced_and_nobody_is_turned_away() {
        on_a_server_of_its_own(super::copies_of_the_api_alone_are_replaced_and_nobody_is_turned_away).await;
    }
}

/// How often a balancer asks whether a copy is ready. It sends requests to the copy until it has seen that it is not.
const PROBED_EVERY: Duration = Duration::from_secs(2);

async fn a_rolling_restart_fails_no_request_and_repeats_no_delivery(installation: Installation) {
    let installation = patient_settings(installation);
    replace_copies(&installation, &["serve", "--dev"], "rolling restart").await;
}

/// They have nothing in flight that would keep them.
async fn copies_of_the_api_alone_are_replaced_and_nobody_is_turned_away(installation: Installation) {
    let installation = patient_settings(installation);
    let others = "verifier,router,orchestrator,worker,cleaner,deadletters,caretaker,janitor";
    let _others = installation.serve_only(others).await;
    replace_copies(&installation, &["serve", "--dev", "--only", "api"], "rolling restart of the api").await;
}

/// Replaces two copies in turn, under load.
async fn replace_copies(installation: &Installation, arguments: &[&str], what: &str) {
    let start = || Server::start(installation, arguments);
    let mut servers = [start().await, start().await];
    let receiver = Receiver::start().await;
    // Deliveries are under way whenever a copy is told to stop.
    receiver.answer("/two", [Behaviour::Slow(Duration::from_millis(200), 200)]);
    let subscriptions = subscribe(&servers[0].api(), &receiver).await;

    let places = Places::new(servers.iter().map(|server| server.address().to_owned()));
    let balancer = places.probe(PROBED_EVERY);
    let load = Load::start(&places, CLIENTS, EVERY);
    let rounds = if long().is_some() { 10 } else { 2 };
    for round in 0..rounds {
        load.goes_on(100, PATIENCE).await;
        // The balancer has seen it, twice.
        tokio::time::sleep(PROBED_EVERY * 2).await;
        let old = &servers[round % 2];
        old.signal("TERM").await;
        eventually("the balancer has noticed", || async { places.at(round % 2).is_none().then_some(()) })
            .await;
        let new = start().await;
        places.set(round % 2, Some(new.address()));
        let old = std::mem::replace(&mut servers[round % 2], new);
        assert_eq!(old.ended().await, Some(0));
    }
    load.goes_on(50, PATIENCE).await;
    let seen = load.stop().await;
    balancer.abort();
    check(what, &servers[0].api(), &seen, &subscriptions, &receiver).await;
    assert!(seen.longest < ACCEPTED_WITHIN, "{:?}", seen.longest);
    assert_eq!((&seen.failures[..], &seen.last_words[..]), (&[][..], &[][..]), "no request failed");
    assert_eq!(seen.turned_away, 0, "nobody was sent to a listener that had closed");
    nothing_was_sent_twice(&servers[0].api(), &subscriptions, &receiver).await;
}
