//! Endpoints that responded before, or were never tried, begin to hang: what they leave.

use super::{admit, capacities, greedy, hang, most_of_silent, most_with_recent};
use hooksaga_saga::{Demand, Standing, allot};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use std::time::Duration;

/// An unconfirmed endpoint with this much waiting, which responded this long ago.
fn responded(age: Duration, waiting: u32, waits_since: u64) -> Demand {
    Demand { last_response: Some(age), waiting, waits_since, ..greedy(Standing::Unconfirmed) }
}

proptest! {
    /// FB-1: new endpoints, and those that answered a while ago, may hang one after the other: however many do, they leave an
    /// eighth to those that answer.
    #[test]
    fn endpoints_that_begin_to_hang_leave_slots_to_those_that_answer(
        capacity in capacities(), count in 1_usize..=1_000, new in 0_usize..=1_000,
    ) {
        let mut demands = vec![greedy(Standing::Unconfirmed); count];
        demands.iter_mut().take(new).for_each(|demand| demand.standing = Standing::New);
        let mut turn = 0;
        // Nothing ends: every attempt runs into its timeout, which is far away.
        while admit(capacity, &mut demands, &mut turn).iter().any(|jobs| *jobs > 0) {
            hang(&mut demands);
            let open: u32 = demands.iter().map(|demand| demand.open).sum();
            prop_assert!(open <= most_of_silent(capacity), "{} of {}", open, capacity);
        }
    }

    /// FB-1: many that responded before begin to hang together, and it is seen at once, or some time later. One that responded
    /// at most half as long ago as all of them gets a job at once, and so do others after it, each more recent than those before.
    #[test]
    fn an_endpoint_that_responded_more_recently_than_those_that_hang_finds_room(
        capacity in capacities(), crowd in vec((151_u64..=20_000, 1_u32..=25, 0_u64..=50), 1..300),
        are_seen in vec(any::<bool>(), 1..20),
    ) {
        let mut demands: Vec<Demand> = crowd
            .into_iter()
            .map(|(age, waiting, waits_since)| responded(Duration::from_millis(age), waiting, waits_since))
            .collect();
        let mut turn = 100;
        // Nothing ends: every attempt runs into its timeout, which is far away.
        for is_seen in are_seen {
            admit(capacity, &mut demands, &mut turn);
            if is_seen {
                hang(&mut demands);
            }
        }
        let mut age = demands.iter().filter_map(|demand| demand.last_response).min().unwrap_or_default();
        for _ in 0..most_with_recent(capacity) - most_of_silent(capacity) {
            age /= 2;
            demands.push(responded(age, 1, turn));
            admit(capacity, &mut demands, &mut turn);
            prop_assert_eq!(demands.last().map(|recent| recent.open), Some(1), "after {:?}", age);
        }
    }

    /// Endpoints that responded about equally long ago, come one after the other and hang leave slots to one that is more recent,
    /// even if it has waited for longer.
    #[test]
    fn endpoints_that_are_alike_and_hang_leave_slots_to_a_more_recent_one(
        capacity in capacities(), ages in vec(2_000_u64..4_000, 1..600), millis in 0_u64..=1_000, are_seen: Vec<bool>,
    ) {
        let (mut demands, mut turn) = (Vec::new(), 0);
        let mut are_seen = are_seen.into_iter();
        for age in ages {
            demands.push(responded(Duration::from_millis(age), 1, turn));
            admit(capacity, &mut demands, &mut turn);
            if are_seen.next().unwrap_or(true) {
                hang(&mut demands);
            }
        }
        demands.push(responded(Duration::from_millis(millis), 1, 0));
        prop_assert_eq!(allot(capacity, &demands).last().copied(), Some(1));
    }

    /// FB-1: one after the other it is seen that they hang. With none of them do those that wait get more slots.
    #[test]
    fn endpoints_that_are_seen_to_hang_one_by_one_leave_slots_to_those_that_answer(
        capacity in capacities(), count in 1_usize..=300, seen in vec(any::<Index>(), 0..100),
        standing in select(vec![Standing::Unconfirmed, Standing::New]),
    ) {
        let mut demands = vec![greedy(standing); count];
        let mut turn = 0;
        for one in seen {
            admit(capacity, &mut demands, &mut turn);
            let open: u32 = demands.iter().map(|demand| demand.open).sum();
            prop_assert!(open <= most_of_silent(capacity), "{} of {}", open, capacity);
            let one = one.get_mut(&mut demands);
            if one.open > 0 {
                one.standing = Standing::Unreachable;
            }
        }
    }
}
