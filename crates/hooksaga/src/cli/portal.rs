//! `hooksaga portal`: a link to the customer portal of one tenant.

use super::remote::{Remote, tenant};
use crate::{
    config::parse_duration,
    error::CliResult,
    output::{self, Now},
};
use clap::Args;
use hooksaga_saga::Tenant;
use serde::Deserialize;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hooksaga portal acme
  hooksaga portal acme --ttl 15m

Whoever has the link sees and manages the webhooks of that tenant, and nothing else, until it expires.";

/// Print a link to the customer portal of a tenant
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Portal {
    /// Whose portal
    #[arg(value_name = "TENANT", value_parser = tenant)]
    tenant: Tenant,

    /// How long the link is valid, 1m to 24h
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    ttl: Duration,

    #[command(flatten)]
    remote: Remote,
}

#[derive(Deserialize)]
struct PortalSession {
    url: String,
    expires_at: String,
}

impl Portal {
    pub(super) async fn run(self) -> CliResult {
        let body = serde_json::json!({
            "tenant": self.tenant.as_str(),
            "ttl": format!("{}ms", self.ttl.as_millis()),
        });
        let answer = self.remote.connect()?.post("/v1/portal-sessions", body.to_string()).await?;
        self.remote.print(&answer, |session: PortalSession| {
            output::line(&session.url);
            output::note(format!("valid until {}", Now::local().both(&session.expires_at)));
        })
    }
}
