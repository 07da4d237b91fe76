//! The tenants and correlation ids of recent events, which the orchestrator logs with what it does.
//!
//! An event never changes, so a cached value stays true: the cache saves a lookup in `events` for every
//! job that is created and for every result. Routing fills the cache where it runs in the same process; what is missing
//! is read.

use crate::error::DbResult;
use deadpool_postgres::GenericClient;
use hooksaga_store::Trace;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub(crate) const READ: &str = "/* orchestrator.correlations */
SELECT id, tenant, correlation_id FROM events WHERE id = ANY ($1::bigint[])";

#[derive(Default)]
pub(crate) struct Correlations(Mutex<Generations>);

/// Two generations: when the new one is full it becomes the old one, and what was old is forgotten.
#[derive(Default)]
struct Generations {
    new: HashMap<i64, Trace>,
    old: HashMap<i64, Trace>,
}

impl Generations {
    /// How many a generation holds: a few megabytes, and seconds of full load.
    const MOST: usize = 16_384;

    fn remember(&mut self, event_id: i64, trace: Trace) {
        if self.new.len() >= Self::MOST {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(event_id, trace);
    }

    fn get(&self, event_id: i64) -> Option<&Trace> {
        self.new.get(&event_id).or_else(|| self.old.get(&event_id))
    }
}

impl Correlations {
    fn known(&self) -> MutexGuard<'_, Generations> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember<'a>(&self, events: impl IntoIterator<Item = (i64, &'a str, &'a str)>) {
        let mut known = self.known();
        for (event_id, tenant, correlation_id) in events {
            known.remember(event_id, Trace::new(tenant, correlation_id));
        }
    }

    /// The tenant and correlation id of each event, in the order of `event_ids`.
    pub(crate) async fn of(&self, client: &impl GenericClient, event_ids: &[i64]) -> DbResult<Vec<Trace>> {
        let mut found: Vec<Option<Trace>> = {
            let known = self.known();
            event_ids.iter().map(|id| known.get(*id).cloned()).collect()
        };
        let mut unknown: Vec<i64> =
            event_ids.iter().zip(&found).filter(|(_, trace)| trace.is_none()).map(|(id, _)| *id).collect();
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            let statement = client.prepare_cached(READ).await?;
            let rows = client.query(&statement, &[&unknown]).await?;
            let mut read: HashMap<i64, (&str, &str)> = HashMap::with_capacity(rows.len());
            for row in &rows {
                read.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
            }
            for (id, trace) in event_ids.iter().zip(&mut found).filter(|(_, trace)| trace.is_none()) {
                *trace = read.get(id).map(|(tenant, correlation_id)| Trace::new(tenant, correlation_id));
            }
            self.remember(
                read.into_iter().map(|(id, (tenant, correlation_id))| (id, tenant, correlation_id)),
            );
        }
        // An event never goes away; were one gone, that would be no reason to hold up the others.
        Ok(found.into_iter().map(Option::unwrap_or_default).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_the_newest() {
        let correlations = Correlations::default();
        let most = i64::try_from(Generations::MOST).unwrap();
        correlations.remember((0..3 * most).map(|id| (id, "t", "c")));
        let known = correlations.known();
        assert!(known.new.len() + known.old.len() <= 2 * Generations::MOST);
        assert!(known.get(2 * most).is_some() && known.get(3 * most - 1).is_some());
        assert!(known.get(0).is_none());
    }
}
