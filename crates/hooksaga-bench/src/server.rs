//! A server under measurement: started, asked, and ended.

use super::{
    api::Api,
    error::{BenchError, BenchResult},
    usage,
};
use hooksaga_pipeline::random_hex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    process::{Child, Command},
    task::JoinSet,
};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);

/// A running server; killed when dropped.
pub(super) struct Server {
    process: Child,
    log: fs::File,
    pub(super) url: String,
    pub(super) key: String,
    pub(super) api: Arc<Api>,
}

impl Server {
    /// Starts one, with a log in a folder, and waits until it is ready; how long that took.
    pub(super) async fn start(
        mut command: Command,
        folder: &Path,
        key: &str,
    ) -> BenchResult<(Self, Duration)> {
        let path = folder.join(format!("server-{}.log", random_hex(4)));
        let no_log = |error| BenchError::new(format!("cannot write a log: {error}"));
        let log = fs::File::create(&path).map_err(no_log)?;
        let began = Instant::now();
        command.stdout(log.try_clone().map_err(no_log)?).stderr(Stdio::null());
        let process = command.spawn();
        let process =
            process.map_err(|error| BenchError::new(format!("cannot start the server: {error}")))?;
        let url = listening(&path, began).await?;
        let api = Api::new(&url, key);
        while !api.is_ready().await {
            if began.elapsed() > START {
                return Err(BenchError::new("the server did not become ready"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok((Self { process, log, url, key: key.to_owned(), api: Arc::new(api) }, began.elapsed()))
    }

    fn id(&self) -> u32 {
        self.process.id().unwrap_or(0)
    }

    pub(super) fn cpu(&self) -> Duration {
        usage::cpu(self.id())
    }

    pub(super) fn peak_memory(&self) -> u64 {
        usage::peak_memory(self.id())
    }

    /// Waits until its log is on disk.
    pub(super) fn write_log(&self) -> BenchResult {
        let written = self.log.sync_all();
        written.map_err(|error| BenchError::new(format!("cannot write the server's log: {error}")))
    }

    /// How many bytes it has sent to disks, but for its log.
    pub(super) fn written(&self) -> Option<u64> {
        let log = self.log.metadata().map_or(0, |data| data.len());
        Some(usage::written(self.id())?.saturating_sub(log))
    }

    /// Creates a subscription and waits until it is verified; its id.
    pub(super) async fn subscribe(&self, event_type: &str, url: &str) -> BenchResult<i64> {
        let id = create(&self.api, event_type, url).await?;
        let began = Instant::now();
        while began.elapsed() < START {
            if self.is_verified(id).await? {
                return Ok(id);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(BenchError::new("the benchmark's own receiver was not verified"))
    }

    /// Creates subscriptions, a few at a time, and waits until all are verified; their ids.
    pub(super) async fn subscribe_all(
        &self,
        subscriptions: impl Iterator<Item = (String, String)>,
    ) -> BenchResult<Vec<i64>> {
        const VERIFIED: &str = r#"hooksaga_verifications_total{outcome="verified"}"#;
        const PATIENCE: Duration = Duration::from_secs(60);
        let before = self.api.metric(VERIFIED).await?;
        let ids = self.request_all(subscriptions).await?;
        let began = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
        while self.api.metric(VERIFIED).await? - before < ids.len() as f64 {
            if began.elapsed() > PATIENCE {
                return Err(BenchError::new("the benchmark's own receivers were not all verified"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(ids)
    }

    /// Creates subscriptions, a few at a time, and does not wait until they are verified; their ids.
    pub(super) async fn request_all(
        &self,
        subscriptions: impl Iterator<Item = (String, String)>,
    ) -> BenchResult<Vec<i64>> {
        const AT_A_TIME: usize = 16;
        let (mut ids, mut running) = (Vec::new(), JoinSet::new());
        let ended = |result: Result<BenchResult<i64>, _>| {
            result.unwrap_or_else(|_| Err(BenchError::new("a request was given up")))
        };
        for (event_type, url) in subscriptions {
            if running.len() >= AT_A_TIME
                && let Some(result) = running.join_next().await
            {
                ids.push(ended(result)?);
            }
            let api = Arc::clone(&self.api);
            running.spawn(async move { create(&api, &event_type, &url).await });
        }
        while let Some(result) = running.join_next().await {
            ids.push(ended(result)?);
        }
        Ok(ids)
    }

    /// Whether a subscription is verified.
    pub(super) async fn is_verified(&self, subscription: i64) -> BenchResult<bool> {
        Ok(self.api.get(&format!("/v1/subscriptions/{subscription}")).await?["verified"] == true)
    }

    /// Sets a subscription's rate limit, in attempts a second.
    pub(super) async fn limit(&self, subscription: i64, rate: u32) -> BenchResult {
        let path = format!("/v1/subscriptions/{subscription}");
        self.api.patch(&path, &json!({"rate_limit": rate})).await.map(|_| ())
    }

    /// Pauses a subscription: what waits for it is left alone from now on.
    pub(super) async fn pause(&self, subscription: i64) -> BenchResult {
        self.set_active(subscription, false).await
    }

    pub(super) async fn resume(&self, subscription: i64) -> BenchResult {
        self.set_active(subscription, true).await
    }

    async fn set_active(&self, subscription: i64, active: bool) -> BenchResult {
        let path = format!("/v1/subscriptions/{subscription}");
        self.api.patch(&path, &json!({"active": active})).await.map(|_| ())
    }

    /// Ends it at once: what it has in flight is of no interest any more.
    pub(super) async fn kill(mut self) {
        let _ = self.process.kill().await;
    }

    /// Posts a batch of events.
    pub(super) async fn post_batch(&self, events: &[Value]) -> BenchResult {
        let body = json!({ "events": events });
        self.api.post("/v1/events/batch", &body).await.map(|_| ())
    }

    /// Asks it to end, so that the last results are written, and waits until it is gone; not for endpoints that hang.
    pub(super) async fn stop(mut self) {
        const PATIENCE: Duration = Duration::from_secs(3);
        let id = self.process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if id.is_some_and(|id| kill_process(id, Signal::TERM).is_ok())
            && tokio::time::timeout(PATIENCE, self.process.wait()).await.is_ok()
        {
            return;
        }
        let _ = self.process.kill().await;
    }
}

/// The address that a server's log names.
async fn listening(log: &Path, began: Instant) -> BenchResult<String> {
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        let record = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut found = record.filter_map(|record| {
            record["message"].as_str()?.strip_prefix("listening on ").map(|url| url.trim().to_owned())
        });
        if let Some(url) = found.next_back() {
            return Ok(url);
        }
        if began.elapsed() > START {
            return Err(BenchError::new(format!(
                "the server did not start; its log ends with: {}",
                tail(&text)
            )));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Creates a subscription; its id.
async fn create(api: &Api, event_type: &str, url: &str) -> BenchResult<i64> {
    let body = json!({"event_type": event_type, "callback_url": url});
    let created = api.post("/v1/subscriptions", &body).await?;
    created["id"].as_i64().ok_or_else(|| BenchError::new("a subscription without an id"))
}

fn tail(text: &str) -> &str {
    text.lines().last().unwrap_or("nothing")
}
