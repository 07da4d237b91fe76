//! `hooksaga tail`: follows deliveries as they happen, by asking the server again and again.
//!
//! Each poll reads the newest deliveries back to a few seconds ago, because ids are assigned in order but become
//! visible in any order. Deliveries that are older and still open are asked for one by one, when something may have
//! happened to them. Every poll is bounded, whatever the server has to do.

mod following;

use super::{
    deliveries::live,
    remote::{ApiDelivery, PatientClient, QueryString, Remote, id, tenant},
};
use crate::{
    error::{CliError, CliResult},
    output::{self, Now, Painter},
    signals::StopSignals,
};
use clap::Args;
use following::{Following, MOST_OPEN};
use hooksaga_saga::Tenant;
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  hooksaga tail
  hooksaga tail --tenant acme --failures
  hooksaga tail --subscription 3
  hooksaga tail --json | jq -r 'select(.status == \"DeadLettered\").callback_url'

One line per delivery that has changed, looked at twice a second, until Ctrl-C or nobody reads it. Times are UTC.";

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Deliveries per request.
const PAGE: u32 = 200;
/// Requests per look at the newest.
const MOST_PAGES: usize = 10;
/// Requests for what is open at the start: as many deliveries as are followed.
const MOST_OPEN_PAGES: usize = MOST_OPEN / PAGE as usize;
/// Older deliveries that a look asks for.
const MOST_OLDER: usize = 50;

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

    /// Only failed attempts and dead letters
    #[arg(long)]
    failures: bool,

    #[command(flatten)]
    remote: Remote,
}

#[derive(Deserialize)]
struct NewestPage {
    items: Vec<Value>,
    next_cursor: Option<String>,
}

/// A delivery, and what the server says of it.
struct Shown {
    delivery: ApiDelivery,
    json: Value,
}

impl Shown {
    fn read(mut json: Value) -> CliResult<Self> {
        // One that is asked for alone has more than one in a list.
        if let Some(members) = json.as_object_mut() {
            members.remove("attempts");
            members.remove("explanation");
        }
        let delivery = ApiDelivery::deserialize(&json).map_err(|error| {
            CliError::new(format!(
                "the server's answer is not what this version of hooksaga expects: {error}"
            ))
        })?;
        Ok(Self { delivery, json })
    }
}

impl Tail {
    pub(super) async fn run(self) -> CliResult {
        let (mut stop, client) = (StopSignals::listen(), self.remote.connect()?);
        let follower = Follower {
            server: PatientClient::new(&client),
            failures: self.failures,
            json: self.remote.json,
            following: Following::default(),
            painter: Painter::for_stdout(),
            told_of_too_many: false,
        };
        tokio::select! {
            ended = self.follow(follower) => ended,
            () = stop.next() => Ok(()),
        }
    }

    async fn follow(&self, mut follower: Follower<'_>) -> CliResult {
        follower.begin(|| self.query()).await?;
        output::note("following deliveries, until Ctrl-C");
        loop {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            // `hooksaga tail | grep -m 1 …` ends as soon as grep does.
            if output::has_no_reader() {
                return Ok(());
            }
            follower.poll(self.query()).await?;
        }
    }

    fn query(&self) -> QueryString {
        QueryString::new("/v1/deliveries")
            .with("tenant", self.tenant.as_ref())
            .with("subscription_id", self.subscription)
            .with("limit", Some(PAGE))
    }
}

struct Follower<'a> {
    server: PatientClient<'a>,
    failures: bool,
    json: bool,
    following: Following,
    painter: Painter,
    told_of_too_many: bool,
}

impl Follower<'_> {
    /// Takes note of what exists already: of that, only later changes are shown.
    async fn begin(&mut self, query: impl Fn() -> QueryString) -> CliResult {
        let now = Instant::now();
        let (mut present, _) = self.page(&query()).await?;
        let open = ["Pending", "InProgress", "PendingRetry"];
        let mut open = open.into_iter().fold(query(), |query, status| query.with("status", Some(status)));
        for page in 1.. {
            let (read, next_cursor) = self.page(&open).await?;
            present.extend(read);
            match next_cursor {
                Some(cursor) if page < MOST_OPEN_PAGES => open.set("cursor", Some(cursor)),
                Some(_) => {
                    self.tell_of_too_many();
                    break;
                }
                None => break,
            }
        }
        self.following.begin(present.iter().map(|shown| &shown.delivery), now);
        Ok(())
    }

    /// Once: whoever works off a backlog does it for a while.
    fn tell_of_too_many(&mut self) {
        if !std::mem::replace(&mut self.told_of_too_many, true) {
            output::note(format!(
                "more than {MOST_OPEN} deliveries are open: the newest of them are followed, and what comes now; \
                 `hooksaga stats` counts all that end"
            ));
        }
    }

    async fn poll(&mut self, mut query: QueryString) -> CliResult {
        let (now, down_to) = (Instant::now(), self.following.down_to(Instant::now()));
        for page in 1.. {
            let (read, next_cursor) = self.page(&query).await?;
            let reached = read.iter().any(|shown| shown.delivery.saga_id <= down_to);
            // Oldest first, as they happened.
            for shown in read.iter().rev().filter(|shown| shown.delivery.saga_id > down_to) {
                self.tell(shown, now);
            }
            match next_cursor {
                Some(cursor) if !reached && page < MOST_PAGES => query.set("cursor", Some(cursor)),
                Some(_) if !reached => {
                    output::note("more deliveries happen than can be followed: some are not shown");
                    break;
                }
                _ => break,
            }
        }
        for saga_id in self.following.older_to_look_at(down_to, now, MOST_OLDER) {
            let answer = self.server.get(&format!("/v1/deliveries/{saga_id}")).await?;
            if answer.status() == 404 {
                self.following.forget(saga_id);
                continue;
            }
            self.tell(&Shown::read(answer.json()?)?, now);
        }
        if self.following.prune(down_to) {
            self.tell_of_too_many();
        }
        Ok(())
    }

    fn tell(&mut self, Shown { delivery, json }: &Shown, now: Instant) {
        let today = Now::local();
        if !self.following.is_news(delivery, today.until(&delivery.next_attempt_at), now) {
            return;
        }
        if self.failures && !live::is_failure(delivery) {
            return;
        }
        if self.json {
            output::line(json.to_string());
            return;
        }
        let (color, line) = live::line(delivery, today);
        let at = Now::parse(&delivery.updated_at).unwrap_or(today).time_of_day();
        output::line(format!("{at}  {}", self.painter.paint(color, &line)));
    }

    /// The deliveries of a page, and where the next one begins.
    async fn page(&mut self, query: &QueryString) -> CliResult<(Vec<Shown>, Option<String>)> {
        let NewestPage { items, next_cursor } = self.server.get(&query.target()).await?.json()?;
        let items = items.into_iter().map(Shown::read).collect::<CliResult<_>>()?;
        Ok((items, next_cursor))
    }
}
