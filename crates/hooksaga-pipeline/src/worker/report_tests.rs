//! Results that are refused, lost, or written late, over a store that misbehaves on demand.

use super::{
    super::{attempt::JobInfo, fake_store::FakeStore, results::ClaimAllowance},
    *,
};
use hooksaga_saga::{ErrorCode, SagaId, Timestamp};
use hooksaga_store::{LeaseToken, Trace};

fn about(job: i64) -> JobInfo {
    JobInfo {
        lease: LeaseRef {
            job_id: JobId(job),
            saga_id: SagaId(job),
            attempt_at: Timestamp::from_micros(0),
            token: LeaseToken(1),
        },
        attempt: 1,
        trace: Trace::default(),
        accepted_at: Timestamp::from_micros(0),
        lease_end: Instant::now() + Duration::from_secs(10),
    }
}

fn finished(jobs: impl IntoIterator<Item = i64>) -> Vec<Settled> {
    jobs.into_iter().map(|job| about(job).failed_unsent(ErrorCode::INTERNAL)).collect()
}

fn reporter() -> (Arc<FakeStore>, Signals, Arc<Metrics>, Reporter) {
    reporter_of(FakeStore::default())
}

fn reporter_of(store: FakeStore) -> (Arc<FakeStore>, Signals, Arc<Metrics>, Reporter) {
    let store = Arc::new(store);
    let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
    let reporter = Reporter::new(
        store.clone(),
        signals.clone(),
        metrics.clone(),
        DeliveryLog::All,
        Arc::default(),
        Arc::clone(&store.gate),
    );
    (store, signals, metrics, reporter)
}

#[tokio::test]
async fn what_gathers_is_written_together_and_announced() {
    let (store, signals, _, reporter) = reporter();
    let (sender, receiver) = mpsc::channel(16);
    for settled in finished(1..=5) {
        sender.try_send(settled).unwrap();
    }
    drop(sender);
    reporter.run(receiver).await;
    assert_eq!(*store.calls.lock().unwrap(), [[1, 2, 3, 4, 5]]);
    signals.woken(Stage::Apply).await;
}

#[tokio::test]
async fn a_refused_result_does_not_cost_its_neighbours() {
    let (store, _, metrics, reporter) = reporter();
    reporter.settle(finished(10..=17)).await;
    let mut written = store.written.lock().unwrap().clone();
    written.sort_unstable();
    assert_eq!(written, [10, 11, 12, 14, 15, 16, 17]);
    assert!(metrics.encode(None).contains("hooksaga_reports_lost_total 1\n"));
}

#[tokio::test]
async fn while_a_batch_is_halved_nothing_is_claimed() {
    let (store, _, _, reporter) = reporter_of(FakeStore { most: Some(2), ..FakeStore::default() });
    reporter.settle(finished(1..=4)).await;
    assert_eq!(*store.calls.lock().unwrap(), [vec![1, 2, 3, 4], vec![1, 2], vec![3, 4]]);
    assert_eq!(*store.would_claim.lock().unwrap(), [true, false, false]);
    assert_eq!(store.gate.pass(Instant::now()), ClaimAllowance::Open, "all of it is written");
}

#[tokio::test(start_paused = true)]
async fn while_the_database_is_away_results_wait_for_it() {
    let (store, _, metrics, reporter) = reporter();
    *store.away.lock().unwrap() = 8;
    reporter.settle(finished(1..=2)).await;
    assert_eq!(*store.written.lock().unwrap(), [1, 2]);
    assert!(metrics.encode(None).contains("hooksaga_reports_lost_total 0\n"));
}

#[tokio::test(start_paused = true)]
async fn when_the_lease_is_over_a_result_is_given_up() {
    let (store, _, metrics, reporter) = reporter();
    *store.away.lock().unwrap() = u32::MAX;
    let began = Instant::now();
    reporter.settle(finished(1..=2)).await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(8) && took <= Duration::from_secs(10), "{took:?}");
    assert!(store.calls.lock().unwrap().len() < 20, "it does not hammer a database that is away");
    assert!(metrics.encode(None).contains("hooksaga_reports_lost_total 2\n"));
}

#[tokio::test]
async fn jobs_are_handed_back_by_their_delay() {
    let (store, _, _, reporter) = reporter();
    let second = Duration::from_secs(1);
    let settled = [(1, Duration::ZERO), (2, second), (3, Duration::ZERO)];
    reporter.settle(settled.map(|(job, delay)| about(job).give_back(delay)).into()).await;
    assert_eq!(*store.handed_back.lock().unwrap(), [(Duration::ZERO, vec![1, 3]), (second, vec![2])]);
    assert!(store.calls.lock().unwrap().is_empty(), "nothing to report is no call");
}

/// Three results, 3 ms apart; `awaited`: after this many of them somebody waits for results. Returns what was written
/// together.
async fn written_in_turn(awaited: usize) -> Vec<Vec<i64>> {
    let (store, signals, _, reporter) = reporter();
    let (sender, receiver) = mpsc::channel(16);
    let send = async move {
        for (sent, settled) in finished(1..=3).into_iter().enumerate() {
            signals.set_results_awaited(sent >= awaited);
            sender.try_send(settled).unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    tokio::join!(send, reporter.run(receiver));
    store.calls.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn few_results_gather_while_nobody_waits_for_them() {
    assert_eq!(written_in_turn(3).await, [vec![1], vec![2, 3]]);
    assert_eq!(written_in_turn(2).await, [vec![1], vec![2, 3]], "the third comes with the one that waits");
    assert_eq!(written_in_turn(1).await, [[1], [2], [3]]);
    assert_eq!(written_in_turn(0).await, [[1], [2], [3]]);
}
