//! `hooksaga tail`: follows deliveries as they happen, by asking the server again and again.
//!
//! A look reads the newest deliveries down to those of some seconds ago: ids are given out in order but become
//! visible in any. Deliveries that are older and still open are asked for one by one, when something may have
//! happened to them. Every look is bounded, whatever the server has to do.

mod following;

use super::{
    deliveries::live,
    remote::{Delivery, Query, Server, id, tenant},
};
use crate::{
    client::{Client, Reply},
    error::{CliError, CliResult},
    output::{self, Clock, Painter},
    signals::StopSignals,
};
use clap::Args;
use following::Following;
use hooksaga_saga::Tenant;
use serde::{Deserialize, de::DeserializeOwned};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  hooksaga tail
  hooksaga tail --tenant acme --failures
  hooksaga tail --subscription 3

One line per delivery that has changed, looked at twice a second, until Ctrl-C. Times are UTC.";

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Deliveries per request.
const PAGE: u32 = 200;
/// Requests per look at the newest.
const MOST_PAGES: usize = 10;
/// Older deliveries that a look asks for.
const MOST_OLDER: usize = 50;
/// How long a server that is not there is left alone.
const WHILE_AWAY: Duration = Duration::from_secs(2);

/// Follow deliveries as they happen, one line each
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Tail {
    /// Only this tenant's
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,

    /// Only those to this subscription
    #[arg(long, value_name = "ID", value_parser = id)]
    subscription: Option<i64>,

    /// Only failed attempts and what was given up
    #[arg(long)]
    failures: bool,

    #[command(flatten)]
    server: Server,
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Delivery>,
    next_cursor: Option<String>,
}

/// Why a look was not completed.
enum Interrupted {
    /// Nobody is there.
    Unreachable(CliError),
    /// The server cannot serve just now.
    Busy {
        why: String,
        pause: Duration,
    },
    Failed(CliError),
}

type Looked<T = ()> = Result<T, Interrupted>;

impl Tail {
    pub(super) async fn run(self) -> CliResult {
        let mut stop = StopSignals::listen();
        let follower = Follower {
            client: self.server.connect()?,
            failures: self.failures,
            following: Following::default(),
            painter: Painter::for_stdout(),
        };
        tokio::select! {
            ended = self.follow(follower) => ended,
            () = stop.next() => Ok(()),
        }
    }

    async fn follow(&self, mut follower: Follower) -> CliResult {
        let (mut begun, mut away) = (false, false);
        loop {
            let looked =
                if begun { follower.look(self.query()).await } else { follower.begin(|| self.query()).await };
            let (why, pause) = match looked {
                Ok(()) => {
                    if !std::mem::replace(&mut begun, true) {
                        output::note("following deliveries, until Ctrl-C");
                    } else if away {
                        output::note("the server is back");
                    }
                    away = false;
                    tokio::time::sleep(BETWEEN_LOOKS).await;
                    continue;
                }
                Err(Interrupted::Busy { why, pause }) => (why, pause),
                Err(Interrupted::Unreachable(failure)) if begun => (failure.to_string(), WHILE_AWAY),
                // At the start it is most likely a wrong address.
                Err(Interrupted::Unreachable(failure) | Interrupted::Failed(failure)) => return Err(failure),
            };
            if !std::mem::replace(&mut away, true) {
                output::note(format!("waiting for the server: {why}"));
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn query(&self) -> Query {
        Query::new("/v1/deliveries")
            .with("tenant", self.tenant.as_ref())
            .with("subscription_id", self.subscription)
            .with("limit", Some(PAGE))
    }
}

struct Follower {
    client: Client,
    failures: bool,
    following: Following,
    painter: Painter,
}

impl Follower {
    /// Takes note of what there is already: of those, only what happens from now on is told.
    async fn begin(&mut self, query: impl Fn() -> Query) -> Looked {
        let now = Instant::now();
        let newest: Page = self.read(&query().target()).await?;
        let open = ["Pending", "InProgress", "PendingRetry"];
        let open = open.into_iter().fold(query(), |query, status| query.with("status", Some(status)));
        let open: Page = self.read(&open.target()).await?;
        self.following.begin(newest.items.iter().chain(&open.items), now);
        Ok(())
    }

    async fn look(&mut self, mut query: Query) -> Looked {
        let (now, down_to) = (Instant::now(), self.following.down_to(Instant::now()));
        for page in 1.. {
            let read: Page = self.read(&query.target()).await?;
            let reached = read.items.iter().any(|delivery| delivery.saga_id <= down_to);
            // Oldest first, as they happened.
            for delivery in read.items.into_iter().rev().filter(|delivery| delivery.saga_id > down_to) {
                self.tell(&delivery, now);
            }
            match read.next_cursor {
                Some(cursor) if !reached && page < MOST_PAGES => query.set("cursor", Some(cursor)),
                Some(_) if !reached => {
                    output::note("more deliveries happen than can be followed: some are not shown");
                    break;
                }
                _ => break,
            }
        }
        for saga_id in self.following.older_to_look_at(down_to, now, MOST_OLDER) {
            let answer = self.ask(&format!("/v1/deliveries/{saga_id}")).await?;
            if answer.status() == 404 {
                self.following.forget(saga_id);
                continue;
            }
            let delivery = answer.json().map_err(Interrupted::Failed)?;
            self.tell(&delivery, now);
        }
        if self.following.prune(down_to) {
            output::note("too many deliveries are open to follow them all: the oldest are left out");
        }
        Ok(())
    }

    fn tell(&mut self, delivery: &Delivery, now: Instant) {
        let clock = Clock::now();
        if !self.following.is_news(delivery, clock.until(&delivery.next_attempt_at), now) {
            return;
        }
        if self.failures && !live::is_failure(delivery) {
            return;
        }
        let (color, line) = live::line(delivery, clock);
        let at = Clock::parse(&delivery.updated_at).unwrap_or(clock).time_of_day();
        output::line(format!("{at}  {}", self.painter.paint(color, &line)));
    }

    async fn read<T: DeserializeOwned>(&self, target: &str) -> Looked<T> {
        self.ask(target).await?.json().map_err(Interrupted::Failed)
    }

    async fn ask(&self, target: &str) -> Looked<Reply> {
        match self.client.get(target).await {
            Err(failure) => Err(Interrupted::Unreachable(failure)),
            Ok(answer) if answer.is_busy() => Err(Interrupted::Busy {
                why: answer.problem().line(answer.status()),
                pause: answer
                    .retry_after()
                    .unwrap_or(WHILE_AWAY)
                    .clamp(BETWEEN_LOOKS, Duration::from_secs(30)),
            }),
            Ok(answer) => Ok(answer),
        }
    }
}
