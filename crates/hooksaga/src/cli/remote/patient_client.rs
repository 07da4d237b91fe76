//! A client that keeps asking while the server restarts or is busy.

use crate::{
    client::{Client, Reply},
    error::CliResult,
    output::{self, ProgressBar},
};
use std::time::Duration;

/// How long a server that is not there is left alone.
const WHILE_AWAY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });
/// The shortest wait, even if a busy server asks for less.
const SHORTEST: Duration = Duration::from_millis(500);
/// The longest wait, even if a busy server asks for more.
const LONGEST: Duration = Duration::from_secs(30);

/// A client that waits while its server is away or busy, and says so once. Whoever uses it ends it (Ctrl-C).
pub(in crate::cli) struct PatientClient<'a> {
    client: &'a Client,
    /// It is removed before anything is printed.
    progress: Option<&'a ProgressBar>,
    /// It has been there before. At the start an address that nobody listens on is most likely a wrong one.
    reached: bool,
    away: bool,
}

impl<'a> PatientClient<'a> {
    pub(in crate::cli) fn new(client: &'a Client) -> Self {
        Self { client, progress: None, reached: false, away: false }
    }

    /// The same for a server that has just responded.
    pub(in crate::cli) fn reached(client: &'a Client) -> Self {
        Self { reached: true, ..Self::new(client) }
    }

    /// The same beside a display of progress.
    pub(in crate::cli) fn beside(self, progress: &'a ProgressBar) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Asks until the server responds with something else than that it cannot serve just now.
    pub(in crate::cli) async fn get(&mut self, target: &str) -> CliResult<Reply> {
        loop {
            let (why, pause) = match self.client.get(target).await {
                Err(failure) if !self.reached => return Err(failure),
                Err(failure) => (failure.to_string(), WHILE_AWAY),
                Ok(reply) if reply.is_busy() => {
                    let asked = reply.retry_after().unwrap_or(WHILE_AWAY);
                    (reply.problem().line(reply.status()), asked.clamp(SHORTEST, LONGEST))
                }
                Ok(reply) => {
                    self.reached = true;
                    if std::mem::take(&mut self.away) {
                        self.say("the server is back");
                    }
                    return Ok(reply);
                }
            };
            if !std::mem::replace(&mut self.away, true) {
                self.say(&format!("waiting for the server: {why}"));
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn say(&self, text: &str) {
        if let Some(progress) = self.progress {
            progress.clear();
        }
        output::note(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::scripted::{self, Reply as Scripted};
    use serde_json::json;

    #[tokio::test]
    async fn busy_moments_and_lost_connections_are_waited_out() {
        let busy = |status| Scripted::new(status, &json!({"title": "later"}));
        // A GET whose connection breaks is sent once more by itself.
        let script =
            vec![busy(503), busy(429), Scripted::lost(), Scripted::lost(), Scripted::new(200, &json!(7))];
        let (url, requests) = scripted::serve(script).await;
        let client = Client::new(&url, "k").expect("valid");
        let reply = PatientClient::reached(&client).get("/v1/stats").await.expect("in the end");
        assert_eq!((reply.status(), requests.take().len()), (200, 5));
    }

    #[tokio::test]
    async fn what_is_wrong_is_not_waited_for() {
        let (url, _) =
            scripted::serve(vec![Scripted::new(404, &json!({})), Scripted::lost(), Scripted::lost()]).await;
        let client = Client::new(&url, "k").expect("valid");
        assert_eq!(PatientClient::new(&client).get("/v1/x").await.expect("a response").status(), 404);
        assert!(PatientClient::new(&client).get("/v1/x").await.is_err(), "nobody was there before");
    }
}
