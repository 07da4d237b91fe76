//! `hooksaga subscriptions add`.

use super::{
    care::{Header, header, headers},
    topic_list, topics, verify,
};
use crate::{
    cli::remote::{ApiSubscription, Remote, read_argument, tenant},
    client::Reply,
    error::{CliError, CliResult},
    output,
};
use clap::Args;
use hooksaga_saga::{Tenant, Topics};
use serde_json::{Value, json};

/// Subscribe an endpoint to events; its signing secret is printed, this once
#[derive(Args)]
#[command(after_help = "\
Examples:
  hooksaga subscriptions add order.created https://example.com/hook --wait
  hooksaga subscriptions add 'order.*,invoice.paid' https://example.com/hook --tenant acme
  hooksaga subscriptions add 'order.*' https://example.com/hook --secret @acme.secret --paused

The endpoint is sent a challenge at once, which it must return; deliveries begin then. `hooksaga listen` does that by
itself.")]
pub(super) struct Add {
    /// Event types, prefix.* or *, separated by commas
    #[arg(value_name = "TYPE[,TYPE…]", value_parser = topics)]
    topics: Topics,

    /// The endpoint's address
    #[arg(value_name = "URL")]
    callback_url: String,

    /// Whose subscription it is: it gets only this tenant's events [default: default]
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<Tenant>,

    /// A note for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    /// Attempts per delivery, the first included [default: the server's setting]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    max_retry_limit: Option<u32>,

    /// Attempts started per second at most, retries included [default: not limited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate_limit: Option<u32>,

    /// A header to send with every delivery, such as 'authorization: Bearer …'; at most 16
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<Header>,

    /// The signing secret that the endpoint has already, as @FILE, as - for standard input, or whsec_… itself, which other
    /// users of this machine can see [default: a new one]
    #[arg(long, value_name = "SECRET")]
    secret: Option<String>,

    /// Deliver nothing until `subscriptions resume`; it is verified all the same
    #[arg(long)]
    paused: bool,

    /// Wait until the endpoint is verified, or has failed to prove itself
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    remote: Remote,
}

impl Add {
    pub(super) async fn run(self) -> CliResult {
        let client = self.remote.connect()?;
        let answer = client.post("/v1/subscriptions", self.body()?.to_string()).await?;
        if let Some(exists) = exists(&answer) {
            return Err(exists);
        }
        let created: ApiSubscription = answer.json()?;
        if self.remote.json {
            output::line(answer.text().trim_end());
        } else {
            self.tell(&created);
        }
        if self.wait {
            return verify::wait(&client, created.id, !self.remote.json).await;
        }
        if !self.remote.json {
            output::note(format!(
                "the endpoint is being verified: `hooksaga subscriptions show {}` says how it went",
                created.id
            ));
        }
        Ok(())
    }

    fn body(&self) -> CliResult<Value> {
        let mut body = json!({ "event_types": topic_list(&self.topics), "callback_url": self.callback_url });
        if let Some(tenant) = &self.tenant {
            body["tenant"] = json!(tenant.as_str());
        }
        if let Some(description) = &self.description {
            body["description"] = json!(description);
        }
        if let Some(limit) = self.max_retry_limit {
            body["max_retry_limit"] = json!(limit);
        }
        if let Some(limit) = self.rate_limit {
            body["rate_limit"] = json!(limit);
        }
        if !self.header.is_empty() {
            body["headers"] = headers(&self.header)?;
        }
        if let Some(secret) = &self.secret {
            body["secret"] = json!(read_argument(secret, "the secret")?.trim());
        }
        if self.paused {
            body["active"] = json!(false);
        }
        Ok(body)
    }

    fn tell(&self, created: &ApiSubscription) {
        output::line(format!("subscription {} to {}", created.id, created.event_types.join(", ")));
        if self.secret.is_none() {
            output::line(format!("secret {}", created.secret.as_deref().unwrap_or("-")));
            output::note(
                "keep the secret now, it is not shown again: the endpoint checks signatures with it",
            );
        }
        if self.paused {
            output::note(format!(
                "it is paused: nothing is delivered until `hooksaga subscriptions resume {}`",
                created.id
            ));
        }
    }
}

/// There is such a subscription already.
fn exists(answer: &Reply) -> Option<CliError> {
    let id = answer.problem().existing_id.filter(|_| answer.status() == 409)?;
    Some(CliError::new(format!(
        "subscription {id} has these topics and this endpoint already: see `hooksaga subscriptions show {id}`, or change it \
         with `hooksaga subscriptions update {id}`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use hooksaga_testkit::scratch::ScratchDir;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        add: Add,
    }

    fn body(line: &[&str]) -> CliResult<Value> {
        let given = [&["add", "a", "https://x/h"], line].concat();
        CommandLine::try_parse_from(given).expect("a command line").add.body()
    }

    #[test]
    fn a_present_secret_comes_from_a_file_or_as_it_is_and_a_paused_one_is_not_active() {
        let plain = body(&[]).expect("a body");
        assert_eq!(plain, json!({ "event_types": ["a"], "callback_url": "https://x/h" }));
        let folder = ScratchDir::new("secret");
        let file = folder.path().join("secret");
        std::fs::write(&file, "whsec_MfKQ\n").expect("a scratch file");
        for secret in ["whsec_MfKQ".to_owned(), format!("@{}", file.display())] {
            let body = body(&["--secret", &secret, "--paused"]).expect("a body");
            assert_eq!((&body["secret"], &body["active"]), (&json!("whsec_MfKQ"), &json!(false)));
        }
        let missing = body(&["--secret", "@no-such-file"]).expect_err("not there").to_string();
        assert!(missing.contains("the secret from no-such-file"), "{missing}");
    }
}
