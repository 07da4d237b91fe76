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

fn load(slots: u32, open: &[(SubscriptionId, u32)]) -> Load {
    Load { workers: 1, slots, open: open.iter().copied().collect() }
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
    assert_eq!(state.lanes[&A].endpoint.standing(now), hooksaga_saga::Standing::New);
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
    // Of the ten, eight were applied by another copy, which has opened five more. While that was counted, two were opened here.
    let (later, copies) = (start + SECOND, |open| Load { workers: 2, ..load(1024, &[(A, open)]) });
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
}

#[test]
fn jobs_that_a_killed_process_left_do_not_count_for_a_minute() {
    let start = Instant::now();
    let lanes = Lanes::default();
    lanes.loaded(Some(load(512, &[(A, 300)])), start, start);
    assert_eq!(open(&lanes, A), 0);
    lanes.loaded(Some(load(512, &[(A, 302)])), start + SECOND, start + SECOND);
    assert_eq!(open(&lanes, A), 2, "those that came since do");
    lanes.loaded(Some(load(512, &[(A, 10)])), start + SECOND * 2, start + SECOND * 2);
    lanes.loaded(Some(load(512, &[(A, 50)])), start + SECOND * 3, start + SECOND * 3);
    assert_eq!(open(&lanes, A), 40, "and what has ended is not left out a second time");
    let later = start + Lanes::INHERITED_FOR;
    lanes.loaded(Some(load(512, &[(A, 300)])), later, later);
    assert_eq!(open(&lanes, A), 300);
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
        last_turn,
        waits_since: 0,
    };
    let wanted = |counts: [i64; 3]| -> [usize; 3] {
        let mut waiting = Vec::new();
        for (standing, count) in [quick, Standing::New, Standing::Unreachable].into_iter().zip(counts) {
            waiting.extend((0..count).map(|id| (SubscriptionId(id), demand(standing, id.unsigned_abs()))));
        }
        let all = waiting.len();
        let later = later_ones(&mut waiting, 90);
        assert_eq!(waiting.len() + later.len(), all);
        assert!(waiting.len() <= 90 || all <= 90);
        [quick, Standing::New, Standing::Unreachable]
            .map(|standing| waiting.iter().filter(|(_, demand)| demand.standing == standing).count())
    };
    assert_eq!(wanted([10, 10, 10]), [10, 10, 10]);
    assert_eq!(wanted([100, 1, 0]), [89, 1, 0]);
    assert_eq!(wanted([100, 100, 100]), [30, 30, 30]);
    assert_eq!(wanted([5, 100, 100]), [5, 55, 30]);
    assert_eq!(wanted([1, 0, 500]), [1, 0, 89]);
}

/// Of more new endpoints than a pass decides on, those at both ends of their line are.
#[test]
fn the_newest_are_not_left_for_later() {
    let demand = |waits_since| Demand {
        waiting: u32::MAX,
        open: 0,
        window: 4,
        standing: Standing::New,
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
