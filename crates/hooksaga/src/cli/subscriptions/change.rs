//! Changing a subscription: `update`, `pause`, `resume`, `rotate-secret`.

use super::{
    One,
    care::{Header, header, headers},
    show, topic_list, topics, verify,
};
use crate::{
    cli::remote::{ApiSubscription, Remote, id},
    error::{CliError, CliResult},
    output::{self, well_before},
};
use clap::Args;
use hooksaga_saga::Topics;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Change a subscription; options that are not given stay as they are
#[derive(Args)]
#[command(after_help = "\
Examples:
  hooksaga subscriptions update 3 --types 'order.*,invoice.paid'
  hooksaga subscriptions update 3 --callback-url https://example.com/new --wait
  hooksaga subscriptions update 3 --no-description --max-retry-limit 10

A new address has to prove itself before anything is delivered to it; open deliveries wait until then. Headers do not
follow to another scheme, host or port: give them again.")]
pub(super) struct Update {
    /// The id that `subscriptions list` shows
    #[arg(value_name = "ID", value_parser = id)]
    id: i64,

    #[command(flatten)]
    change: Change,

    /// Wait until a new address is verified, or has failed to prove itself
    #[arg(long, requires = "callback_url")]
    wait: bool,

    #[command(flatten)]
    remote: Remote,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
struct Change {
    /// Event types, prefix.* or *, separated by commas
    #[arg(long, value_name = "TYPE[,TYPE…]", value_parser = topics)]
    types: Option<Topics>,

    /// The endpoint's address
    #[arg(long, value_name = "URL")]
    callback_url: Option<String>,

    /// A note for people
    #[arg(long, value_name = "TEXT", conflicts_with = "no_description")]
    description: Option<String>,

    /// Remove the note
    #[arg(long)]
    no_description: bool,

    /// Attempts per delivery, the first included; for new deliveries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100),
        conflicts_with = "no_max_retry_limit")]
    max_retry_limit: Option<u32>,

    /// Use the server's setting for new deliveries
    #[arg(long)]
    no_max_retry_limit: bool,

    /// Attempts started per second at most, retries included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000),
        conflicts_with = "no_rate_limit")]
    rate_limit: Option<u32>,

    /// Do not limit attempts per second
    #[arg(long)]
    no_rate_limit: bool,

    /// A header to send with every delivery, such as 'authorization: Bearer …'; those that are given replace all
    #[arg(long, value_name = "NAME: VALUE", value_parser = header, conflicts_with = "no_headers")]
    header: Vec<Header>,

    /// Remove all headers
    #[arg(long)]
    no_headers: bool,
}

impl Change {
    fn body(&self) -> CliResult<Value> {
        let mut body = Map::new();
        let mut set =
            |name: &str, value: Option<Value>| body.extend(value.map(|value| (name.to_owned(), value)));
        set("event_types", self.types.as_ref().map(|topics| json!(topic_list(topics))));
        set("callback_url", self.callback_url.as_ref().map(|url| json!(url)));
        set("description", self.description.as_ref().map(|text| json!(text)));
        set("description", self.no_description.then_some(Value::Null));
        set("max_retry_limit", self.max_retry_limit.map(|limit| json!(limit)));
        set("max_retry_limit", self.no_max_retry_limit.then_some(Value::Null));
        set("rate_limit", self.rate_limit.map(|limit| json!(limit)));
        set("rate_limit", self.no_rate_limit.then_some(Value::Null));
        if !self.header.is_empty() {
            set("headers", Some(headers(&self.header)?));
        }
        set("headers", self.no_headers.then_some(Value::Null));
        Ok(Value::Object(body))
    }
}

impl Update {
    pub(super) async fn run(self) -> CliResult {
        let client = self.remote.connect()?;
        let path = format!("/v1/subscriptions/{}", self.id);
        let answer = client.patch(&path, self.change.body()?.to_string()).await?;
        let existing = answer.problem().existing_id.filter(|_| answer.status() == 409);
        if let Some(existing) = existing {
            return Err(CliError::new(format!(
                "subscription {existing} has these topics and this endpoint already: see `hooksaga subscriptions show \
                 {existing}`"
            )));
        }
        self.remote.print(&answer, |subscription| show::print(&subscription))?;
        if self.wait {
            return verify::wait(&client, self.id, !self.remote.json).await;
        }
        Ok(())
    }
}

/// `pause` and `resume`.
pub(super) async fn set_active(one: One, active: bool) -> CliResult {
    let client = one.remote.connect()?;
    let body = json!({ "active": active }).to_string();
    let answer = client.patch(&format!("/v1/subscriptions/{}", one.id), body).await?;
    one.remote.print(&answer, |now: ApiSubscription| {
        output::line(switched(&now));
        output::note(missed(&now));
    })
}

/// What is sent of the events that come while it is not active, which nobody would guess.
fn missed(now: &ApiSubscription) -> String {
    let redrive = format!("hooksaga redrives start --events --subscription {}", now.id);
    if now.active {
        format!(
            "events that came while it was not active are not sent by themselves: `{redrive} --since TIME` sends them, each \
             once; take a time well before the pause"
        )
    } else {
        let since = well_before(&now.updated_at, &now.created_at);
        format!(
            "events that come meanwhile do not wait for it: once it is active, `{redrive} --since {since}` sends them, \
             each once"
        )
    }
}

fn switched(now: &ApiSubscription) -> String {
    let ApiSubscription { id, callback_url, .. } = now;
    match (now.active, now.verified) {
        (false, _) => format!("subscription {id} is paused: its open deliveries to {callback_url} wait"),
        (true, true) => format!("subscription {id} is active: what waited goes to {callback_url}"),
        (true, false) => format!(
            "subscription {id} is active, but its endpoint is not verified, so nothing is delivered yet: run \
             `hooksaga subscriptions verify {id} --wait`"
        ),
    }
}

pub(super) async fn rotate_secret(one: One) -> CliResult {
    #[derive(Deserialize)]
    struct Rotated {
        secret: String,
    }
    let client = one.remote.connect()?;
    let answer = client.post(&format!("/v1/subscriptions/{}/rotate-secret", one.id), "").await?;
    one.remote.print(&answer, |rotated: Rotated| {
        output::line(rotated.secret);
        output::note(
            "keep it now, it is not shown again: give it to the endpoint within 24 hours, until when the old one signs too",
        );
    })
}

#[cfg(test)]
mod tests {
    use super::{super::show::tests::subscription, *};
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        update: Update,
    }

    fn body(line: &[&str]) -> Option<Value> {
        let parsed = CommandLine::try_parse_from([&["update", "3"], line].concat()).ok()?;
        parsed.update.change.body().ok()
    }

    #[test]
    fn only_what_is_named_changes_and_null_clears() {
        assert_eq!(body(&["--types", "b,a"]), Some(json!({ "event_types": ["a", "b"] })));
        assert_eq!(
            body(&["--no-description", "--max-retry-limit", "9"]),
            Some(json!({ "description": null, "max_retry_limit": 9 }))
        );
        assert_eq!(body(&["--rate-limit", "50"]), Some(json!({ "rate_limit": 50 })));
        assert_eq!(body(&["--no-rate-limit"]), Some(json!({ "rate_limit": null })));
        assert_eq!(body(&["--rate-limit", "0"]), None);
        assert_eq!(body(&["--header", "X-Key: v"]), Some(json!({ "headers": { "x-key": "v" } })));
        assert_eq!(body(&["--no-headers"]), Some(json!({ "headers": null })));
        assert_eq!(body(&["--no-headers", "--header", "X-Key: v"]), None);
        assert_eq!(body(&[]), None, "something has to be named");
        assert_eq!(body(&["--description", "x", "--no-description"]), None);
        assert_eq!(body(&["--max-retry-limit", "101"]), None);
        assert_eq!(body(&["--wait", "--types", "a"]), None, "only a new address is waited for");
    }

    #[test]
    fn resuming_an_unverified_subscription_says_what_is_missing() {
        assert!(switched(&subscription(true, "failed")).contains("subscriptions verify 3 --wait"));
        assert!(switched(&subscription(false, "verified")).contains("paused"));
    }

    #[test]
    fn pausing_and_resuming_say_how_to_send_what_came_meanwhile() {
        let paused = ApiSubscription {
            created_at: "2026-01-01T12:00:00Z".to_owned(),
            updated_at: "2026-01-31T12:00:30.5Z".to_owned(),
            ..subscription(false, "verified")
        };
        let command = "`hooksaga redrives start --events --subscription 3 --since 2026-01-31T11:50:00Z`";
        assert!(missed(&paused).contains(command), "{}", missed(&paused));
        assert!(missed(&subscription(true, "verified")).contains("--subscription 3 --since TIME`"));
    }
}
