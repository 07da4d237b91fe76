use super::*;

const A: SubscriptionId = SubscriptionId(1);

fn begin(in_flight: &Arc<InFlight>, subscription: SubscriptionId, jobs: u32) -> Vec<Slot> {
    (0..jobs).map(|_| in_flight.begin(subscription, in_flight.start)).collect()
}

#[test]
fn endpoints_that_hang_one_after_the_other_leave_a_slot_for_the_next() {
    for slots in [1, 4, 16, 64, 512] {
        let in_flight = InFlight::new(slots, Gauge::default());
        let mut held = Vec::new();
        for subscription in (1..=3).map(SubscriptionId) {
            // Everything that can be claimed is this one's, until nothing of it may be.
            while let Some(limits) = in_flight.claim_limits(1000, in_flight.start) {
                if limits.skip.contains(&subscription) {
                    break;
                }
                held.extend(begin(&in_flight, subscription, limits.jobs));
            }
            let hang = u32::try_from(subscription.0).unwrap();
            let left = (slots / 3_u32.pow(hang)).max((slots / 8).saturating_sub(hang));
            assert!(in_flight.free() >= left, "{} of {slots}", in_flight.free());
        }
        assert!(
            slots < 16
                || in_flight.claim_limits(1000, in_flight.start).is_some_and(|limits| limits.jobs >= 1)
        );
    }
}

/// More jobs wait than there are slots, of many that begin to hang together: each takes one of the kept slots at most.
#[test]
fn the_last_eighth_is_for_those_with_nothing_in_flight() {
    let in_flight = InFlight::new(64, Gauge::default());
    let mut held: Vec<_> = (0..14).map(|n| begin(&in_flight, SubscriptionId(n), 4)).collect();
    for left in (1..=8).rev() {
        let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
        assert_eq!((in_flight.free(), limits.jobs, limits.skip.len()), (left, 1, held.len()));
        held.push(begin(&in_flight, SubscriptionId(100 - i64::from(left)), 1));
    }
    assert!(in_flight.claim_limits(1000, in_flight.start).is_none());
    held.truncate(12);
    let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
    assert_eq!((limits.jobs, limits.skip.len()), (8, 0), "16 are free, and 8 of them for everybody");
}

#[test]
fn nobody_waits_for_slots_of_endpoints_that_hang() {
    let in_flight = InFlight::new(16, Gauge::default());
    let start = in_flight.start;
    let mut held = begin(&in_flight, A, 13);
    assert!(!in_flight.has_enough_free(start), "three of sixteen are free, and more may soon be");
    assert!(!in_flight.has_enough_free(start + STRETCH));
    assert!(in_flight.has_enough_free(start + 2 * STRETCH), "the others hang");
    let _late = in_flight.begin(A, start + 2 * STRETCH);
    assert!(in_flight.has_enough_free(start + 2 * STRETCH), "two of three");
    held.extend(begin(&in_flight, A, 2));
    assert!(!in_flight.has_enough_free(start + 2 * STRETCH), "none is free");
    drop(held);
    assert_eq!(in_flight.state().by_beginning, BTreeMap::from([(2, 1)]), "nothing is kept");
}

#[test]
fn claims_of_one_busy_subscription_stay_large() {
    let in_flight = InFlight::new(512, Gauge::default());
    let mut held = begin(&in_flight, A, 342);
    assert_eq!(in_flight.claim_limits(1000, in_flight.start).unwrap().skip, [A]);
    held.truncate(342 - 60);
    assert_eq!(
        in_flight.claim_limits(1000, in_flight.start).unwrap().skip,
        [A],
        "a claim of 60 is not worth it yet"
    );
    held.truncate(342 - 100);
    let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
    assert_eq!((limits.jobs, limits.skip), (100, vec![]));
}

#[test]
fn a_claim_past_a_busy_subscription_that_found_nothing_is_not_repeated_at_once() {
    let in_flight = InFlight::new(4, Gauge::default());
    let start = in_flight.start;
    const B: SubscriptionId = SubscriptionId(2);
    const SLOW: Duration = Duration::from_millis(8);
    assert_eq!(in_flight.passes_over_from(&[A], start), None);
    in_flight.passed_over(&[A], false, Duration::from_micros(300), start);
    assert_eq!(in_flight.passes_over_from(&[A], start), Some(start + Duration::from_millis(3)));
    in_flight.passed_over(&[A], false, SLOW, start);
    assert_eq!(in_flight.passes_over_from(&[A], start), Some(start + NOT_AGAIN_FOR));
    assert_eq!(in_flight.passes_over_from(&[A, B], start), Some(start + NOT_AGAIN_FOR));
    assert_eq!(in_flight.passes_over_from(&[A], start + NOT_AGAIN_FOR), None);
    in_flight.passed_over(&[A], true, SLOW, start);
    assert_eq!(in_flight.passes_over_from(&[A], start), None, "where there was something there may be more");
    // A hangs, and B held the rest of the slots.
    in_flight.passed_over(&[A, B], false, SLOW, start);
    assert_eq!(in_flight.passes_over_from(&[A], start), None, "B's jobs do not wait because A hangs");
}

#[test]
fn nothing_is_claimed_without_a_slot() {
    let in_flight = InFlight::new(4, Gauge::default());
    let start = in_flight.start;
    let limits = in_flight.claim_limits(2, start).unwrap();
    assert_eq!((limits.jobs, limits.payload_bytes), (2, PAYLOAD_BYTES));
    let slots: Vec<_> = (0..4).map(|n| in_flight.begin(SubscriptionId(n), start)).collect();
    assert!(in_flight.claim_limits(10, start).is_none());
    drop(slots);
    assert_eq!(in_flight.free(), 4);
}

#[test]
fn claims_wait_for_payloads_that_will_be_written_soon() {
    let in_flight = InFlight::new(4, Gauge::default());
    let start = in_flight.start;
    let large = in_flight.hold(PAYLOAD_BYTES - 1, start);
    assert!(in_flight.claim_limits(10, start).is_some(), "nothing is in flight: something must be");
    let _one = in_flight.begin(A, start);
    assert!(in_flight.claim_limits(10, start + STRETCH).is_none(), "three slots are free, but no memory");
    assert!(!in_flight.has_no_room_for(A, SMALL + 1, start), "what was claimed already is sent");
    drop(large);
    assert_eq!(in_flight.claim_limits(10, start).unwrap().payload_bytes, PAYLOAD_BYTES);
}

/// Endpoints that read nothing keep their payloads in memory: small ones of others are sent all the same.
#[test]
fn payloads_that_stay_do_not_stop_small_ones() {
    let in_flight = InFlight::new(512, Gauge::default());
    let (start, later) = (in_flight.start, in_flight.start + 2 * STRETCH);
    let _slots = begin(&in_flight, A, 60);
    let mut held: Vec<_> = (0..60).map(|_| in_flight.hold(1024 * 1024, start)).collect();
    assert!(in_flight.claim_limits(1000, start + STRETCH).is_none());
    let limits = in_flight.claim_limits(1000, later).unwrap();
    assert_eq!((limits.jobs, limits.payload_bytes), (SHORT_CLAIM, PAYLOAD_BYTES - 60 * 1024 * 1024));
    assert!(in_flight.has_no_room_for(A, SMALL + 1, later));
    assert!(!in_flight.has_no_room_for(A, SMALL, later));
    let b = SubscriptionId(2);
    in_flight.begin(b, later).answered(later);
    assert!(!in_flight.has_no_room_for(b, SMALL + 1, later), "it takes what it is sent");
    assert!(in_flight.has_no_room_for(b, SMALL + 1, later + STRETCH), "it did, a while ago");
    // As long as most of it will be written soon, claims wait for that.
    held.truncate(30);
    held.push(in_flight.hold(30 * 1024 * 1024, later));
    assert!(in_flight.claim_limits(1000, later).is_none());
    held.clear();
    assert_eq!(in_flight.state().payload_bytes, 0);
    assert!(in_flight.state().bytes_by_beginning.is_empty(), "nothing is kept");
}

#[test]
fn a_claim_never_lets_a_subscription_past_its_part() {
    let in_flight = InFlight::new(100, Gauge::default());
    let _others = begin(&in_flight, SubscriptionId(2), 20);
    let _own = begin(&in_flight, A, 40);
    let limits = in_flight.claim_limits(1000, in_flight.start).unwrap();
    assert!(!limits.skip.contains(&A) || limits.jobs <= 30);
    if !limits.skip.contains(&A) {
        assert!(40 + limits.jobs <= 54, "two thirds of 80");
    }
}

/// Others hold most slots for long: an endpoint that answers may have more than one request in flight, as many as its
/// responses show that it can take, and leaves a third of the kept slots.
#[test]
fn an_endpoint_that_answers_beside_those_that_hang_may_take_kept_slots() {
    for (slots, most) in [(16, 2), (64, 6), (512, 43)] {
        let in_flight = InFlight::new(slots, Gauge::default());
        let (start, later) = (in_flight.start, in_flight.start + 2 * STRETCH);
        let hung = i64::from(slots - slots / 8);
        let _held: Vec<_> = (0..hung).flat_map(|n| begin(&in_flight, SubscriptionId(100 + n), 1)).collect();
        let may_take =
            |now| in_flight.claim_limits(1000, now).is_some_and(|limits| !limits.skip.contains(&A));
        let mut own = vec![in_flight.begin(A, later)];
        assert!(!may_take(later), "it has shown nothing");
        own[0].answered(later);
        assert!(!may_take(later), "one response is no proof");
        own[0].answered(later);
        assert!(may_take(later));
        assert!(!may_take(start + STRETCH), "the others may be as quick");
        assert!(!may_take(later + Duration::from_millis(200)), "that was long ago");
        (0..1000).for_each(|_| own[0].answered(later));
        while may_take(later) {
            own.push(in_flight.begin(A, later));
        }
        assert_eq!(own.len(), most, "of {slots}");
        assert!(in_flight.free() == slots / 8 - u32::try_from(most).unwrap());
    }
}
