//! `hooksaga subscriptions verify`, and waiting until an endpoint has proved itself.

use crate::{
    cli::remote::{ApiSubscription, Remote, advice, explain, id},
    client::Client,
    error::{CliError, CliResult},
    output::{self, ProgressBar},
};
use clap::Args;
use std::time::{Duration, Instant};

/// Three challenges, each with its timeout and the pauses between, take little more than a minute; hosts with many
/// endpoints take turns.
const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// What an endpoint has to do, in one clause.
const WHAT_IT_MUST_RETURN: &str = "to each POST of {\"type\":\"hooksaga.verification\",…,\"challenge\":\"…\"} the endpoint must respond within 10 s with 2xx \
     and the body {\"challenge\":\"…\"}, the same challenge and nothing else, or the challenge as plain text";

/// Send the endpoint a challenge again
#[derive(Args)]
#[command(after_help = "\
Examples:
  hooksaga subscriptions verify 3 --wait
  hooksaga subscriptions verify 3 --trusted

The challenge is sent at once, 5 s after that, and 30 s after that, until it is returned. An endpoint that is verified
stays so meanwhile.")]
pub(super) struct Verify {
    /// The id that `subscriptions list` shows
    #[arg(value_name = "ID", value_parser = id)]
    id: i64,

    /// Vouch for an endpoint that cannot return a challenge; needs callbacks.allow_trusted and a key without a tenant
    #[arg(long)]
    trusted: bool,

    /// Wait until the endpoint is verified, or has failed to prove itself
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    remote: Remote,
}

impl Verify {
    pub(super) async fn run(self) -> CliResult {
        let client = self.remote.connect()?;
        let body = if self.trusted { r#"{"trusted":true}"# } else { "" };
        let answer = client.post(&format!("/v1/subscriptions/{}/verify", self.id), body).await?;
        self.remote.print(&answer, |subscription: ApiSubscription| {
            let url = subscription.callback_url;
            output::line(match self.trusted {
                true => format!("{url} is about to be trusted without a challenge"),
                false => format!("a challenge is sent to {url}"),
            });
        })?;
        if self.wait {
            return wait(&client, self.id, !self.remote.json).await;
        }
        if !self.remote.json {
            output::note(format!("`hooksaga subscriptions show {}` says how it went", self.id));
        }
        Ok(())
    }
}

/// Follows the verification of a subscription to its end; the failure says what the endpoint must do. `aloud`: says on
/// stdout that it is verified.
pub(super) async fn wait(client: &Client, id: i64, aloud: bool) -> CliResult {
    let (begun, progress) = (Instant::now(), ProgressBar::new(None));
    let mut reported = None;
    loop {
        let answer = client.get(&format!("/v1/subscriptions/{id}")).await?;
        if answer.is_busy() && begun.elapsed() <= PATIENCE {
            tokio::time::sleep(answer.retry_after().unwrap_or(LOOK_AGAIN)).await;
            continue;
        }
        let now: ApiSubscription = answer.json()?;
        let verification = &now.verification;
        if verification.status != "pending" {
            progress.clear();
            let ended = verdict(&now)?;
            if aloud {
                output::line(ended);
            }
            return Ok(());
        }
        // The result of an earlier challenge of this round, once each.
        if let (Some(code), true) = (&verification.last_error, verification.checked_at != reported) {
            progress.clear();
            output::note(format!("not yet: {}; it is sent another challenge", explain(code)));
            reported = verification.checked_at.clone();
        }
        if begun.elapsed() > PATIENCE {
            progress.clear();
            return Err(CliError::new(format!(
                "the verification of subscription {id} has not ended after {} s: check that a server with the component \
                 `verifier` runs, then see `hooksaga subscriptions show {id}`",
                PATIENCE.as_secs()
            )));
        }
        progress.show(
            0,
            &format!("waiting for {} to prove itself, {} s", now.callback_url, begun.elapsed().as_secs()),
        );
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How a verification has ended.
fn verdict(now: &ApiSubscription) -> CliResult<String> {
    let ApiSubscription { id, callback_url, .. } = now;
    match (now.verified, now.verification.last_error.as_deref()) {
        (true, None) if now.active => Ok(format!("verified: {callback_url} gets deliveries")),
        (true, None) => {
            let disabled = now.disabled.as_ref();
            let state = disabled.map(|disabled| format!("disabled because {}", disabled.because()));
            Ok(format!(
                "verified, but {}: `hooksaga subscriptions resume {id}` lets deliveries go to {callback_url}",
                state.as_deref().unwrap_or("paused")
            ))
        }
        (true, Some(code)) => Err(CliError::new(format!(
            "{callback_url} did not prove itself this time ({}); it stays verified from before and gets deliveries. What \
             to do: {}",
            explain(code),
            advice(code)
        ))),
        (false, code) => {
            let code = code.unwrap_or("CHALLENGE_MISMATCH");
            Err(CliError::new(format!(
                "subscription {id} is not verified, so nothing is delivered to {callback_url}: {}. What to do: {}; \
                 {WHAT_IT_MUST_RETURN}. Then run `hooksaga subscriptions verify {id} --wait`",
                explain(code),
                advice(code)
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::show::tests::{gone, subscription},
        *,
    };
    use crate::client::scripted::{self, Reply};
    use serde_json::json;

    #[test]
    fn a_verdict_says_what_to_do() {
        assert!(verdict(&subscription(true, "verified")).expect("verified").contains("gets deliveries"));
        let paused = verdict(&subscription(false, "verified")).expect("verified");
        assert!(paused.starts_with("verified, but paused: `hooksaga subscriptions resume 3`"), "{paused}");
        let gone = verdict(&gone()).expect("verified");
        assert!(
            gone.starts_with("verified, but disabled because its endpoint returned 410 Gone: `"),
            "{gone}"
        );
        let failed = verdict(&subscription(true, "failed")).expect_err("failed").to_string();
        for part in ["HTTP_404", "What to do", "{\"challenge\":\"…\"}", "subscriptions verify 3 --wait"] {
            assert!(failed.contains(part), "{part} in {failed}");
        }
        let mut stays = subscription(true, "verified");
        stays.verification.last_error = Some("TIMEOUT".to_owned());
        assert!(verdict(&stays).expect_err("not this time").to_string().contains("stays verified"));
    }

    #[tokio::test]
    async fn waiting_ends_with_the_verification() {
        let state = |status: &str| {
            json!({
                "id": 3, "tenant": "default", "event_types": ["a"], "callback_url": "https://x/h", "active": true,
                "verified": status == "verified", "created_at": "", "updated_at": "",
                "verification": { "status": status, "checked_at": null, "last_error": null },
            })
        };
        let script = ["pending", "pending", "verified"].map(|status| Reply::new(200, &state(status)));
        let (url, requests) = scripted::serve(script.to_vec()).await;
        let client = Client::new(&url, "k").expect("valid");
        wait(&client, 3, false).await.expect("verified");
        assert_eq!(requests.take().len(), 3);
    }
}
