use super::*;
use hooksaga_saga::{JobId, JobResult, SagaId, SagaStatus, Timestamp};

const FLOOR: u32 = Window::FLOOR.size();

fn result(subscription: i64, outcome: Outcome, duration: Duration) -> AppliedResult {
    let at = Timestamp::from_micros(0);
    AppliedResult {
        job_id: JobId(1),
        saga_id: SagaId(1),
        subscription_id: SubscriptionId(subscription),
        correlation_id: String::new(),
        status: SagaStatus::Completed,
        attempt_count: 1,
        next_attempt_at: at,
        changed: true,
        result: JobResult { attempt_at: at, outcome },
        duration,
        saga_created_at: at,
    }
}

fn quick(subscription: i64) -> AppliedResult {
    result(subscription, Outcome::Delivered, Duration::from_millis(3))
}

fn timeout(subscription: i64) -> AppliedResult {
    result(subscription, Outcome::Failed(ErrorCode::TIMEOUT), Duration::from_secs(15))
}

/// Says nothing about the endpoint.
fn neutral(subscription: i64) -> AppliedResult {
    result(subscription, Outcome::Failed(ErrorCode::INTERNAL), Duration::ZERO)
}

fn jobs(subscription: i64, count: usize) -> Vec<ScheduledSaga> {
    let saga = ScheduledSaga {
        saga_id: SagaId(1),
        subscription_id: SubscriptionId(subscription),
        attempt_at: Timestamp::from_micros(0),
        correlation_id: String::new(),
        job_id: Some(JobId(1)),
    };
    vec![saga; count]
}

/// A pass that creates jobs.
fn create(windows: &Windows, sagas: &[ScheduledSaga]) -> bool {
    !windows.created(&windows.admission(1000, None), sagas).is_empty()
}

/// As many jobs as there are results, and then the results.
fn round(windows: &Windows, results: &[AppliedResult]) {
    for result in results {
        create(windows, &jobs(result.subscription_id.0, 1));
    }
    windows.applied(results, Instant::now());
}

fn room(windows: &Windows, subscription: i64) -> u32 {
    windows.admission(1, None).room_of(SubscriptionId(subscription))
}

fn only(subscription: i64) -> BTreeSet<SubscriptionId> {
    BTreeSet::from([SubscriptionId(subscription)])
}

#[test]
fn a_batch_counts_once_and_its_worst_result_decides() {
    let windows = Windows::default();
    round(&windows, &[quick(1), quick(1), quick(1), quick(2), timeout(2)]);
    assert_eq!(room(&windows, 1), FLOOR * 2);
    assert_eq!(room(&windows, 2), FLOOR);
    assert_eq!(windows.state().lanes.len(), 1, "one that is as at the start is not kept");
}

#[test]
fn windows_grow_to_the_ceiling_and_are_forgotten_at_the_floor() {
    let windows = Windows::default();
    (0..20).for_each(|_| round(&windows, &[quick(1)]));
    assert_eq!(room(&windows, 1), Window::CEILING.size());
    (0..20).for_each(|_| round(&windows, &[timeout(1)]));
    assert!(windows.state().lanes.is_empty());
}

#[test]
fn one_that_takes_its_time_leaves_the_floor() {
    let windows = Windows::default();
    let unhurried = result(1, Outcome::Delivered, Duration::from_secs(2));
    (0..3).for_each(|_| round(&windows, std::slice::from_ref(&unhurried)));
    assert_eq!(room(&windows, 1), FLOOR + 3);
}

#[test]
fn what_was_never_sent_says_nothing() {
    let windows = Windows::default();
    for code in [ErrorCode::LEASE_EXHAUSTED, ErrorCode::INTERNAL] {
        round(&windows, &[result(1, Outcome::Failed(code), Duration::ZERO)]);
    }
    assert!(windows.state().lanes.is_empty());
}

#[test]
fn open_jobs_take_room_until_their_results_are_applied() {
    let windows = Windows::default();
    let mut existing = jobs(1, 2);
    existing.iter_mut().for_each(|saga| saga.job_id = None);
    create(&windows, &existing);
    assert_eq!(room(&windows, 1), FLOOR, "a job that was there already is not a new one");
    create(&windows, &jobs(1, 3));
    assert_eq!(room(&windows, 1), FLOOR - 3);
    create(&windows, &jobs(1, 3));
    assert_eq!(room(&windows, 1), 0);
    let again = AppliedResult { changed: false, ..neutral(1) };
    windows.applied(&[again, neutral(1), neutral(1)], Instant::now());
    assert_eq!(room(&windows, 1), 1);
}

#[test]
fn a_result_is_the_schedulers_business_where_more_may_wait() {
    let windows = Windows::default();
    let apply = || !windows.applied(&[neutral(1)], Instant::now()).is_empty();
    create(&windows, &jobs(1, 3));
    assert!(!apply(), "the pass had room for one more, and found none");
    create(&windows, &jobs(1, 2));
    assert!(apply() && apply(), "the pass took all the room that there was");
    create(&windows, &[]);
    assert!(!apply() && !apply(), "the next one found nothing");
    assert!(apply(), "somebody else's job");
}

#[test]
fn room_that_comes_free_during_a_pass_is_not_overlooked() {
    let windows = Windows::default();
    create(&windows, &jobs(1, 4));
    windows.applied(&[neutral(1)], Instant::now());
    let admission = windows.admission(1000, None);
    windows.applied(&[neutral(1), neutral(1)], Instant::now());
    assert_eq!(windows.created(&admission, &jobs(1, 1)), only(1), "it took the one place that it was given");
    let admission = windows.admission(1000, None);
    assert_eq!(windows.created(&admission, &jobs(1, 1)), BTreeSet::new(), "there were two places");

    create(&windows, &jobs(2, 4));
    let admission = Admission { limit: 1, ..windows.admission(1000, None) };
    windows.applied(&[neutral(2)], Instant::now());
    assert_eq!(windows.created(&admission, &jobs(1, 1)), only(2), "cut off before it came to the other");
}

#[test]
fn a_pass_says_nothing_about_those_that_it_does_not_look_at() {
    let windows = Windows::default();
    create(&windows, &jobs(1, 4));
    create(&windows, &jobs(2, 4));
    windows.applied(&[neutral(1)], Instant::now());
    let admission = windows.admission(1000, Some(only(2)));
    assert_eq!(windows.created(&admission, &[]), BTreeSet::new(), "there was no room, nor is there now");
    assert_eq!(windows.applied(&[neutral(1), neutral(2)], Instant::now()).len(), 2, "both may have more");
}

#[test]
fn a_result_that_comes_before_its_job_is_counted_evens_out() {
    let windows = Windows::default();
    windows.applied(&[neutral(1), neutral(1)], Instant::now());
    assert_eq!(room(&windows, 1), FLOOR, "never more than the window");
    create(&windows, &jobs(1, 2));
    assert_eq!(room(&windows, 1), FLOOR);
}

/// Windows of a process that found nothing when it came.
fn first() -> Windows {
    let windows = Windows::default();
    windows.counted(Some(&HashMap::new()), Instant::now());
    windows
}

fn counts<const N: usize>(counts: [(i64, u32); N]) -> HashMap<SubscriptionId, u32> {
    counts.into_iter().map(|(id, jobs)| (SubscriptionId(id), jobs)).collect()
}

#[test]
fn a_count_corrects_what_others_have_done() {
    let windows = first();
    let now = Instant::now();
    create(&windows, &jobs(1, 3));
    create(&windows, &jobs(2, 1));
    windows.counted(Some(&counts([(1, 1), (3, 4)])), now);
    assert_eq!([room(&windows, 1), room(&windows, 2), room(&windows, 3)], [FLOOR - 1, FLOOR, 0]);
    windows.counted(None, now);
    assert_eq!(room(&windows, 3), 0, "a count that failed changes nothing");
    windows.counted(Some(&counts([])), now);
    assert!(windows.state().lanes.is_empty());
}

#[test]
fn what_is_applied_during_a_count_is_set_off_against_it() {
    let windows = first();
    let now = Instant::now() + Windows::COUNT_AFTER;
    create(&windows, &jobs(1, 4));
    assert!(windows.begin_count(now));
    windows.applied(&[neutral(1), neutral(1)], now);
    windows.counted(Some(&counts([(1, 3)])), now);
    assert_eq!(room(&windows, 1), FLOOR - 1);
    windows.counted(Some(&counts([(1, 3)])), now);
    assert_eq!(room(&windows, 1), FLOOR - 3, "set off once");
}

#[test]
fn jobs_are_counted_when_others_may_have_been_at_work() {
    let windows = Windows::default();
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let took = |ms| windows.state().counted = Some((now, Duration::from_millis(ms)));
    assert!(windows.begin_count(at(0)), "what was there before this process is not known");
    took(1);
    create(&windows, &jobs(1, 3));
    assert!(!windows.begin_count(at(60_000)), "there is room: no need to know better");
    create(&windows, &jobs(1, 1));
    assert!(!windows.begin_count(at(900)), "it was only just counted");
    assert!(windows.begin_count(at(1100)), "no room, and no results");
    windows.applied(&[neutral(1)], at(2000));
    create(&windows, &jobs(1, 1));
    assert!(!windows.begin_count(at(2090)), "results come");
    assert!(windows.begin_count(at(2110)), "they came");
    windows.applied(&[neutral(1)], at(10_000));
    create(&windows, &jobs(1, 1));
    assert!(windows.begin_count(at(10_010)), "results come, but room never");
    took(100);
    assert!(!windows.begin_count(at(4900)), "a long count is a rare one");
    took(60_000);
    assert!(windows.begin_count(at(31_000)), "but not for ever");

    let windows = Windows::default();
    windows.counted(None, now);
    windows.applied(&[neutral(1)], now);
    assert!(windows.begin_count(at(1100)), "the result of a job that somebody else created");
}

#[test]
fn what_a_dead_process_has_left_is_not_held_against_anyone_for_a_minute() {
    let windows = Windows::default();
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    windows.counted(Some(&counts([(1, 480), (2, 3)])), at(0));
    assert_eq!([room(&windows, 1), room(&windows, 2)], [FLOOR; 2]);
    create(&windows, &jobs(1, 2));
    windows.counted(Some(&counts([(1, 482), (2, 3), (3, 1)])), at(30));
    assert_eq!([room(&windows, 1), room(&windows, 2), room(&windows, 3)], [FLOOR - 2, FLOOR, FLOOR - 1]);
    windows.counted(Some(&counts([(1, 481)])), at(60));
    assert_eq!([room(&windows, 1), room(&windows, 2)], [0, FLOOR], "by now it is somebody's");

    let windows = Windows::default();
    windows.counted(Some(&counts([(1, 480)])), at(0));
    create(&windows, &jobs(1, 3));
    windows.counted(Some(&counts([(1, 4)])), at(10));
    assert_eq!(room(&windows, 1), FLOOR - 3, "of the old ones at most one is left");
    windows.counted(Some(&counts([(1, 480)])), at(20));
    assert_eq!(room(&windows, 1), 0, "and more do not come back");

    let windows = Windows::default();
    windows.counted(None, at(0));
    create(&windows, &jobs(1, 3));
    windows.counted(Some(&counts([(1, 3)])), at(10));
    assert_eq!(room(&windows, 1), FLOOR - 3, "what was not counted at first may be this process's own");
}

#[test]
fn memory_is_bounded_and_open_jobs_are_not_forgotten() {
    let windows = Windows::default();
    create(&windows, &jobs(-1, 4));
    for id in 0..25_000 {
        windows.state().lane(SubscriptionId(id)).open += 1;
        windows.applied(&[quick(id)], Instant::now());
        assert!(windows.state().lanes.len() <= Windows::MANY);
    }
    assert_eq!(room(&windows, 24_999), FLOOR * 2);
    assert_eq!(room(&windows, -1), 0);
}

#[test]
fn many_with_open_jobs_are_all_kept() {
    let windows = first();
    let many: HashMap<_, _> = (0..25_000).map(|id| (SubscriptionId(id), 4)).collect();
    windows.counted(Some(&many), Instant::now());
    assert_eq!(windows.state().lanes.len(), 25_000);
}
