//! The demo's story, told step by step through the public API.

use super::endpoints::{ArrivalCounts, DemoEndpoint};
use crate::{
    client::Client,
    error::{CliError, CliResult},
    output,
    receiver::ResponsePlan,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// No step takes longer, or the demo has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const EVENT_TYPE: &str = "order.created";
/// Orders in the story.
const ORDERS: u64 = 3;

#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Delivery {
    status: String,
    attempt_count: u32,
}

#[derive(Deserialize)]
struct Created {
    id: i64,
}

/// Everybody in the story.
pub(super) struct Story {
    client: Client,
    tally: Arc<ArrivalCounts>,
    begun: Instant,
    endpoints: Vec<DemoEndpoint>,
}

impl Story {
    pub(super) fn new(client: Client) -> Self {
        Self { client, tally: Arc::default(), begun: Instant::now(), endpoints: Vec::new() }
    }

    /// Tells the whole story.
    pub(super) async fn tell(&mut self) -> CliResult {
        self.subscribe().await?;
        self.send_orders().await?;
        self.watch_retries().await?;
        self.requeue().await?;
        self.summary().await
    }

    /// Sends one more order.
    pub(super) async fn send_order(&mut self, number: u64) -> CliResult {
        let event = json!({
            "event_type": EVENT_TYPE,
            "external_id": format!("order-{number}"),
            "payload": { "order": number, "total": "19.90" },
        });
        let answer = self.client.post("/v1/events", event.to_string()).await?;
        let Created { id } = answer.json()?;
        let again = if answer.status() == 200 { ", known already: nothing is delivered twice" } else { "" };
        output::line(format!("   order-{number} is event {id}{again}"));
        Ok(())
    }

    async fn subscribe(&mut self) -> CliResult {
        output::line("\n2. Three endpoints subscribe to order.created, and prove that they are theirs");
        let down = ResponsePlan { answer: StatusCode::SERVICE_UNAVAILABLE, ..ResponsePlan::default() };
        let shaky = ResponsePlan { fail_first: ORDERS + 1, ..ResponsePlan::default() };
        for (name, behaviour) in [("shop", ResponsePlan::default()), ("billing", shaky), ("archive", down)] {
            let endpoint = DemoEndpoint::start(name, behaviour, &self.tally, self.begun).await?;
            let subscription =
                json!({ "event_type": EVENT_TYPE, "callback_url": endpoint.url, "secret": endpoint.secret });
            let answer = self.client.post("/v1/subscriptions", subscription.to_string()).await?;
            let Created { id } = answer.json()?;
            self.endpoints.push(endpoint);
            self.wait_for_verification(id).await?;
        }
        output::line("   all three are verified");
        Ok(())
    }

    async fn wait_for_verification(&mut self, subscription: i64) -> CliResult {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.client.get(&format!("/v1/subscriptions/{subscription}")).await?;
            let now: Value = answer.json()?;
            if now["verified"] == json!(true) {
                return Ok(());
            }
            pause(deadline, "a subscription was not verified").await?;
        }
    }

    async fn send_orders(&mut self) -> CliResult {
        output::line(format!("\n3. {ORDERS} orders come in, the last one twice"));
        for number in 1..=ORDERS {
            self.send_order(number).await?;
        }
        self.send_order(ORDERS).await
    }

    async fn watch_retries(&mut self) -> CliResult {
        output::line(
            "\n4. shop takes them at once, billing fails at first, archive is down: both are retried",
        );
        self.wait_for(&[("Completed", 2 * ORDERS), ("DeadLettered", ORDERS)]).await?;
        self.wait_for_letters().await?;
        output::line(format!(
            "   billing got everything in the end; archive has {ORDERS} dead letters after 3 attempts each"
        ));
        Ok(())
    }

    async fn requeue(&mut self) -> CliResult {
        output::line("\n5. archive is repaired, and an operator requeues its dead letters");
        self.endpoints.iter().filter(|endpoint| endpoint.name == "archive").for_each(DemoEndpoint::repair);
        let answer =
            self.client.post("/v1/dead-letters/requeue", json!({ "filter": {} }).to_string()).await?;
        let tally: Value = answer.json()?;
        output::line(format!(
            "   {} requeued, as new deliveries; the dead ones stay as they were",
            tally["requeued"]
        ));
        self.wait_for(&[("Completed", 3 * ORDERS), ("DeadLettered", ORDERS)]).await
    }

    async fn summary(&mut self) -> CliResult {
        let deliveries = self.deliveries().await?;
        let attempts: u32 = deliveries.iter().map(|delivery| delivery.attempt_count).sum();
        let count = |status| deliveries.iter().filter(|delivery| delivery.status == status).count();
        let arrived = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (challenges, arrivals) = (arrived(&self.tally.challenges), arrived(&self.tally.deliveries));
        let valid = arrived(&self.tally.valid_signatures);
        output::line(format!("\nAll of it took {:.1} s:", self.begun.elapsed().as_secs_f32()));
        let rows = [
            ("events accepted", ORDERS.to_string()),
            ("deliveries completed", count("Completed").to_string()),
            ("deliveries dead-lettered", format!("{}, all requeued", count("DeadLettered"))),
            (
                "attempts",
                format!("{attempts}, {} of them refused by their endpoint", arrived(&self.tally.refused)),
            ),
            ("arrivals", format!("{arrivals} and {challenges} challenges")),
            ("valid signatures", format!("{valid} of {}", arrivals + challenges)),
        ];
        let rows: Vec<_> =
            rows.into_iter().map(|(what, number)| vec![format!("   {what}"), number]).collect();
        output::table(&rows).iter().for_each(output::line);
        if valid != arrivals + challenges {
            return Err(CliError::new("the demo received requests whose signature is not valid"));
        }
        Ok(())
    }

    /// Waits until exactly these numbers of deliveries have these statuses and no others exist.
    async fn wait_for(&mut self, expected: &[(&str, u64)]) -> CliResult {
        let expected: BTreeMap<String, u64> = expected.iter().map(|(s, n)| ((*s).to_owned(), *n)).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut found = BTreeMap::new();
            for delivery in self.deliveries().await? {
                *found.entry(delivery.status).or_insert(0) += 1;
            }
            if found == expected {
                return Ok(());
            }
            pause(deadline, &format!("expected deliveries {expected:?}, found {found:?}")).await?;
        }
    }

    async fn wait_for_letters(&mut self) -> CliResult {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let letters: Items<Value> = self.client.get("/v1/dead-letters?limit=500").await?.json()?;
            if letters.items.len() as u64 == ORDERS {
                return Ok(());
            }
            pause(deadline, "the dead letters are not there").await?;
        }
    }

    async fn deliveries(&mut self) -> CliResult<Vec<Delivery>> {
        let list: Items<Delivery> = self.client.get("/v1/deliveries?limit=500").await?.json()?;
        Ok(list.items)
    }
}

/// Waits a little, unless it has been too long already.
async fn pause(deadline: Instant, missing: &str) -> CliResult {
    if Instant::now() > deadline {
        let seconds = PATIENCE.as_secs();
        return Err(CliError::new(format!("the demo gave up after {seconds} s: {missing}")));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}
