//! `hooksaga subscriptions add`.

use super::{
    care::{Header, header, headers},
    topic_list, topics, verify,
};
use crate::{
    cli::remote::{Remote, Subscription, tenant},
    client::Reply,
    error::{CliError, CliResult},
    output,
};
use clap::Args;
use hooksaga_saga::{Tenant, Topics};
use serde_json::json;

/// Subscribe an endpoint to events; its signing secret is printed, this once
#[derive(Args)]
#[command(after_help = "\
Examples:
  hooksaga subscriptions add order.created https://example.com/hook --wait
  hooksaga subscriptions add 'order.*,invoice.paid' https://example.com/hook --tenant acme

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

    /// Wait until the endpoint is verified, or has failed to prove itself
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    remote: Remote,
}

impl Add {
    pub(super) async fn run(self) -> CliResult {
        let client = self.remote.connect()?;
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
        let answer = client.post("/v1/subscriptions", body.to_string()).await?;
        if let Some(exists) = exists(&answer) {
            return Err(exists);
        }
        let created: Subscription = answer.json()?;
        if self.remote.json {
            output::line(answer.text().trim_end());
        } else {
            output::line(format!("subscription {} to {}", created.id, created.event_types.join(", ")));
            output::line(format!("secret {}", created.secret.as_deref().unwrap_or("-")));
            output::note(
                "keep the secret now, it is not shown again: the endpoint checks signatures with it",
            );
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
}

/// There is such a subscription already.
fn exists(answer: &Reply) -> Option<CliError> {
    let id = answer.problem().existing_id.filter(|_| answer.status() == 409)?;
    Some(CliError::new(format!(
        "subscription {id} has these topics and this endpoint already: see `hooksaga subscriptions show {id}`, or change it \
         with `hooksaga subscriptions update {id}`"
    )))
}
