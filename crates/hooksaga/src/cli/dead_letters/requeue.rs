//! `hooksaga dead-letters requeue`: one, or all that match a filter.

use super::FilterArgs;
use crate::{
    cli::remote::{ApiRequeueTally, ApiRequeued, Remote, id},
    client::Client,
    error::{CliError, CliResult},
    output::{self, ProgressBar},
};
use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};

/// What is named by the options of [`FilterArgs`].
const FILTERS: [&str; 6] = ["tenant", "subscription", "event_type", "error", "since", "until"];

/// Send dead letters again: one, or all that match a filter
#[derive(Args)]
#[command(after_help = "\
Examples:
  hooksaga dead-letters requeue 5
  hooksaga dead-letters requeue --subscription 3 --dry-run
  hooksaga dead-letters requeue --error HTTP_503 --since 1d
  hooksaga dead-letters requeue --all

Each becomes a new delivery; requeueing it again changes nothing. Those of subscriptions that are not active and verified
are skipped.")]
#[command(group = ArgGroup::new("which").required(true).multiple(true).arg("id").args(FILTERS).arg("all"))]
pub(super) struct RequeueArgs {
    /// The id that `dead-letters list` shows
    #[arg(value_name = "ID", value_parser = id, conflicts_with_all = FILTERS)]
    id: Option<i64>,

    #[command(flatten)]
    filter: FilterArgs,

    /// Every dead letter that was not requeued yet
    #[arg(long, conflicts_with = "id", conflicts_with_all = FILTERS)]
    all: bool,

    /// The most to requeue, oldest first; 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,

    /// Print how many would be requeued, and change nothing
    #[arg(long, conflicts_with = "id")]
    dry_run: bool,

    #[command(flatten)]
    remote: Remote,
}

impl RequeueArgs {
    pub(super) async fn run(self) -> CliResult {
        let client = self.remote.connect()?;
        if let Some(id) = self.id {
            let answer = client.post(&format!("/v1/dead-letters/{id}/requeue"), "").await?;
            let known = answer.status() == 200;
            return self
                .remote
                .print(&answer, |requeued: ApiRequeued| output::line(one(id, &requeued, known)));
        }
        let (tally, ended) = self.all_that_match(&client).await;
        if let Some(tally) = tally {
            output::line(match self.remote.json {
                true => serde_json::to_string(&tally).map_err(|error| CliError::new(error.to_string()))?,
                false => many(&tally, u64::from(self.limit), self.dry_run),
            });
        }
        ended
    }

    /// Requeues in as many requests as it takes: the server ends each after some seconds. Returns what is done, also if a
    /// later request fails.
    async fn all_that_match(&self, client: &Client) -> (Option<ApiRequeueTally>, CliResult) {
        let progress = ProgressBar::new(None);
        let mut done: Option<ApiRequeueTally> = None;
        loop {
            let before = done.map_or(0, |tally| tally.requeued);
            let left = u64::from(self.limit).saturating_sub(before);
            let answer = client.post("/v1/dead-letters/requeue", self.body(left).to_string()).await;
            let step = match answer.and_then(|answer| answer.json::<ApiRequeueTally>()) {
                Ok(step) => step,
                Err(error) => {
                    progress.clear();
                    return (done, Err(error));
                }
            };
            // Each request begins with the oldest, so that the last one has met every skipped one.
            let requeued = before + step.requeued;
            done = Some(ApiRequeueTally { requeued, matched: requeued + step.skipped, ..step });
            if step.complete || step.requeued == 0 || self.dry_run || requeued >= u64::from(self.limit) {
                progress.clear();
                return (done, Ok(()));
            }
            progress.show(requeued, &format!("{} requeued", output::count(requeued, "dead letter")));
        }
    }

    fn body(&self, limit: u64) -> Value {
        let mut filter = Map::new();
        let mut set =
            |name: &str, value: Option<Value>| filter.extend(value.map(|value| (name.to_owned(), value)));
        set("tenant", self.filter.tenant.as_ref().map(|tenant| json!(tenant.as_str())));
        set("subscription_id", self.filter.subscription.map(|id| json!(id)));
        set("event_type", self.filter.event_type.as_ref().map(|event_type| json!(event_type.as_str())));
        set("final_error_code", self.filter.error.as_ref().map(|code| json!(code)));
        set("created_after", self.filter.period.since.as_ref().map(|time| json!(time)));
        set("created_before", self.filter.period.until.as_ref().map(|time| json!(time)));
        json!({ "filter": filter, "limit": limit, "dry_run": self.dry_run })
    }
}

fn one(id: i64, requeued: &ApiRequeued, known: bool) -> String {
    let ApiRequeued { saga_id, generation } = requeued;
    if known {
        return format!("dead letter {id} was requeued before, as delivery {saga_id}");
    }
    let again = if *generation > 1 { format!(", requeue number {generation}") } else { String::new() };
    format!(
        "dead letter {id} is requeued as delivery {saga_id}{again}: see `hooksaga deliveries show {saga_id}`"
    )
}

fn many(tally: &ApiRequeueTally, limit: u64, dry_run: bool) -> String {
    let ApiRequeueTally { matched, requeued, skipped, complete } = tally;
    let verb = if dry_run { "would be requeued" } else { "requeued" };
    let mut text = format!("{requeued} of {} {verb}", output::count(*matched, "dead letter"));
    if *skipped > 0 {
        text += &format!(
            "; {skipped} skipped, because their subscriptions are not active and verified \
             (`hooksaga subscriptions list --active false`, `--verified false`)"
        );
    }
    if !complete {
        text += match *requeued >= limit {
            true => "; there may be more: run it again, or with a larger --limit",
            false => "; that is not all: run it again",
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::scripted::{self, Reply};
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        requeue: RequeueArgs,
    }

    fn parse(line: &[&str]) -> Option<RequeueArgs> {
        CommandLine::try_parse_from([&["requeue"], line].concat()).ok().map(|line| line.requeue)
    }

    #[test]
    fn one_or_a_filter_or_all_must_be_named() {
        assert!(parse(&[]).is_none(), "everything is requeued only when that is said");
        assert!(parse(&["--dry-run"]).is_none());
        assert!(parse(&["5", "--subscription", "3"]).is_none());
        assert!(parse(&["--all", "--subscription", "3"]).is_none());
        assert!(parse(&["5", "--since", "1d"]).is_none() && parse(&["5", "--dry-run"]).is_none());
        assert!(parse(&["5", "--all"]).is_none());
        assert_eq!(parse(&["5"]).and_then(|requeue| requeue.id), Some(5));
        let said = CommandLine::try_parse_from(["requeue"]).err().expect("refused").to_string();
        for choice in ["<ID|", "--subscription <ID>", "--since <TIME>", "--all"] {
            assert!(said.contains(choice), "{choice} in {said}");
        }
        let filtered = parse(&["--subscription", "3", "--error", "HTTP_503", "--dry-run"]).expect("valid");
        assert_eq!(
            filtered.body(1000),
            json!({ "filter": { "subscription_id": 3, "final_error_code": "HTTP_503" }, "limit": 1000, "dry_run": true })
        );
        assert!(parse(&["--since", "1d"]).is_some());
        let all = parse(&["--all", "--limit", "10"]).expect("valid");
        assert_eq!(all.body(10), json!({ "filter": {}, "limit": 10, "dry_run": false }));
    }

    #[test]
    fn a_tally_says_what_is_left() {
        let part = |requeued, skipped, complete| ApiRequeueTally {
            matched: requeued + skipped,
            requeued,
            skipped,
            complete,
        };
        let tally = |requeued, skipped| part(requeued, skipped, true);
        assert_eq!(many(&tally(3, 0), 1000, false), "3 of 3 dead letters requeued");
        assert_eq!(many(&tally(1, 0), 1000, true), "1 of 1 dead letter would be requeued");
        assert!(many(&tally(3, 2), 1000, false).contains("2 skipped"));
        assert!(many(&part(10, 0, false), 10, false).contains("a larger --limit"));
        assert!(many(&part(3, 0, false), 10, false).ends_with("that is not all: run it again"));
        assert!(!many(&tally(10, 0), 10, false).contains("run it again"), "the last one was the tenth");
        let requeued = |generation| ApiRequeued { saga_id: 9, generation };
        assert!(one(5, &requeued(1), false).starts_with("dead letter 5 is requeued as delivery 9: "));
        assert!(one(5, &requeued(1), true).contains("before, as delivery 9"));
    }
    fn step(requeued: u64, skipped: u64, complete: bool) -> Reply {
        let matched = requeued + skipped;
        let tally =
            json!({"matched": matched, "requeued": requeued, "skipped": skipped, "complete": complete});
        Reply::new(200, &tally)
    }

    #[tokio::test]
    async fn a_requeue_of_many_goes_on_until_all_is_done() {
        let busy = Reply::new(503, &json!({"title": "later"}));
        for (line, script, limits, done) in [
            (&["--all"][..], vec![step(400, 1, false), step(500, 2, true)], vec![1000, 600], (900, 2, true)),
            (
                &["--all", "--limit", "7"],
                vec![step(5, 0, false), step(2, 0, false)],
                vec![7, 2],
                (7, 0, false),
            ),
            (&["--all"], vec![step(5, 0, false), busy], vec![1000, 995], (5, 0, false)),
            (&["--all", "--dry-run"], vec![step(9, 0, false)], vec![1000], (9, 0, false)),
            (&["--all"], vec![step(0, 9, false)], vec![1000], (0, 9, false)),
        ] {
            let fails = line.len() == 1 && done == (5, 0, false);
            let (url, requests) = scripted::serve(script).await;
            let client = Client::new(&url, "k").expect("valid");
            let requeue = parse(line).expect("valid");
            let (tally, ended) = requeue.all_that_match(&client).await;
            let tally = tally.expect("the first request has done something");
            assert_eq!((tally.requeued, tally.skipped, tally.complete), done, "{line:?}");
            assert_eq!(tally.matched, tally.requeued + tally.skipped);
            assert_eq!(ended.is_err(), fails, "{line:?}: {ended:?}");
            let asked: Vec<_> = requests.take().iter().map(|body| body["limit"].clone()).collect();
            assert_eq!(asked, limits, "{line:?}");
        }
    }
}
