//! An endpoint that serves a few requests at a time gets everything, and hardly more at once than it can serve.

use super::Scenarios;
use crate::{
    error::{BenchError, BenchResult},
    report::Bar,
};
use std::time::{Duration, Instant};

const EVENTS: usize = 2000;
const SETTINGS: [(&str, &str); 2] =
    [("HOOKSAGA_RETRY_BASE_DELAY", "1s"), ("HOOKSAGA_RETRY_MAX_RETRY_LIMIT", "5")];
const PATIENCE: Duration = Duration::from_secs(120);

impl Scenarios<'_> {
    pub(super) async fn throttled(&mut self) -> BenchResult {
        const DEAD: &str = "hooksaga_dead_letters_total";
        let mut setup = self.setup("throttled", &SETTINGS).await?;
        setup.subscribe(std::iter::once(("n".to_owned(), "/few/0".to_owned()))).await?;
        let (began, few) = (Instant::now(), setup.others.few());
        setup.post(EVENTS, |_| "n".to_owned()).await?;
        let mut dead = 0;
        while few.served() + dead < EVENTS as u64 {
            if began.elapsed() > PATIENCE {
                let (served, refused) = (few.served(), few.refused());
                return Err(BenchError::new(format!(
                    "an endpoint that throttles got {served} of {EVENTS} events within {} s and refused {refused} \
                     requests",
                    PATIENCE.as_secs()
                )));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            dead = setup.server.api.count(DEAD).await?;
            self.progress.show(few.served(), EVENTS as u64);
        }
        self.progress.clear();
        let (took, served, refused) = (began.elapsed(), few.served(), few.refused());
        setup.end().await?;
        #[expect(clippy::cast_precision_loss, reason = "counts of a few thousand requests")]
        let (share, dead) = (refused as f64 / (served + refused) as f64 * 100.0, dead as f64);
        let name = "5 at a time: requests refused";
        self.report.add(name, share, "%", Some(Bar::AtMost(10.0)));
        self.report.add("5 at a time: dead letters", dead, "", Some(Bar::AtMost(0.0)));
        let name = format!("5 at a time: {EVENTS} events took");
        self.report.add(name, took.as_secs_f64(), "s", None);
        Ok(())
    }
}
