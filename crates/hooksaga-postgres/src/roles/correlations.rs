//! The correlation ids of recent events, which the orchestrator logs with what it does.
//!
//! An event never changes, so what was seen once is true for ever: remembering it saves a look at `events` for every
//! job that is made and for every result. Routing fills it where it runs in the same process; what is not there is read.

use crate::error::DbResult;
use deadpool_postgres::GenericClient;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub(crate) const READ: &str = "/* orchestrator.correlations */
SELECT id, correlation_id FROM events WHERE id = ANY ($1::bigint[])";

#[derive(Default)]
pub(crate) struct Correlations(Mutex<Generations>);

/// Two generations: when the new one is full it becomes the old one, and what was old is forgotten.
#[derive(Default)]
struct Generations {
    new: HashMap<i64, Box<str>>,
    old: HashMap<i64, Box<str>>,
}

impl Generations {
    /// How many a generation holds: a few megabytes, and seconds of full load.
    const MOST: usize = 16_384;

    fn remember(&mut self, event_id: i64, correlation_id: &str) {
        if self.new.len() >= Self::MOST {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(event_id, Box::from(correlation_id));
    }

    fn get(&self, event_id: i64) -> Option<&str> {
        self.new.get(&event_id).or_else(|| self.old.get(&event_id)).map(|text| &**text)
    }
}

impl Correlations {
    fn known(&self) -> MutexGuard<'_, Generations> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember<'a>(&self, events: impl IntoIterator<Item = (i64, &'a str)>) {
        let mut known = self.known();
        for (event_id, correlation_id) in events {
            known.remember(event_id, correlation_id);
        }
    }

    /// The correlation id of each event, in the order of `event_ids`.
    pub(crate) async fn of(&self, client: &impl GenericClient, event_ids: &[i64]) -> DbResult<Vec<String>> {
        let mut found: Vec<Option<String>> = {
            let known = self.known();
            event_ids.iter().map(|id| known.get(*id).map(str::to_owned)).collect()
        };
        let mut unknown: Vec<i64> =
            event_ids.iter().zip(&found).filter(|(_, text)| text.is_none()).map(|(id, _)| *id).collect();
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            let statement = client.prepare_cached(READ).await?;
            let rows = client.query(&statement, &[&unknown]).await?;
            let mut read: HashMap<i64, &str> = HashMap::with_capacity(rows.len());
            for row in &rows {
                read.insert(row.try_get(0)?, row.try_get(1)?);
            }
            for (id, text) in event_ids.iter().zip(&mut found).filter(|(_, text)| text.is_none()) {
                *text = read.get(id).map(|read| (*read).to_owned());
            }
            self.remember(read);
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
        correlations.remember((0..3 * most).map(|id| (id, "c")));
        let known = correlations.known();
        assert!(known.new.len() + known.old.len() <= 2 * Generations::MOST);
        assert!(known.get(2 * most).is_some() && known.get(3 * most - 1).is_some());
        assert!(known.get(0).is_none());
    }
}
