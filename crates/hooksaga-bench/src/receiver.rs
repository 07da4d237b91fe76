//! The receiver of a measurement: as cheap as it can be, and exact about what arrived when.
//!
//! It is not the tests' receiver, which keeps every request and panics when it cannot go on, nor that of
//! `hooksaga listen`, which checks signatures and passes every body on: the receiver shares the machine with what it
//! measures, and the ceiling is measured against it too.

use super::error::{BenchError, BenchResult};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    fmt::Write as _,
    sync::{
        Arc, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::Semaphore};

/// What one measurement expects to arrive, and what did.
#[derive(Debug)]
pub(super) struct Tally {
    began: Instant,
    fan_out: usize,
    /// When each delivery arrived first, in nanoseconds from `began`; 0: not yet.
    arrived: Vec<AtomicU64>,
    expected: AtomicU64,
    first: AtomicU64,
    again: AtomicU64,
}

impl Tally {
    /// Expects `events` events at `fan_out` paths each.
    pub(super) fn new(events: u64, fan_out: usize) -> Arc<Self> {
        let slots = usize::try_from(events).unwrap_or(usize::MAX).saturating_mul(fan_out);
        Arc::new(Self {
            began: Instant::now(),
            fan_out,
            arrived: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            expected: AtomicU64::new(slots as u64),
            first: AtomicU64::new(0),
            again: AtomicU64::new(0),
        })
    }

    /// Nanoseconds since the measurement began.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    fn arrive(&self, event: usize, path: usize) {
        let Some(slot) = self.arrived.get(event * self.fan_out + path) else { return };
        let fresh = slot.compare_exchange(0, self.now(), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let count = if fresh { &self.first } else { &self.again };
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// How many deliveries arrived, each counted once.
    pub(super) fn count(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    /// How many deliveries there are to be.
    pub(super) fn expected(&self) -> u64 {
        self.expected.load(Ordering::Acquire)
    }

    /// Expects only this many events from now on: the time for posting is over.
    pub(super) fn expect(&self, events: u64) {
        self.expected.store(events * self.fan_out as u64, Ordering::Release);
    }

    /// How many arrived once more.
    pub(super) fn repeats(&self) -> u64 {
        self.again.load(Ordering::Acquire)
    }

    /// When an event's delivery to the first path arrived.
    pub(super) fn arrival(&self, event: usize) -> Option<u64> {
        self.arrived.get(event * self.fan_out).map(|at| at.load(Ordering::Acquire)).filter(|at| *at > 0)
    }

    /// When the last one arrived.
    pub(super) fn last(&self) -> u64 {
        self.arrived.iter().map(|at| at.load(Ordering::Acquire)).max().unwrap_or(0)
    }

    /// How many arrived per second, from the first one to the last.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(super) fn pace(&self) -> f64 {
        let arrived = self.arrived.iter().map(|at| at.load(Ordering::Acquire)).filter(|at| *at > 0);
        let began = arrived.min().unwrap_or(0);
        self.count() as f64 / (self.last().saturating_sub(began).max(1) as f64 / 1e9)
    }

    /// How many arrived per second, until the last one.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(super) fn per_second(&self) -> f64 {
        self.count() as f64 / (self.last() as f64 / 1e9)
    }

    /// Waits until everything has arrived, or nothing has for `patience`; whether everything has.
    pub(super) async fn complete(&self, patience: Duration, mut seen: impl FnMut(u64)) -> bool {
        let (mut before, mut moved) = (self.count(), Instant::now());
        while before < self.expected() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let count = self.count();
            seen(count);
            if count > before {
                (before, moved) = (count, Instant::now());
            } else if moved.elapsed() > patience {
                return false;
            }
        }
        true
    }
}

/// A receiver on loopback. It gives every challenge back; what it does with a delivery, its path says:
///
/// - `/ok/<path>`: accepts it at once, and counts it by its event's number;
/// - `/turn/<path>`: the same, until the receiver is told to [`Receiver::turn`]; from then on it hangs;
/// - `/slow/<milliseconds>/…`: accepts it after this time;
/// - `/few/…`: serves 5 at a time, 50 ms each, and refuses the rest with 429;
/// - anything else hangs.
pub(super) struct Receiver {
    pub(super) address: std::net::SocketAddr,
    tally: RwLock<Arc<Tally>>,
    turned: AtomicBool,
    few: Few,
}

/// An endpoint that serves a few requests at a time.
pub(super) struct Few {
    places: Semaphore,
    served: AtomicU64,
    refused: AtomicU64,
}

impl Few {
    const AT_A_TIME: usize = 5;
    const TAKES: Duration = Duration::from_millis(50);

    fn new() -> Self {
        let (served, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { places: Semaphore::new(Self::AT_A_TIME), served, refused }
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Acquire)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Acquire)
    }

    async fn serve(&self) -> StatusCode {
        let Ok(_place) = self.places.try_acquire() else {
            self.refused.fetch_add(1, Ordering::AcqRel);
            return StatusCode::TOO_MANY_REQUESTS;
        };
        tokio::time::sleep(Self::TAKES).await;
        self.served.fetch_add(1, Ordering::AcqRel);
        StatusCode::OK
    }
}

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Accept(usize),
    AcceptUntilTurned(usize),
    After(Duration),
    Few,
    Hang,
}

impl Manner {
    fn of(path: &str) -> Self {
        let mut parts = path.split('/').skip(1);
        let (kind, number) = (parts.next(), parts.next().and_then(|part| part.parse::<usize>().ok()));
        match (kind, number) {
            (Some("ok"), Some(path)) => Self::Accept(path),
            (Some("turn"), Some(path)) => Self::AcceptUntilTurned(path),
            (Some("slow"), Some(millis)) => Self::After(Duration::from_millis(millis as u64)),
            (Some("few"), _) => Self::Few,
            _ => Self::Hang,
        }
    }
}

impl Receiver {
    /// On a port of its own.
    pub(super) async fn open() -> BenchResult<Arc<Self>> {
        let opened = Self::start().await;
        opened.map_err(|error| BenchError::new(format!("cannot open a receiver: {error}")))
    }

    async fn start() -> std::io::Result<Arc<Self>> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let receiver = Arc::new(Self {
            address: listener.local_addr()?,
            tally: RwLock::new(Tally::new(0, 1)),
            turned: AtomicBool::new(false),
            few: Few::new(),
        });
        tokio::spawn(Arc::clone(&receiver).serve(listener));
        Ok(receiver)
    }

    /// From now on arrivals count for this measurement.
    pub(super) fn count_for(&self, tally: &Arc<Tally>) {
        *self.tally.write().expect("no holder of this lock panics") = Arc::clone(tally);
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let receiver = Arc::clone(&self);
            tokio::spawn(async move {
                let service = service_fn(move |request| Arc::clone(&receiver).handle(request));
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let manner = Manner::of(request.uri().path());
        let challenge =
            request.headers().get("webhook-id").is_some_and(|id| id.as_bytes().starts_with(b"ver_"));
        let body =
            request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        if challenge {
            return Ok(Response::new(Full::new(challenge_in(&body))));
        }
        let status = match manner {
            Manner::Accept(path) => self.accept(&body, path),
            Manner::AcceptUntilTurned(path) if !self.turned.load(Ordering::Acquire) => {
                self.accept(&body, path)
            }
            Manner::After(time) => {
                tokio::time::sleep(time).await;
                StatusCode::OK
            }
            Manner::Few => self.few.serve().await,
            Manner::AcceptUntilTurned(_) | Manner::Hang => std::future::pending().await,
        };
        let mut response = Response::default();
        *response.status_mut() = status;
        Ok(response)
    }

    fn accept(&self, body: &[u8], path: usize) -> StatusCode {
        if let Some(event) = event_number(body) {
            let tally = Arc::clone(&self.tally.read().expect("no holder of this lock panics"));
            tally.arrive(event, path);
        }
        StatusCode::OK
    }

    /// From now on `/turn/…` hangs.
    pub(super) fn turn(&self) {
        self.turned.store(true, Ordering::Release);
    }

    /// What has become of the requests to `/few/…`.
    pub(super) fn few(&self) -> &Few {
        &self.few
    }
}

/// The largest payload of a measurement: what a server takes by default.
pub const LARGEST_PAYLOAD: usize = 1 << 20;

/// A payload of `size` bytes that carries its event's number.
pub(super) fn payload(event: u64, size: usize) -> String {
    let head = format!("{{\"n\":{event},\"pad\":\"");
    let pad = size.min(LARGEST_PAYLOAD).saturating_sub(head.len() + 2);
    let start = usize::try_from(event % STARTS).unwrap_or(0);
    format!("{head}{}\"}}", &filling()[start..start + pad])
}

/// The number of offsets in the filling at which payloads begin, so that each differs from the one before.
const STARTS: u64 = 4096;

/// Text for payloads: words and numbers, which compress about as much as JSON of real life does. Some databases compress
/// large values, and how long that takes depends on what they find.
fn filling() -> &'static str {
    static FILLING: OnceLock<String> = OnceLock::new();
    FILLING.get_or_init(|| {
        const WORDS: [&str; 8] =
            ["order", "customer", "amount", "shipped", "address", "invoice", "created", "reference"];
        let size = LARGEST_PAYLOAD + usize::try_from(STARTS).unwrap_or(0);
        let (mut text, mut state) = (String::with_capacity(size + 32), 0x9e37_79b9_7f4a_7c15_u64);
        while text.len() < size {
            // A plain xorshift: the same text in every run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = WORDS.get(usize::try_from(state >> 61).unwrap_or(0)).unwrap_or(&"");
            let _ = write!(text, "{word}: {:08x}, ", state & 0xffff_ffff);
        }
        text
    })
}

fn event_number(body: &[u8]) -> Option<usize> {
    let digits = body.strip_prefix(b"{\"n\":")?.split(|byte| *byte == b',').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The challenge, as the plain text that proves the endpoint.
fn challenge_in(body: &[u8]) -> Bytes {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    Bytes::from(value["challenge"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_carries_its_number_and_has_its_size() {
        let payload = payload(17, 400);
        assert_eq!(payload.len(), 400);
        assert_eq!(event_number(payload.as_bytes()), Some(17));
        assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok());
        assert_eq!(event_number(b"{}"), None);
        let largest = super::payload(u64::MAX, LARGEST_PAYLOAD);
        assert_eq!(largest.len(), LARGEST_PAYLOAD);
        assert!(serde_json::from_str::<serde_json::Value>(&largest).is_ok());
    }

    #[tokio::test]
    async fn what_was_not_posted_is_not_waited_for() {
        let tally = Tally::new(10, 2);
        for event in 0..3 {
            tally.arrive(event, 0);
            tally.arrive(event, 1);
        }
        assert!(!tally.complete(Duration::ZERO, |_| {}).await);
        tally.expect(3);
        assert!(tally.complete(Duration::ZERO, |_| {}).await);
    }

    #[test]
    fn a_path_says_what_is_done() {
        assert_eq!(Manner::of("/ok/3"), Manner::Accept(3));
        assert_eq!(Manner::of("/turn/0"), Manner::AcceptUntilTurned(0));
        assert_eq!(Manner::of("/slow/850/2"), Manner::After(Duration::from_millis(850)));
        assert_eq!(Manner::of("/few/0"), Manner::Few);
        assert_eq!([Manner::of("/hang/1"), Manner::of("/ok/x"), Manner::of("")], [Manner::Hang; 3]);
    }

    #[tokio::test]
    async fn few_are_served_at_a_time() {
        let few = Arc::new(Few::new());
        let requests: tokio::task::JoinSet<StatusCode> = (0..8)
            .map(|_| {
                let few = Arc::clone(&few);
                async move { few.serve().await }
            })
            .collect();
        let answers = requests.join_all().await;
        assert_eq!(answers.iter().filter(|status| **status == StatusCode::OK).count(), 5);
        assert_eq!((few.served(), few.refused()), (5, 3));
    }

    #[test]
    fn a_delivery_counts_once() {
        let tally = Tally::new(2, 2);
        tally.arrive(1, 0);
        tally.arrive(1, 0);
        tally.arrive(9, 0);
        assert_eq!((tally.count(), tally.repeats()), (1, 1));
        assert!(tally.arrival(1).is_some() && tally.arrival(0).is_none());
    }
}
