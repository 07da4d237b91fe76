//! The story over connections that are cut at the n-th message to the database: before the server receives
//! it, or after it has and before the response arrives. A lost response to a commit is a lost acknowledgement.
//!
//! The suite takes a number of places, spread evenly, others in each run, and one of the two ways at each.
//! `HOOKSAGA_CUTS` says how many, and that both ways are taken at each; a value above the number of messages means all
//! of them.

use super::{check_the_end, sampling, start, tell};
use crate::support::backend::{Backend, Database};
use hooksaga_testkit::proxy::{Cut, Proxy};
use std::time::Duration;
use tokio::task::JoinSet;

const PARALLEL: usize = 6;
const CUTS: u64 = 12;

/// Tells the story with one cut. Returns how much was said in all, and whether it came to the cut.
async fn tell_over(backend: Backend, cut: Option<(u64, Cut)>) -> (u64, bool) {
    let world = start(backend).await;
    let url = world.database.url.clone().expect("a server");
    let (proxy, url) = Proxy::for_url(&url).await;
    let through = Database::again(world.database.backend(), url).await;
    let connected = proxy.said();
    if let Some((n, cut)) = cut {
        proxy.cut_at(n, cut);
    }
    let told = tokio::time::timeout(Duration::from_secs(90), tell(&world, &through.stores)).await;
    assert!(told.is_ok(), "{cut:?} never ended: {:?}", world.deliveries().await);
    check_the_end(&world).await;
    let said = proxy.said() - connected;
    drop(through);
    world.end().await;
    (said, proxy.has_cut())
}

#[expect(clippy::print_stdout, reason = "the figures of a run, for whoever asked for it")]
async fn cut_everywhere(backend: Backend) {
    // So many at a time, as later: what happens at once on a busy machine shares messages, and stories differ in their length.
    let mut uncut: JoinSet<_> = (0..PARALLEL).map(|_| tell_over(backend, None)).collect();
    let (mut shortest, mut said) = (u64::MAX, 0);
    while let Some(length) = uncut.join_next().await {
        let (length, _) = length.unwrap();
        (shortest, said) = (shortest.min(length), said.max(length));
    }
    let (told, rotation) = (sampling::number("HOOKSAGA_CUTS"), sampling::rotation() as u64);
    let wanted = told.map_or(CUTS, |cuts| cuts as u64);
    let step = (said / wanted.max(1)).max(1);
    let mut places = Vec::new();
    for (number, n) in (rotation / 2..).zip((rotation % step..said).step_by(usize::try_from(step).unwrap())) {
        // Each place one way, and the next place the other; or each place both ways.
        let first = if number % 2 == 0 { Cut::BeforeTheResponse } else { Cut::BeforeSending };
        let ways =
            if told.is_some() { vec![Cut::BeforeTheResponse, Cut::BeforeSending] } else { vec![first] };
        places.extend(ways.into_iter().map(|cut| (n, cut)));
    }
    places.reverse();
    let certain = places.iter().filter(|(n, _)| *n < shortest).count();
    let (mut running, mut cuts) = (JoinSet::new(), 0);
    while !places.is_empty() || !running.is_empty() {
        if running.len() < PARALLEL
            && let Some(place) = places.pop()
        {
            running.spawn(tell_over(backend, Some(place)));
            continue;
        }
        if let Some(done) = running.join_next().await {
            cuts += usize::from(done.unwrap().1);
        }
    }
    println!(
        "{backend:?}: the story takes {shortest} to {said} messages; {cuts} runs with a cut, {certain} places are in every story"
    );
    // A story that is shorter than its place ends before its cut.
    let least = if told.is_some() { certain * 9 / 10 } else { certain / 2 };
    assert!(cuts > 0 && cuts >= least, "only {cuts} cuts; {certain} places are in every story");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_postgres_cut_at_any_message_changes_nothing_in_the_end() {
    cut_everywhere(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_mysql_cut_at_any_message_changes_nothing_in_the_end() {
    cut_everywhere(Backend::MySql).await;
}
