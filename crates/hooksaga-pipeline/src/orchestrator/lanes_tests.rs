use super::*;
use hooksaga_saga::{JobId, JobResult, SagaId, SagaStatus, Timestamp};
use hooksaga_store::{Limited, ScheduledSaga, Trace};

const A: SubscriptionId = SubscriptionId(1);
const B: SubscriptionId = SubscriptionId(2);
const SECOND: Duration = Duration::from_secs(1);

/// A pass that no rate limit cut short.
fn pass(sagas: Vec<ScheduledSaga>) -> Scheduled {
    Scheduled { now: Timestamp::from_micros(0), sagas, limited: Vec::new() }
}

fn scheduled(subscription_id: SubscriptionId, jobs: u32) -> Vec<ScheduledSaga> {
    let saga = ScheduledSaga {
        saga_id: SagaId(1),
        subscription_id,
        attempt_at: Timestamp::from_micros(0),
        trace: Trace::default(),
        job_id: Some(JobId(1)),
    };
    vec![saga; jobs as usize]
}

fn result(subscription_id: SubscriptionId, outcome: Outcome, changed: bool) -> AppliedResult {
    let at = Timestamp::from_micros(0);
    AppliedResult {
        job_id: JobId(1),
        saga_id: SagaId(1),
        subscription_id,
        trace: Trace::default(),
        status: SagaStatus::Completed,
        attempt_count: 1,
        next_attempt_at: at,
        changed,
        result: JobResult { attempt_at: at, outcome, retry_at: None },
        duration: Duration::from_millis(5),
    }
}

fn load(slots: u32, open: &[(SubscriptionId, u32)]) -> WorkerLoad {
    WorkerLoad { workers: 1, slots, silence: None, open: open.iter().copied().collect() }
}

/// Lanes that know of 512 slots and nothing else.
fn lanes(now: Instant) -> Lanes {
    let lanes = Lanes::default();
    assert!(lanes.wants_load(now));
    lanes.loaded(Some(load(512, &[])), now, now);
    lanes
}

fn open(lanes: &Lanes, id: SubscriptionId) -> u32 {
    lanes.state().lanes.get(&id).map_or(0, |lane| lane.endpoint.open())
}

fn allotted(lanes: &Lanes, id: SubscriptionId, now: Instant) -> u32 {
    lanes.allot(1000, now).iter().find(|one| one.subscription_id == id).map_or(0, |one| one.jobs)
}

#[test]
fn jobs_are_allotted_where_something_waits_and_until_nothing_does() {
    let now = Instant::now();
    let lanes = lanes(now);
    assert_eq!(lanes.allot(1000, now), []);
    lanes.may_wait([A, B]);
    let first = lanes.allot(1000, now);
    assert_eq!(first.len(), 2);
    let jobs = first[0].jobs;
    assert!(jobs > 0);
    // All of what A was allotted was there, and less of B's.
    let sagas = [scheduled(A, jobs), scheduled(B, 1)].concat();
    lanes.created(&first, &pass(sagas), now);
    assert_eq!((open(&lanes, A), open(&lanes, B)), (jobs, 1));
    assert_eq!(allotted(&lanes, B, now), 0, "nothing of B waits any more");
    let delivered = vec![result(A, Outcome::Delivered, true); jobs as usize];
    assert!(lanes.applied(&delivered, now), "more of A may wait");
    assert_eq!(open(&lanes, A), 0);
    assert!(allotted(&lanes, A, now) > jobs, "it answers quickly");
}

#[test]
fn a_pass_allots_no_more_than_it_may() {
    let now = Instant::now();
    let lanes = lanes(now);
    lanes.may_wait((1..=100).map(SubscriptionId));
    assert_eq!(lanes.allot(7, now).iter().map(|one| one.jobs).sum::<u32>(), 7);
}

#[test]
fn a_result_that_was_applied_before_closes_its_job_and_says_nothing() {
    let now = Instant::now();
    let lanes = lanes(now);
    lanes.may_wait([A]);
    let given = lanes.allot(1000, now);
    lanes.created(&given, &pass(scheduled(A, given[0].jobs)), now);
    let unsent = Outcome::Failed(ErrorCode::LEASE_EXHAUSTED);
    lanes.applied(&[result(A, Outcome::Delivered, false), result(A, unsent, true)], now);
    assert_eq!(open(&lanes, A), given[0].jobs - 2);
    let state = lanes.state();
    assert_eq!(state.lanes[&A].endpoint.standing(Duration::ZERO, now), hooksaga_saga::Standing::New);
}

#[test]
fn what_others_have_open_is_learnt_from_the_database_where_nothing_changed_meanwhile() {
    let start = Instant::now();
    let lanes = lanes(start);
    lanes.may_wait([A]);
    let given = lanes.allot(1000, start);
    lanes.created(&given, &pass(scheduled(A, given[0].jobs)), start);
    let later = start + 2 * SECOND;
    assert!(lanes.wants_load(later));
    // B is another process's; A's results were applied elsewhere.
    lanes.loaded(Some(load(64, &[(B, 3)])), later, later);
    assert_eq!((open(&lanes, A), open(&lanes, B)), (0, 3));
    // A job that is created while the load is read is not in it.
    lanes.may_wait([A]);
    let given = lanes.allot(1000, later);
    lanes.created(&given, &pass(scheduled(A, 1)), later + SECOND);
    lanes.loaded(Some(load(64, &[])), later, later + SECOND);
    assert_eq!((open(&lanes, A), open(&lanes, B)), (1, 0));
}

#[test]
fn beside_other_copies_a_busy_subscription_is_counted_too() {
    let start = Instant::now();
    let lanes = lanes(start);
    lanes.may_wait([A]);
    let allotted = [Allotted { subscription_id: A, jobs: 10 }];
    lanes.created(&allotted, &pass(scheduled(A, 10)), start);
    // Of the ten, eight were applied by another copy, which has opened five more. While that was counted, two were opened
    // here.
    let (later, copies) = (start + SECOND, |open| WorkerLoad { workers: 2, ..load(1024, &[(A, open)]) });
    lanes.load_begins();
    lanes.created(&allotted, &pass(scheduled(A, 2)), later);
    lanes.loaded(Some(copies(7)), later, later);
    assert_eq!(open(&lanes, A), 9);
    // What was closed here meanwhile is closed.
    let later = later + SECOND;
    lanes.load_begins();
    lanes.applied(&[result(A, Outcome::Delivered, true)], later);
    lanes.loaded(Some(copies(9)), later, later);
    assert_eq!(open(&lanes, A), 8);
    // A process that is alone knows best itself.
    let later = later + SECOND;
    lanes.load_begins();
    lanes.applied(&[result(A, Outcome::Delivered, true)], later);
    lanes.loaded(Some(load(512, &[(A, 100)])), later, later);
    assert_eq!(open(&lanes, A), 7);
    // But it may have missed something: what has drifted is corrected in the end.
    let later = later + Lanes::CORRECT_AFTER;
    lanes.load_begins();
    lanes.applied(&[result(A, Outcome::Delivered, true)], later);
    lanes.loaded(Some(load(512, &[(A, 100)])), later, later);
    assert_eq!(open(&lanes, A), 99);
}

#[test]
fn jobs_that_a_killed_process_left_do_not_count_for_a_minute() {
    let start = Instant::now();
    let lanes = Lanes::default();
    // It was seen last two seconds before this process began.
    let read = |after: Duration, jobs| {
        let silence = Some(after + 2 * SECOND);
        lanes.loaded(Some(WorkerLoad { silence, ..load(512, &[(A, jobs)]) }), start + after, start + after);
        open(&lanes, A)
    };
    assert_eq!(read(Duration::ZERO, 300), 0);
    assert_eq!(read(SECOND, 302), 2, "those that came since do");
    assert_eq!(read(SECOND * 2, 10), 0);
    assert_eq!(read(SECOND * 3, 50), 40, "and what has ended is not left out a second time");
    assert_eq!(read(Lanes::INHERITED_FOR, 300), 300);
}

#[test]
fn what_living_copies_have_open_counts_as_soon_as_all_of_them_were_heard_of() {
    let start = Instant::now();
    let lanes = Lanes::default();
    let read = |after: Duration, silence: Duration, jobs| {
        let copies = WorkerLoad { workers: 2, silence: Some(silence), ..load(1024, &[(A, jobs)]) };
        lanes.loaded(Some(copies), start + after, start + after);
        open(&lanes, A)
    };
    assert_eq!(read(Duration::ZERO, SECOND, 300), 0, "whoever works on them may be dead");
    assert_eq!(read(3 * SECOND, 4 * SECOND, 300), 0, "one was not heard of since");
    assert_eq!(read(4 * SECOND, 3 * SECOND, 300), 300);
    assert_eq!(read(5 * SECOND, 6 * SECOND, 300), 300, "one that falls silent later takes nothing back");

    let lanes = Lanes::default();
    lanes.loaded(Some(load(512, &[(A, 300)])), start, start);
    assert_eq!(open(&lanes, A), 300, "nobody was killed: whoever ends in order says so");
}

#[test]
fn what_waits_is_allotted_by_its_number_where_it_is_known() {
    let now = Instant::now();
    let lanes = lanes(now);
    let waits = || lanes.anybody_waits(now);
    lanes.wait([(A, 2), (B, 1)]);
    assert_eq!((allotted(&lanes, A, now), allotted(&lanes, B, now)), (2, 1));
    let given = lanes.allot(1000, now);
    lanes.created(&given, &pass([scheduled(A, 2), scheduled(B, 1)].concat()), now);
    assert!(!waits(), "all that waited has its jobs: nobody looks for more");
    // Some were scheduled by another copy.
    lanes.wait([(A, 2)]);
    lanes.created(&lanes.allot(1000, now), &pass(scheduled(A, 1)), now);
    assert!(!waits());
    // Another copy took the one that this pass found: the one that was counted here may still wait.
    lanes.wait([(A, 1)]);
    let taken = ScheduledSaga { job_id: None, ..scheduled(A, 1)[0].clone() };
    lanes.created(&lanes.allot(1000, now), &pass(vec![taken]), now);
    assert!(waits(), "the next pass finds it");
    lanes.created(&lanes.allot(1000, now), &pass(Vec::new()), now);
    assert!(!waits());
    // More may wait than was counted.
    lanes.wait([(B, 1)]);
    lanes.may_wait([B]);
    let given = lanes.allot(1000, now);
    assert!(given[0].jobs > 1);
    lanes.created(&given, &pass(scheduled(B, given[0].jobs)), now);
    assert!(waits());
}

#[test]
fn endpoints_that_cannot_be_reached_keep_nobody_busy() {
    let now = Instant::now();
    let lanes = lanes(now);
    lanes.wait([(A, 5), (B, 5)]);
    assert_eq!(lanes.busy(now), 2);
    let given = lanes.allot(1000, now);
    let jobs = |id| given.iter().find(|one| one.subscription_id == id).map_or(0, |one| one.jobs);
    let sagas = [scheduled(A, jobs(A)), scheduled(B, jobs(B))].concat();
    lanes.created(&given, &pass(sagas), now);
    lanes.applied(&[result(A, Outcome::Failed(ErrorCode::TIMEOUT), true)], now);
    assert_eq!(lanes.busy(now), 1, "A hangs");
    assert_eq!(lanes.busy(now + SECOND), 0, "and nothing was heard of B for a second");
    lanes.applied(&vec![result(B, Outcome::Delivered, true); jobs(B) as usize], now);
    assert_eq!(lanes.busy(now), 1, "one of B's waits");
}

#[test]
fn a_worker_that_has_just_started_is_seen_soon() {
    let start = Instant::now();
    let (lanes, took) = (Lanes::default(), SECOND / 1000);
    lanes.loaded(Some(load(0, &[])), start, start + took);
    lanes.may_wait([A]);
    assert!(!lanes.wants_load(start + 9 * took), "not for more than a tenth of the time");
    assert!(lanes.wants_load(start + 10 * took));
    lanes.loaded(Some(load(512, &[])), start, start + took);
    assert!(!lanes.wants_load(start + SECOND / 2), "it is known now");
}

#[test]
fn the_load_is_read_while_there_is_work_and_not_too_often() {
    let start = Instant::now();
    let lanes = lanes(start);
    assert!(!lanes.wants_load(start + 60 * SECOND), "nothing waits and nothing is open");
    lanes.may_wait([A]);
    assert!(!lanes.wants_load(start + SECOND / 2));
    assert!(lanes.wants_load(start + SECOND));
    // One that took a second is repeated after fifty at the earliest, and after thirty at the latest.
    lanes.loaded(None, start, start + SECOND);
    assert!(!lanes.wants_load(start + 29 * SECOND));
    assert!(lanes.wants_load(start + 30 * SECOND));
}

#[test]
fn without_a_living_worker_a_few_jobs_are_created_all_the_same() {
    let now = Instant::now();
    let lanes = Lanes::default();
    lanes.loaded(Some(load(0, &[])), now, now);
    lanes.may_wait([A]);
    assert!((1..=16).contains(&allotted(&lanes, A, now)));
}

/// FB-2: no more jobs than the living workers have slots, as far as four are enough for everybody.
#[test]
fn few_slots_are_not_taken_for_more() {
    let now = Instant::now();
    for (slots, most) in [(1, 4), (4, 4), (8, 8), (15, 15)] {
        let lanes = Lanes::default();
        lanes.loaded(Some(load(slots, &[])), now, now);
        lanes.may_wait((1..=50).map(SubscriptionId));
        let jobs: u32 = lanes.allot(1000, now).iter().map(|one| one.jobs).sum();
        assert!((1..=most).contains(&jobs), "{jobs} with {slots} slots");
    }
}

/// Jobs of an endpoint that answers, whose results another copy applies.
#[test]
fn an_endpoint_whose_results_another_copy_applies_is_not_silent() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let standing_at = |workers, millis, count: Option<(u64, u32)>| {
        let load = |open| WorkerLoad { workers, ..load(512, &[(A, open)]) };
        let lanes = Lanes::default();
        lanes.loaded(Some(load(0)), start, start);
        lanes.wait([(A, 4)]);
        let given = lanes.allot(1000, start);
        lanes.created(&given, &pass(scheduled(A, 4)), start);
        if let Some((counted, open)) = count {
            lanes.load_begins();
            lanes.loaded(Some(load(open)), at(counted), at(counted));
        }
        let state = lanes.state();
        state.lanes[&A].endpoint.standing(state.hears_after, at(millis))
    };
    assert_eq!(
        standing_at(1, 600, None),
        Standing::Unreachable,
        "one that works alone would have heard of it"
    );
    assert_eq!(standing_at(2, 1_400, None), Standing::New, "the next count is to come");
    assert_eq!(standing_at(2, 2_000, Some((1_100, 4))), Standing::Unreachable, "nothing has ended");
    assert_eq!(standing_at(2, 2_000, Some((1_100, 3))), Standing::New, "some have");
    assert_eq!(standing_at(2, 17_000, Some((16_000, 3))), Standing::Unreachable, "of a timeout, perhaps");
}

#[test]
fn memory_is_bounded_and_what_does_not_fit_is_told() {
    let now = Instant::now();
    let lanes = lanes(now);
    lanes.may_wait([A]);
    let given = lanes.allot(1000, now);
    lanes.created(&given, &pass(scheduled(A, given[0].jobs)), now);
    let most = i64::try_from(Lanes::MOST_KEPT).unwrap();
    assert!(lanes.may_wait((10..most).map(SubscriptionId)));
    assert!(!lanes.may_wait((10..most + 100).map(SubscriptionId)), "there is no room for all");
    let state = lanes.state();
    assert!(state.lanes.len() <= Lanes::MOST_KEPT && state.active.len() <= state.lanes.len());
    assert!(state.lanes.contains_key(&A));
}

#[test]
fn no_standing_crowds_out_another() {
    let quick = Standing::Answering { latency: Duration::from_millis(5) };
    let demand = |standing, last_turn| Demand {
        waiting: u32::MAX,
        open: 0,
        window: 4,
        standing,
        last_response: None,
        last_turn,
        waits_since: 0,
    };
    let standings = [quick, Standing::Unconfirmed, Standing::New, Standing::Unreachable];
    let wanted = |counts: [i64; 4]| -> [usize; 4] {
        let mut waiting = Vec::new();
        for (standing, count) in standings.into_iter().zip(counts) {
            waiting.extend((0..count).map(|id| (SubscriptionId(id), demand(standing, id.unsigned_abs()))));
        }
        let all = waiting.len();
        let later = later_ones(&mut waiting, 120);
        assert_eq!(waiting.len() + later.len(), all);
        assert!(waiting.len() <= 120 || all <= 120);
        standings.map(|standing| waiting.iter().filter(|(_, demand)| demand.standing == standing).count())
    };
    assert_eq!(wanted([10, 10, 10, 10]), [10, 10, 10, 10]);
    assert_eq!(wanted([130, 0, 1, 0]), [119, 0, 1, 0]);
    assert_eq!(wanted([100, 100, 100, 100]), [30, 30, 30, 30]);
    assert_eq!(wanted([5, 0, 200, 100]), [5, 0, 85, 30]);
    assert_eq!(wanted([1, 0, 0, 500]), [1, 0, 0, 119]);
    assert_eq!(wanted([0, 500, 1, 1]), [0, 118, 1, 1]);
}

/// More endpoints with a backlog than a pass has jobs for: one that has nothing does not wait for them.
#[test]
fn nobody_waits_for_those_with_a_backlog() {
    let share = |id, has_nothing, is_untested, jobs| Share {
        subscription_id: SubscriptionId(id),
        has_nothing,
        is_untested,
        jobs,
    };
    let mut shares: Vec<Share> = (0..1_500).map(|id| share(id, id >= 1_490, false, 8)).collect();
    shares.extend([share(1_500, true, true, 4), share(1_501, true, true, 0), share(1_502, false, true, 3)]);
    let given = |most| {
        let given: Vec<(i64, u32)> =
            within(most, &shares).into_iter().map(|one| (one.subscription_id.0, one.jobs)).collect();
        assert_eq!(given.iter().map(|(_, jobs)| jobs).sum::<u32>(), most);
        given
    };
    assert_eq!(given(1), [(1_500, 1)], "the one to be tested first");
    assert_eq!(given(2), [(1_490, 1), (1_500, 1)]);
    let all = given(1_000);
    assert_eq!((all[0], all[123], all[124]), ((0, 8), (123, 5), (1_490, 1)));
    assert_eq!((all.len(), all.last()), (135, Some(&(1_500, 1))));
    assert_eq!(given(1_490 * 8 + 10 * 8 + 4 + 3).last(), Some(&(1_502, 3)));
}

/// Of more new endpoints than a pass decides on, those at both ends of their line are.
#[test]
fn the_newest_are_not_left_for_later() {
    let demand = |waits_since| Demand {
        waiting: u32::MAX,
        open: 0,
        window: 4,
        standing: Standing::New,
        last_response: None,
        last_turn: 0,
        waits_since,
    };
    // Ids of subscriptions say nothing about when they began to wait.
    let mut waiting: Vec<_> = (0..100).map(|n| (SubscriptionId(100 - n), demand(n.unsigned_abs()))).collect();
    let later = later_ones(&mut waiting, 10);
    let since: Vec<u64> = waiting.iter().map(|(_, demand)| demand.waits_since).collect();
    assert_eq!(since, [0, 1, 2, 3, 4, 95, 96, 97, 98, 99]);
    assert_eq!(later.len(), 90);
}

#[test]
fn a_newcomer_does_not_wait_behind_those_that_were_never_tried_and_hang() {
    let start = Instant::now();
    let lanes = lanes(start);
    lanes.may_wait((10..1010).map(SubscriptionId));
    let mut now = start;
    for _ in 0..20 {
        let given = lanes.allot(1000, now);
        let sagas = given.iter().flat_map(|one| scheduled(one.subscription_id, one.jobs)).collect();
        lanes.created(&given, &pass(sagas), now);
        now += SECOND / 2;
    }
    // Subscribed before the others, and the last to be sent something.
    lanes.may_wait([A]);
    assert!(allotted(&lanes, A, now) > 0);
    assert!(lanes.may_wait([A]), "told again");
    assert!(allotted(&lanes, A, now) > 0, "it still is the newest");
}

#[test]
fn what_a_rate_limit_holds_back_waits_until_it_lets_something_through() {
    let now = Instant::now();
    let lanes = lanes(now);
    lanes.may_wait([A]);
    let given = lanes.allot(1000, now);
    let limited = vec![Limited { subscription_id: A, wait: SECOND }];
    lanes.created(&given, &Scheduled { limited, ..pass(scheduled(A, 1)) }, now);
    lanes.may_wait([A]);
    assert_eq!(allotted(&lanes, A, now), 0, "also when it is told that something waits");
    assert!(!lanes.applied(&[result(A, Outcome::Delivered, true)], now), "nobody waits for room");
    assert!(allotted(&lanes, A, now + SECOND) > 0);
}

#[test]
fn endpoints_that_failed_before_this_process_are_not_tried_as_if_they_were_new() {
    let now = Instant::now();
    let lanes = lanes(now);
    lanes.may_wait([A, B]);
    assert!(lanes.wants_failing());
    let new = (allotted(&lanes, A, now), allotted(&lanes, B, now));
    lanes.failing(&[(A, ErrorCode::TIMEOUT)]);
    assert!(!lanes.wants_failing());
    assert!(allotted(&lanes, A, now) < new.0, "{} of {}", allotted(&lanes, A, now), new.0);
    assert!(allotted(&lanes, B, now) >= new.1, "who did not fail has what it had");
    assert_eq!(allotted(&lanes, A, now), 1, "it is tried all the same");

    // What this process has seen itself counts for more than what others saw before.
    let one = lanes.allot(1000, now);
    lanes.created(&one, &pass(scheduled(A, 1)), now);
    lanes.applied(&[result(A, Outcome::Delivered, true)], now);
    lanes.failing(&[(A, ErrorCode::TIMEOUT)]);
    lanes.may_wait([A]);
    assert!(allotted(&lanes, A, now) > 1);
}

#[test]
fn hundreds_that_hung_before_a_restart_leave_room_for_those_that_answer() {
    // In the middle of the line: among a thousand others that nobody has tried, it would wait until they have been.
    const LAST: SubscriptionId = SubscriptionId(1000);
    let now = Instant::now();
    let hung: Vec<_> =
        (500..1000).chain(1001..1501).map(|id| (SubscriptionId(id), ErrorCode::TIMEOUT)).collect();
    let started = |failing: &[(SubscriptionId, ErrorCode)]| {
        let lanes = lanes(now);
        lanes.failing(failing);
        lanes.may_wait(hung.iter().map(|(id, _)| *id).chain([LAST]));
        let to_hung: u32 = lanes.allot(1000, now).iter().map(|one| one.jobs).sum();
        let to_last = allotted(&lanes, LAST, now);
        (to_hung - to_last, to_last)
    };
    assert_eq!(started(&[]).1, 0, "as it would be without what others have seen");
    let (to_hung, to_last) = started(&hung);
    assert!(to_hung <= 512 / 2, "{to_hung} of 512 slots");
    assert!(to_last > 1, "{to_last}");
}
