//! Copies of the product are replaced one after the other, under load.

use super::*;

on_every_database_server! {
    a_rolling_restart_fails_no_request_and_repeats_no_delivery,
}

async fn a_rolling_restart_fails_no_request_and_repeats_no_delivery(installation: Installation) {
    let installation = settings(installation);
    let mut servers = [installation.serve().await, installation.serve().await];
    let receiver = Receiver::start().await;
    // Deliveries are under way whenever a copy is told to stop.
    receiver.answer("/two", [Behaviour::Slow(Duration::from_millis(200), 200)]);
    let subscriptions = subscribe(&servers[0].api(), &receiver).await;

    let places = Places::new(servers.iter().map(|server| server.address().to_owned()));
    let load = Load::start(&places, CLIENTS, EVERY);
    let rounds = if long().is_some() { 10 } else { 2 };
    for round in 0..rounds {
        load.goes_on(100, PATIENCE).await;
        let old = &servers[round % 2];
        // As a balancer: what is not ready gets no new requests. Until it has noticed, and for those that are under way, the
        // copy goes on.
        old.signal("TERM").await;
        eventually("the copy is no longer ready", || async {
            let probe = old.api_with(None).try_get("/readyz").await;
            probe.is_none_or(|probe| probe.status == 503).then_some(())
        })
        .await;
        places.set(round % 2, None);
        let new = installation.serve().await;
        places.set(round % 2, Some(new.address()));
        let old = std::mem::replace(&mut servers[round % 2], new);
        assert_eq!(old.ended().await, Some(0));
    }
    load.goes_on(50, PATIENCE).await;
    let seen = load.stop().await;
    check("rolling restart", &servers[0].api(), &seen, &subscriptions, &receiver).await;
    assert!(seen.longest < ACCEPTED_WITHIN, "{:?}", seen.longest);
    assert_eq!((&seen.failures[..], &seen.last_words[..]), (&[][..], &[][..]), "no request failed");
    let posts: usize = subscriptions.iter().map(|(_, path)| receiver.deliveries(path).len()).sum();
    assert_eq!(posts, seen.accepted.len() * subscriptions.len(), "nothing was sent twice");
}
