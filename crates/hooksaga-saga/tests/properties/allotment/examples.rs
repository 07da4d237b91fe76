//! The allotment by hand: single cases with the numbers that follow from the rule.

use super::{admit, answering, greedy, most_of_silent};
use hooksaga_saga::{Demand, Standing, allot};
use std::time::Duration;

/// The rule by hand, with 64 slots.
#[test]
fn examples() {
    let given = |demands: &[Demand]| allot(64, demands);
    let slow = greedy(answering(850));
    assert_eq!(given(&[]), []);
    // A level and a half fit into the capacity.
    assert_eq!(given(&[slow]), [42]);
    assert_eq!(given(&[slow, slow, slow]), [18, 18, 18]);
    // One that wants little leaves the rest to the others.
    assert_eq!(given(&[Demand { waiting: 2, ..slow }, slow]), [2, 41]);
    // Eight jobs of the lightest kind weigh one slot.
    assert_eq!(given(&[greedy(answering(1))]), [341]);
    // The window of an endpoint that throttles holds, whatever there is room for.
    assert_eq!(given(&[Demand { window: 5, ..greedy(answering(1)) }]), [5]);
    assert_eq!(given(&[greedy(Standing::New), greedy(Standing::Unreachable)]), [4, 8]);
    assert_eq!(given(&[greedy(Standing::Unreachable); 100]).iter().sum::<u32>(), 32);
    assert_eq!(given(&[greedy(Standing::New); 100]).iter().sum::<u32>(), 24);
    assert_eq!(allot(0, &[slow, greedy(Standing::New)]), [0, 0]);
}

/// An endpoint above the level gets nothing of the remainder, even if it is the next in order.
#[test]
fn who_has_more_waits() {
    let slow = greedy(answering(850));
    let later = Demand { last_turn: 1, ..slow };
    assert_eq!(allot(64, &[Demand { open: 30, ..slow }, later, later, later, later]), [0, 8, 8, 7, 7]);
}

/// The last slot but one is for new endpoints, the last for quick ones, and of either those that have nothing open.
#[test]
fn the_last_two_slots() {
    let (new, quick) = (greedy(Standing::New), greedy(answering(25)));
    let mut demands = vec![Demand { waiting: 0, open: 1, ..greedy(answering(850)) }; 14];
    demands.extend([greedy(answering(850)), greedy(Standing::Unreachable), new, new, quick, quick, quick]);
    assert_eq!(allot(16, &demands)[14..], [0, 0, 0, 1, 1, 1, 0], "of the new ones the newest");
}

/// The last slot is for quick ones that are known to answer, also beside those that responded more recently than all that hang. Of
/// these the last to begin to wait, and the most recent one, find a slot.
#[test]
fn recent_endpoints_leave_the_last_slot() {
    let ago = |millis| Some(Duration::from_millis(millis));
    for standing in [answering(850), Standing::Unreachable] {
        let holds = Demand { waiting: 0, open: 1, last_response: ago(9_000), ..greedy(standing) };
        let mut demands = vec![holds; 13];
        let unconfirmed = |millis| Demand { last_response: ago(millis), ..greedy(Standing::Unconfirmed) };
        demands.extend([100, 110, 120, 130].map(unconfirmed));
        demands.push(greedy(answering(40)));
        assert_eq!(allot(16, &demands)[13..], [1, 0, 0, 1, 1], "{standing:?}");
    }
}

/// Endpoints that hang have all the slots that they may have: a quick one has more than one job open all the same, and leaves
/// room for another.
#[test]
fn a_quick_endpoint_fills_a_slot_beside_any_number_that_hang() {
    for capacity in [16, 23, 24, 64] {
        let hung = Demand { waiting: 0, open: 1, ..greedy(Standing::Unreachable) };
        let mut demands = vec![hung; usize::try_from(most_of_silent(capacity)).unwrap()];
        demands.push(greedy(answering(1)));
        let mut turn = 0;
        for _ in 0..8 {
            admit(capacity, &mut demands, &mut turn);
        }
        assert!(demands.last().unwrap().open >= 8, "{:?} of {capacity}", demands.last());
        for _ in 0..8 {
            demands.push(Demand { waiting: 1, ..greedy(answering(1)) });
            admit(capacity, &mut demands, &mut turn);
            assert_eq!(demands.last().unwrap().open, 1, "of {capacity}");
        }
    }
}

/// Endpoints that were quick slow down, or hang, with thousands of jobs open: others still find room.
#[test]
fn many_open_jobs_of_one_endpoint_do_not_shut_out_the_others() {
    for standing in [Standing::Unreachable, answering(900)] {
        let heavy = Demand { open: 5_000, ..greedy(standing) };
        let (new, slow, quick) = (greedy(Standing::New), greedy(answering(850)), greedy(answering(5)));
        let given = allot(64, &[heavy, new, slow, quick]);
        assert!(given[0] == 0 && given[1..].iter().all(|jobs| *jobs > 1), "{given:?}");
        // However many of them there are, each leaves a third of what there was.
        let given = allot(64, &[heavy, heavy, new, slow, quick]);
        assert!(given[..2] == [0, 0] && given[2..].iter().all(|jobs| *jobs > 0), "{given:?}");
        assert!(allot(512, &[heavy, heavy, heavy, new, slow, quick])[4..].iter().all(|jobs| *jobs > 0));
    }
}

/// A few thousand subscriptions are decided on in a moment.
#[test]
fn thousands_are_quick() {
    let mut demands: Vec<Demand> = (0..4_000).map(|n| greedy(answering(n % 100))).collect();
    demands.extend([greedy(Standing::Unreachable); 1_000]);
    let start = std::time::Instant::now();
    for _ in 0..10 {
        assert!(allot(2_048, &demands).iter().sum::<u32>() > 2_048);
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?} for ten", start.elapsed());
}
