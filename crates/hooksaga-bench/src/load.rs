//! The clients of a measurement: as fast as they are answered, or at a fixed rate whatever the answers do.

use super::receiver::{Tally, payload};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpStream, task::JoinSet, time::Instant};

/// Where the load goes, and as what.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    pub(super) address: SocketAddr,
    pub(super) path: String,
    pub(super) key: String,
    pub(super) event_type: String,
    pub(super) payload_bytes: usize,
}

/// One keep-alive connection.
struct LoadClient {
    aim: Aim,
    sender: SendRequest<Full<Bytes>>,
}

impl LoadClient {
    async fn connect(aim: Aim) -> Result<Self, String> {
        let stream = TcpStream::connect(aim.address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(Self { aim, sender })
    }

    /// Posts one event; anything but success is an error.
    async fn post(&mut self, event: u64) -> Result<(), String> {
        let payload = payload(event, self.aim.payload_bytes);
        let body = format!(r#"{{"event_type":"{}","payload":{payload}}}"#, self.aim.event_type);
        let request = Request::post(&self.aim.path)
            .header(header::HOST, "127.0.0.1")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.aim.key))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let response = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        if status.is_success() {
            return Ok(());
        }
        Err(format!("{} answered {status}: {}", self.aim.path, String::from_utf8_lossy(&body)))
    }
}

/// When each event was posted, in nanoseconds of its tally.
pub(super) type Posted = Arc<Vec<AtomicU64>>;

/// How many events were posted: all, unless the time was over.
pub(super) fn count(posted: &Posted) -> u64 {
    posted.iter().filter(|at| at.load(Ordering::Acquire) > 0).count() as u64
}

fn posted(events: u64) -> Posted {
    Arc::new((0..events).map(|_| AtomicU64::new(0)).collect())
}

/// What became of events that were posted on time.
pub(super) struct OnTime {
    pub(super) posted: Posted,
    /// Times from post to answer, in microseconds, sorted.
    pub(super) answers: Vec<u64>,
}

/// When posting has to end, in nanoseconds of the tally.
fn end(tally: &Tally, longest: Duration) -> u64 {
    tally.now().saturating_add(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX))
}

/// Posts `events` events from `clients` connections, each as fast as it is answered, for `longest` at most. The
/// connections are spread over the aims.
pub(super) async fn closed_loop(
    aims: &[Aim],
    tally: &Arc<Tally>,
    events: u64,
    clients: usize,
    longest: Duration,
) -> Result<Posted, String> {
    let (next, posted) = (Arc::new(AtomicU64::new(0)), posted(events));
    let mut tasks: JoinSet<Result<(), String>> = JoinSet::new();
    let end = end(tally, longest);
    for aim in aims.iter().cycle().take(clients) {
        let mut client = LoadClient::connect(aim.clone()).await?;
        let (next, posted, tally) = (Arc::clone(&next), Arc::clone(&posted), Arc::clone(tally));
        tasks.spawn(async move {
            while tally.now() < end {
                let event = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = usize::try_from(event).ok().and_then(|event| posted.get(event)) else {
                    return Ok(());
                };
                slot.store(tally.now(), Ordering::Release);
                client.post(event).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(posted)
}

/// Posts `events` events at `rate` a second, on time, however slow the responses are: each client has every n-th
/// event and posts it when it is due, or as soon after as it can, for `longest` at most.
///
/// An event whose client was late counts from when it was due, not from when the client was free: a server
/// that stalls cannot hide it.
pub(super) async fn open_loop(
    aim: &Aim,
    tally: &Arc<Tally>,
    rate: u32,
    events: u64,
    clients: usize,
    longest: Duration,
) -> Result<OnTime, String> {
    let posted = posted(events);
    let mut tasks: JoinSet<Result<Vec<u64>, String>> = JoinSet::new();
    let mut connected = Vec::with_capacity(clients);
    for _ in 0..clients {
        connected.push(LoadClient::connect(aim.clone()).await?);
    }
    let (start, began, end) = (Instant::now(), tally.now(), end(tally, longest));
    for (number, mut client) in connected.into_iter().enumerate() {
        let (posted, tally) = (Arc::clone(&posted), Arc::clone(tally));
        tasks.spawn(async move {
            let mut answers = Vec::new();
            for (event, slot) in posted.iter().enumerate().skip(number).step_by(clients) {
                if tally.now() >= end {
                    break;
                }
                let event = event as u64;
                let offset = Duration::from_secs(event) / rate.max(1);
                let due = began + u64::try_from(offset.as_nanos()).unwrap_or(u64::MAX);
                if due > tally.now() {
                    // In time: the post counts from when the timer, which knows only milliseconds, lets it go.
                    tokio::time::sleep_until(start + offset).await;
                    slot.store(tally.now(), Ordering::Release);
                } else {
                    slot.store(due, Ordering::Release);
                }
                client.post(event).await?;
                answers.push(tally.now().saturating_sub(slot.load(Ordering::Acquire)) / 1000);
            }
            Ok(answers)
        });
    }
    let mut answers = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        answers.extend(ended.map_err(|error| error.to_string())??);
    }
    answers.sort_unstable();
    Ok(OnTime { posted, answers })
}

/// The times from post to arrival, in microseconds, sorted.
pub(super) fn latencies(posted: &Posted, tally: &Tally) -> Vec<u64> {
    let mut micros: Vec<u64> = posted
        .iter()
        .enumerate()
        .filter_map(|(event, at)| {
            Some(tally.arrival(event)?.saturating_sub(at.load(Ordering::Acquire)) / 1000)
        })
        .collect();
    micros.sort_unstable();
    micros
}

/// The value below which this share of sorted values lies.
pub(super) fn percentile(sorted: &[u64], share: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a list that fits into memory"
    )]
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_stay_within_the_list() {
        let sorted: Vec<u64> = (0..100).collect();
        assert_eq!(
            (percentile(&sorted, 0.5), percentile(&sorted, 0.99), percentile(&sorted, 1.0)),
            (50, 99, 99)
        );
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn what_was_posted_is_counted() {
        let posted = posted(5);
        assert_eq!(count(&posted), 0);
        posted[1].store(7, Ordering::Release);
        posted[4].store(9, Ordering::Release);
        assert_eq!(count(&posted), 2);
    }
}
