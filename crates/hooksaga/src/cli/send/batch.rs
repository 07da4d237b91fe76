//! Many events from a file, through the batch endpoint.
//!
//! A line that cannot be accepted is reported with its number and never holds up the others. An overloaded
//! server, or one that limits this key's requests, is waited for. When nothing more can be sent, the error says at which line
//! to go on. Events without `external_id` may be stored twice if a response is lost on the way.

use super::{
    Event, Given,
    lines::{BadLine, EventLine, LineBatch, LineBatches},
};
use crate::{
    client::{Client, Reply},
    error::{CliError, CliResult},
    output::{self, ProgressBar},
};
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// How long an overloaded server is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the lines.
#[derive(Debug, Default, Serialize)]
struct LineCounts {
    accepted: u64,
    duplicates: u64,
    failed: u64,
}

#[derive(Serialize)]
struct Request<'a> {
    events: Vec<&'a Event>,
}

#[derive(Deserialize)]
struct BatchResults {
    results: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    error: Option<serde_json::Value>,
    #[serde(default)]
    duplicate: bool,
}

pub(super) async fn send(client: Client, path: &Path, given: Given<'_>, json: bool) -> CliResult {
    let (mut batches, size) = LineBatches::open(path, given)?;
    let mut sender = BatchSender { client, progress: ProgressBar::new(size), tally: LineCounts::default() };
    let mut done = 0;
    let ended = async {
        while let Some(batch) = batches.next()? {
            sender.send(batch).await.map_err(|error| goes_on_after(&error, done, batches.line))?;
            done = batches.line;
            sender.progress.show(batches.read, &format!("{} events", sender.tally.accepted));
        }
        Ok(())
    };
    let ended: CliResult = ended.await;
    sender.progress.clear();
    let LineCounts { accepted, duplicates, failed } = sender.tally;
    if json {
        output::line(serde_json::to_string(&sender.tally).map_err(|error| CliError::new(error.to_string()))?);
    } else {
        output::line(format!("{accepted} accepted, {duplicates} there already, {failed} failed"));
    }
    ended?;
    if failed > 0 {
        let lines = output::count(failed, "line");
        return Err(CliError::new(format!(
            "not accepted: {lines}, see above; correct and send again what is in them"
        )));
    }
    Ok(())
}

/// Says where to go on: up to the line `done` the file is sent. What the server did with the lines after it, up to `sent`, is not
/// known if its response was lost.
fn goes_on_after(error: &CliError, done: u64, sent: u64) -> CliError {
    CliError::new(format!(
        "{error}; lines up to {done} are done, so send the rest of the file again (those up to {sent} may be stored already: only \
         an external_id keeps them from being stored twice)"
    ))
}

struct BatchSender {
    client: Client,
    progress: ProgressBar,
    tally: LineCounts,
}

impl BatchSender {
    async fn send(&mut self, batch: LineBatch) -> CliResult {
        for bad in &batch.bad {
            self.failed(bad);
        }
        let mut waiting = vec![batch.lines];
        while let Some(lines) = waiting.pop() {
            if lines.is_empty() {
                continue;
            }
            let answer = self.post(&lines).await?;
            match answer.status() {
                413 if lines.len() > 1 => {
                    let mut first = lines;
                    let second = first.split_off(first.len() / 2);
                    waiting.extend([second, first]);
                }
                413 | 422 => waiting.push(self.drop_refused(lines, &answer)?),
                _ => self.count(&lines, &answer)?,
            }
        }
        Ok(())
    }

    /// Posts a batch, waiting for a server that is overloaded or limits this key.
    async fn post(&mut self, lines: &[EventLine]) -> CliResult<Reply> {
        let request = Request { events: lines.iter().map(|line| &line.event).collect() };
        let body = serde_json::to_vec(&request).map_err(|error| CliError::new(error.to_string()))?;
        let begun = Instant::now();
        loop {
            let answer = self.client.post("/v1/events/batch", body.clone()).await?;
            if !answer.is_busy() || begun.elapsed() > PATIENCE {
                return Ok(answer);
            }
            let pause = answer.retry_after().unwrap_or(Duration::from_secs(1));
            tokio::time::sleep(pause.clamp(Duration::from_millis(100), Duration::from_secs(10))).await;
        }
    }

    fn count(&mut self, lines: &[EventLine], answer: &Reply) -> CliResult {
        let results: BatchResults = answer.json()?;
        if results.results.len() != lines.len() {
            return Err(CliError::new(
                "the server returned results for a different number of events than were sent",
            ));
        }
        for (line, item) in lines.iter().zip(results.results) {
            match item.error {
                Some(error) => self.failed(&BadLine { number: line.number, problem: in_words(&error) }),
                None if item.duplicate => self.tally.duplicates += 1,
                None => self.tally.accepted += 1,
            }
        }
        Ok(())
    }

    /// Reports the lines that the server finds invalid, and returns the others, none of which was stored.
    fn drop_refused(&mut self, lines: Vec<EventLine>, answer: &Reply) -> CliResult<Vec<EventLine>> {
        let problem = answer.problem();
        let problem_of = |index: usize| {
            if lines.len() == 1 {
                return Some(problem.line(answer.status()));
            }
            let prefix = format!("events[{index}]");
            let mine = problem.errors.iter().filter_map(|error| {
                let rest = error.field.strip_prefix(&prefix)?;
                Some(format!("{}: {}", rest.trim_start_matches('.'), error.detail))
            });
            let mine: Vec<String> = mine.collect();
            (!mine.is_empty()).then(|| mine.join("; "))
        };
        let problems: Vec<Option<String>> = (0..lines.len()).map(problem_of).collect();
        if problems.iter().all(Option::is_none) {
            return Err(CliError::new(problem.line(answer.status())));
        }
        let mut rest = Vec::new();
        for (line, problem) in lines.into_iter().zip(problems) {
            match problem {
                Some(problem) => self.failed(&BadLine { number: line.number, problem }),
                None => rest.push(line),
            }
        }
        Ok(rest)
    }

    fn failed(&mut self, line: &BadLine) {
        self.progress.clear();
        output::note(format!("line {}: {}", line.number, line.problem));
        self.tally.failed += 1;
    }
}

/// The error of one event: a problem, or a text.
fn in_words(error: &serde_json::Value) -> String {
    let text = |name: &str| error.get(name).and_then(serde_json::Value::as_str);
    let found = error.as_str().or_else(|| text("detail")).or_else(|| text("title"));
    found.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::scripted::{self, Reply};
    use serde_json::json;

    fn batch(numbers: std::ops::RangeInclusive<u64>) -> LineBatch {
        let line = |number: u64| {
            let payload = serde_json::from_str(&number.to_string()).expect("a number is JSON");
            EventLine {
                number,
                event: Event { event_type: "t".into(), payload, external_id: None, tenant: None },
            }
        };
        LineBatch { lines: numbers.map(line).collect(), bad: Vec::new() }
    }

    async fn sender(script: Vec<Reply>) -> (BatchSender, scripted::Requests) {
        let (url, requests) = scripted::serve(script).await;
        let client = Client::new(&url, "k").expect("valid");
        (BatchSender { client, progress: ProgressBar::new(None), tally: LineCounts::default() }, requests)
    }

    fn accepted(count: usize) -> Reply {
        Reply::new(200, &json!({ "results": vec![json!({ "id": 1, "duplicate": false }); count] }))
    }

    /// The payloads of a request, in order.
    fn payloads(request: &serde_json::Value) -> Vec<u64> {
        let events = request["events"].as_array().expect("a batch");
        events.iter().filter_map(|event| event["payload"].as_u64()).collect()
    }

    #[tokio::test]
    async fn a_batch_that_is_too_large_is_halved_in_order() {
        let (mut sender, requests) =
            sender(vec![Reply::new(413, &json!({})), accepted(2), accepted(3)]).await;
        sender.send(batch(1..=5)).await.expect("sent");
        assert_eq!(sender.tally.accepted, 5);
        let sent: Vec<Vec<u64>> = requests.take().iter().map(payloads).collect();
        assert_eq!(sent, [vec![1, 2, 3, 4, 5], vec![1, 2], vec![3, 4, 5]]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_large_costs_no_other() {
        let too_large = || Reply::new(413, &json!({}));
        let (mut sender, requests) = sender(vec![too_large(), too_large(), accepted(1)]).await;
        sender.send(batch(1..=2)).await.expect("sent");
        assert_eq!((sender.tally.accepted, sender.tally.failed), (1, 1));
        let sent: Vec<Vec<u64>> = requests.take().iter().map(payloads).collect();
        assert_eq!(sent, [vec![1, 2], vec![1], vec![2]]);
    }

    #[tokio::test]
    async fn invalid_lines_are_left_out_and_the_others_are_sent() {
        let errors = json!({ "errors": [{ "field": "events[1].event_type", "detail": "bad" }] });
        let results = json!({ "results": [{ "duplicate": true }, { "error": { "detail": "taken" } }] });
        let (mut sender, requests) = sender(vec![Reply::new(422, &errors), Reply::new(200, &results)]).await;
        sender.send(batch(1..=3)).await.expect("sent");
        assert_eq!((sender.tally.accepted, sender.tally.duplicates, sender.tally.failed), (0, 1, 2));
        assert_eq!(payloads(&requests.take()[1]), [1, 3]);
    }

    #[tokio::test]
    async fn an_overloaded_server_is_waited_for_and_a_refusal_is_not() {
        let (mut sender, requests) = sender(vec![Reply::new(503, &json!({})), accepted(1)]).await;
        sender.send(batch(1..=1)).await.expect("sent");
        assert_eq!(requests.take().len(), 2);

        let (mut limited, requests) = self::sender(vec![Reply::new(429, &json!({})), accepted(1)]).await;
        limited.send(batch(1..=1)).await.expect("sent");
        assert_eq!(requests.take().len(), 2, "so is a limit of requests");

        let (mut sender, _) = self::sender(vec![Reply::new(401, &json!({ "title": "No key" }))]).await;
        let error = sender.send(batch(1..=1)).await.expect_err("refused").to_string();
        assert!(error.contains("401") && error.contains("HOOKSAGA_API_KEY"), "{error}");
    }

    #[test]
    fn an_error_is_shown_by_what_it_says() {
        assert_eq!(in_words(&serde_json::json!("taken")), "taken");
        assert_eq!(in_words(&serde_json::json!({"title": "Conflict", "detail": "taken by 7"})), "taken by 7");
        assert_eq!(in_words(&serde_json::json!({"code": 7})), "{\"code\":7}");
    }
}
