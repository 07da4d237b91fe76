//! The demo's receivers, and the live account of what arrives at them.

use crate::{
    error::{CliError, CliResult},
    output,
    receiver::{Arrival, ArrivalKind, Receiver, ResponsePlan, SignatureCheck},
};
use hooksaga_pipeline::SigningSecret;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tokio::net::TcpListener;

/// What has arrived at all receivers.
#[derive(Default)]
pub(super) struct ArrivalCounts {
    pub(super) challenges: AtomicU64,
    pub(super) deliveries: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) valid_signatures: AtomicU64,
}

impl ArrivalCounts {
    fn count(&self, arrival: &Arrival) {
        let add = |counter: &AtomicU64, yes: bool| counter.fetch_add(u64::from(yes), Ordering::Relaxed);
        let delivery = matches!(arrival.kind, ArrivalKind::Delivery { .. });
        add(&self.challenges, arrival.kind == ArrivalKind::Verification);
        add(&self.deliveries, delivery);
        add(&self.refused, delivery && !arrival.status.is_success());
        add(&self.valid_signatures, arrival.verdict == SignatureCheck::Valid);
    }
}

/// One receiver.
pub(super) struct DemoEndpoint {
    pub(super) name: &'static str,
    pub(super) url: String,
    /// What its subscription signs with.
    pub(super) secret: String,
    receiver: Arc<Receiver>,
}

impl DemoEndpoint {
    /// Starts a receiver on a free port and prints what arrives there.
    pub(super) async fn start(
        name: &'static str,
        behaviour: ResponsePlan,
        tally: &Arc<ArrivalCounts>,
        begun: Instant,
    ) -> CliResult<Self> {
        let cannot = |error: std::io::Error| CliError::new(format!("cannot listen on 127.0.0.1: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(cannot)?;
        let url = format!("http://{}/{name}", listener.local_addr().map_err(cannot)?);
        let secret = SigningSecret::generate();
        let revealed = secret.reveal();
        let (receiver, mut arrivals) = Receiver::new(behaviour, vec![secret]);
        tokio::spawn(Arc::clone(&receiver).serve(listener));
        let tally = Arc::clone(tally);
        tokio::spawn(async move {
            while let Some(arrival) = arrivals.recv().await {
                tally.count(&arrival);
                output::line(describe(name, &arrival, begun));
            }
        });
        Ok(Self { name, url, secret: revealed, receiver })
    }

    /// From now on everything is answered with 200.
    pub(super) fn repair(&self) {
        self.receiver.behave(ResponsePlan::default());
    }
}

fn describe(name: &str, arrival: &Arrival, begun: Instant) -> String {
    let seconds = begun.elapsed().as_secs_f32();
    let Arrival { webhook_id, verdict, status, .. } = arrival;
    let what = match &arrival.kind {
        ArrivalKind::Verification => "challenge, answered".to_owned(),
        ArrivalKind::Delivery { attempt, .. } => {
            format!("{webhook_id} attempt {attempt} -> {}", status.as_u16())
        }
        ArrivalKind::Other { method, path } => format!("{method} {path} -> {}", status.as_u16()),
    };
    format!("   {seconds:>5.1}s  {name:<8} {what} ({verdict})")
}
