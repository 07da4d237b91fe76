//! Events with very many deliveries: they are removed some deliveries at a time.

use super::Janitor;
use hooksaga_saga::{EventId, Expiry};
use hooksaga_store::{DeliveryPlace, EventPart, StoreResult};
use std::time::Duration;
use tokio::time::Instant;

/// An event that goes some deliveries at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Large {
    pub(super) id: EventId,
    /// As of when it was found, by the database's clock.
    pub(super) expiry: Expiry,
    /// Everything up to here is gone.
    pub(super) after: Option<DeliveryPlace>,
    /// After a failure it is left alone for a while.
    pub(super) not_before: Option<Instant>,
}

impl Janitor {
    /// Removes some deliveries of an event that has very many. Returns whether there was any.
    pub(super) async fn remove_large(&self) -> StoreResult<bool> {
        let began = Instant::now();
        let Some(Large { id, expiry, after, .. }) = self.scans().due(began) else { return Ok(false) };
        let result =
            self.store.remove_part(EventPart { event: id, after, limit: Self::MOST_SAGAS }, expiry).await;
        if let Ok(part) = &result {
            self.account(part.removed);
        }
        self.rest(began.elapsed()).await;
        let mut scans = self.scans();
        // It has rested for this part.
        (scans.large_took, scans.rested) = (began.elapsed(), Duration::ZERO);
        match result {
            Ok(part) => {
                if part.resume_after.is_none() {
                    scans.large.retain(|large| large.id != id);
                }
                for large in scans.large.iter_mut().filter(|large| large.id == id) {
                    large.after = part.resume_after;
                }
            }
            Err(error) if error.is_of_rows() => {
                self.metrics.store_error(Self::NAME, &error);
                tracing::warn!(
                    component = Self::NAME,
                    %error,
                    event_id = id.0,
                    "an event with very many deliveries cannot be removed; trying again later"
                );
                let not_before = Some(Instant::now() + Self::EVERY);
                for large in scans.large.iter_mut().filter(|large| large.id == id) {
                    large.not_before = not_before;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}
