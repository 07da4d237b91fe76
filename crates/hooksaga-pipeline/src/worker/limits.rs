//! Starts of rate-limited subscriptions.
//!
//! Their jobs are admitted at the pace of the limit. Jobs that have waited since, for a worker or for their subscription to
//! resume, would start all at once. So each start is counted again, and jobs that exceed the limit are handed back until
//! they may start. Attempts of other subscriptions do not wait for this.
//!
//! A start is counted in the database for one moment, and happens at that moment or not at all. While commits are slow, the
//! moments asked for lie ahead of them ([`Lead`]).
//!
//! Where another process holds a bucket, its subscription is asked about once more, after the others and apart from them: that
//! process may be frozen ([`super::held_limits`]).

use super::{
    attempt::{PreparedAttempt, Settled},
    prepare::Work,
};
use hooksaga_saga::{Lead, RateLimit, SubscriptionId};
use hooksaga_store::{HeldBuckets, Starting, Starts, StoreResult, WorkerStore};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Jobs that are given back at the same time are given back together: their delays are multiples of this.
const STEP: Duration = Duration::from_millis(20);
/// Retry delay when the rate limits cannot be read, or too many wait for one that is held.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// However many are before it: a job that is put off for longer counts as put off by a clock that was wrong.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Where this process asks for starts.
#[derive(Debug)]
pub(super) struct StartGate {
    learned: Mutex<Learned>,
    most: Lead,
}

/// What the answers so far have shown.
#[derive(Clone, Copy, Debug)]
struct Learned {
    lead: Lead,
    answered: Instant,
}

impl StartGate {
    /// `time_to_start`: how long after its claim an attempt must start. The last moment asked for is twice the lead away, and
    /// the claim and the answer take their time, too.
    pub(super) fn new(time_to_start: Duration) -> Self {
        let learned = Learned { lead: Lead::NONE, answered: Instant::now() };
        Self { learned: Mutex::new(learned), most: Lead::new(time_to_start / 4) }
    }

    /// Counts starts, and learns from the answer how far ahead the next question has to be.
    async fn ask(
        &self,
        store: &dyn WorkerStore,
        starting: &[Starting],
        held: HeldBuckets,
    ) -> StoreResult<(Starts, Lead)> {
        let lead = self.lead();
        let starts = store.start_limited(starting, lead, held).await?;
        let took = starts.clock.asked.elapsed();
        let answers = starting.iter().zip(&starts.reserved);
        let joined = answers.filter_map(|(one, got)| Some(lead.joining(one.limit, got.as_ref()?.wait)));
        // Where everything was passed over nothing was written, and what that took says nothing about the next commit.
        if let Some(joined) = joined.max() {
            let next = self.lead().after(took).max(joined).min(self.most);
            *self.learned() = Learned { lead: next, answered: Instant::now() };
        }
        Ok((starts, lead))
    }

    fn lead(&self) -> Lead {
        let learned = *self.learned();
        learned.lead.aged(learned.answered.elapsed())
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Attempts whose subscriptions have a rate limit, each with what it holds while it waits.
#[derive(Debug)]
pub(super) struct LimitedAttempts<T>(BTreeMap<SubscriptionId, (RateLimit, Vec<(PreparedAttempt, T)>)>);

impl<T> Default for LimitedAttempts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// What was decided about limited attempts, each with what it holds.
pub(super) struct Passed<T> {
    pub(super) start: Vec<(PreparedAttempt, T)>,
    pub(super) back: Vec<(Settled, T)>,
    /// Another process held their buckets.
    pub(super) undecided: LimitedAttempts<T>,
}

impl<T> Passed<T> {
    pub(super) const NOTHING: Self =
        Self { start: Vec::new(), back: Vec::new(), undecided: LimitedAttempts(BTreeMap::new()) };
}

impl Work {
    /// Takes the attempts of rate-limited subscriptions out. `hold` is what each holds while it waits.
    pub(super) fn take_limited<T>(&mut self, hold: impl Fn(&PreparedAttempt) -> T) -> LimitedAttempts<T> {
        let limits = std::mem::take(&mut self.limits).into_iter();
        let mut limited: BTreeMap<_, _> = limits.map(|(id, limit)| (id, (limit, Vec::new()))).collect();
        if limited.is_empty() {
            return LimitedAttempts(limited);
        }
        let is_limited = |attempt: &mut PreparedAttempt| limited.contains_key(&attempt.subscription);
        let taken: Vec<_> = self.attempts.extract_if(.., is_limited).collect();
        for attempt in taken {
            if let Some((_, of_one)) = limited.get_mut(&attempt.subscription) {
                let held = hold(&attempt);
                of_one.push((attempt, held));
            }
        }
        limited.retain(|_, (_, of_one)| !of_one.is_empty());
        LimitedAttempts(limited)
    }
}

impl<T> LimitedAttempts<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds others, behind those that are there.
    pub(super) fn append(&mut self, others: Self) {
        for (id, (limit, attempts)) in others.0 {
            let of_one = self.0.entry(id).or_insert((limit, Vec::new()));
            of_one.0 = limit;
            of_one.1.extend(attempts);
        }
    }

    /// Asks how many may start.
    pub(super) async fn pass(
        self,
        store: &dyn WorkerStore,
        gate: &StartGate,
        held: HeldBuckets,
    ) -> Passed<T> {
        let starting = |(id, (limit, of_one)): (&SubscriptionId, &(RateLimit, Vec<_>))| Starting {
            subscription_id: *id,
            limit: *limit,
            jobs: u32::try_from(of_one.len()).unwrap_or(u32::MAX),
        };
        let starting: Vec<Starting> = self.0.iter().map(starting).collect();
        let (starts, lead) = match gate.ask(store, &starting, held).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "cannot read rate limits; rate-limited deliveries are postponed");
                return self.postponed();
            }
        };
        let (mut start, mut back, mut undecided) = (Vec::new(), Vec::new(), BTreeMap::new());
        for ((id, (limit, of_one)), reserved) in self.0.into_iter().zip(starts.reserved) {
            let Some(reserved) = reserved else {
                undecided.insert(id, (limit, of_one));
                continue;
            };
            for (number, (mut attempt, held)) in (0..).zip(of_one) {
                if number < reserved.jobs {
                    let before_last = limit.time_for(reserved.jobs - 1 - number);
                    let ahead = lead.shortest() + reserved.last.saturating_sub(before_last);
                    attempt.start_after(starts.clock, ahead);
                    start.push((attempt, held));
                } else {
                    // The one after it has to wait for one more.
                    let delay = reserved.wait + limit.time_for(number - reserved.jobs);
                    back.push((attempt.about.give_back(in_steps(delay.min(LONGEST_DELAY))), held));
                }
            }
        }
        Passed { start, back, undecided: Self(undecided) }
    }

    /// All of them are given back.
    pub(super) fn postponed(self) -> Passed<T> {
        let all = self.0.into_values().flat_map(|(_, of_one)| of_one);
        let back = all.map(|(attempt, held)| (attempt.about.give_back(AFTER_FAILURE), held)).collect();
        Passed { back, ..Passed::NOTHING }
    }
}

fn in_steps(delay: Duration) -> Duration {
    let steps = delay.as_nanos().div_ceil(STEP.as_nanos()).max(1);
    STEP * u32::try_from(steps).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LimitedAttempts<()> {
        pub(in super::super) fn of(
            id: SubscriptionId,
            limit: RateLimit,
            attempts: Vec<(PreparedAttempt, ())>,
        ) -> Self {
            Self(BTreeMap::from([(id, (limit, attempts))]))
        }

        pub(in super::super) fn subscriptions(&self) -> Vec<SubscriptionId> {
            self.0.keys().copied().collect()
        }
    }

    #[test]
    fn delays_are_whole_steps_and_never_shorter() {
        for (millis, expected) in [(0, 20), (1, 20), (20, 20), (21, 40), (1000, 1000)] {
            assert_eq!(in_steps(Duration::from_millis(millis)), Duration::from_millis(expected));
        }
    }
}
