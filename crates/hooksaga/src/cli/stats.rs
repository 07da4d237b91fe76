//! `hooksaga stats`: how everything stands.

use super::remote::{self, ApiStats as Reply, EndedCounts, QueryString, Remote, tenant};
use crate::{
    error::CliResult,
    output::{self, Cell, Color, Now, Table},
};
use clap::Args;
use hooksaga_saga::Tenant;
use std::collections::BTreeMap;

const EXAMPLES: &str = "\
Examples:
  hooksaga stats
  hooksaga stats --tenant acme
  hooksaga stats --json";

/// Of counts that are older their age is told.
const RECENT_SECONDS: u64 = 5;

/// As a delivery goes through them.
const STATUSES: [&str; 3] = ["Pending", "InProgress", "PendingRetry"];
const QUEUES: [&str; 5] =
    ["unrouted_events", "pending_jobs", "leased_jobs", "finished_jobs", "pending_dead_letters"];

/// How many subscriptions are shown.
const MOST_SUBSCRIPTIONS: usize = 20;

/// Show statistics: open deliveries, queues, recent results
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", remote::WHERE))]
pub(super) struct Stats {
    /// Only this tenant's
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,
    #[command(flatten)]
    remote: Remote,
}

impl Stats {
    pub(super) async fn run(self) -> CliResult {
        let query = QueryString::new("/v1/stats").with("tenant", self.tenant);
        let answer = self.remote.connect()?.get(&query.target()).await?;
        self.remote.print(&answer, |stats| print(&stats))
    }
}

fn print(stats: &Reply) {
    output::line("Open deliveries");
    let mut open = in_order(&stats.open_deliveries, &STATUSES);
    open.push(("held back: paused or unverified", stats.held.into()));
    open.push(("oldest due for", format!("{:.1} s", stats.oldest_due_age_seconds).into()));
    print_facts(open);
    if stats.counted_seconds_ago >= RECENT_SECONDS {
        output::line(format!("  (counted {} s ago)", stats.counted_seconds_ago));
    }

    if let Some(depths) = &stats.queue_depths {
        output::line("\nQueues between the stages");
        print_facts(in_order(depths, &QUEUES));
    }

    output::line("\nEnded");
    let mut table = Table::new(&["", "DELIVERED", "FAILED ATTEMPTS", "GIVEN UP"]);
    for (name, minutes) in [("last 5 minutes", 5), ("last hour", 60), ("last 3 hours", 180)] {
        table.row(row(name.into(), since(stats, minutes)));
    }
    table.print();

    if !stats.per_subscription.is_empty() {
        output::line("\nBy subscription, the last 24 hours");
        let mut busiest: Vec<_> = stats.per_subscription.iter().collect();
        busiest.sort_by_key(|one| std::cmp::Reverse(one.ended.delivered + one.ended.failed));
        let mut table = Table::new(&["SUBSCRIPTION", "DELIVERED", "FAILED ATTEMPTS", "GIVEN UP"]);
        for one in busiest.iter().take(MOST_SUBSCRIPTIONS) {
            table.row(row(one.subscription_id.into(), one.ended));
        }
        table.print();
        let hidden = busiest.len().saturating_sub(MOST_SUBSCRIPTIONS);
        if hidden > 0 {
            output::line(format!("and {} more: see --json", hidden));
        }
    }
}

/// The counts in this order; what a newer server counts, too, comes last.
fn in_order<'a>(counts: &'a BTreeMap<String, u64>, order: &[&str]) -> Vec<(&'a str, Cell)> {
    let place = |name: &str| order.iter().position(|known| *known == name).unwrap_or(order.len());
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(name, _)| place(name));
    counts.into_iter().map(|(name, count)| (name.as_str(), count.into())).collect()
}

fn print_facts(facts: Vec<(&str, Cell)>) {
    output::facts(facts).iter().for_each(|fact| output::line(format!("  {fact}")));
}

fn row(name: Cell, ended: EndedCounts) -> Vec<Cell> {
    let bad = |count: u64| if count > 0 { Cell::new(Color::Bad, count.to_string()) } else { count.into() };
    vec![name, ended.delivered.into(), bad(ended.failed), bad(ended.dead_lettered)]
}

/// What ended in the last `minutes` minutes, by the server's clock.
fn since(stats: &Reply, minutes: u64) -> EndedCounts {
    let mut sum = EndedCounts::default();
    let Some(now) = Now::parse(&stats.now) else { return sum };
    for one in &stats.per_minute {
        if now.since(&one.minute).as_secs() < minutes * 60 {
            sum.delivered += one.ended.delivered;
            sum.failed += one.ended.failed;
            sum.dead_lettered += one.ended.dead_lettered;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_stand_in_the_order_of_the_pipeline() {
        let counts = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 1)).collect();
        let shown = |counts: &BTreeMap<String, u64>, order: &[&str]| {
            in_order(counts, order).iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(shown(&counts(&STATUSES), &STATUSES), STATUSES);
        let newer = counts(&["a_new_queue", "unrouted_events", "finished_jobs"]);
        assert_eq!(shown(&newer, &QUEUES), ["unrouted_events", "finished_jobs", "a_new_queue"]);
    }

    #[test]
    fn minutes_are_summed_by_the_servers_clock() {
        let minute = |minute: &str, delivered: u64| json!({ "minute": minute, "delivered": delivered, "failed": 1, "dead_lettered": 0 });
        let stats: Reply = serde_json::from_value(json!({
            "now": "2020-01-31T12:00:30.000000Z",
            "open_deliveries": { "Pending": 1, "InProgress": 0, "PendingRetry": 2 }, "held": 0,
            "queue_depths": null, "counted_seconds_ago": 0, "oldest_due_age_seconds": 0.0,
            "per_minute": [minute("2020-01-31T10:30:00.000000Z", 100), minute("2020-01-31T11:30:00.000000Z", 10),
                minute("2020-01-31T12:00:00.000000Z", 1)],
            "per_subscription": [{ "subscription_id": 3, "delivered": 111, "failed": 3, "dead_lettered": 0 }],
        }))
        .expect("as the API returns it");
        let delivered = |minutes| since(&stats, minutes).delivered;
        assert_eq!((delivered(5), delivered(60), delivered(180)), (1, 11, 111));
        assert_eq!(since(&stats, 180).failed, 3);
    }
}
