//! What the pure parts cost per call: the state machine, the admission window, the egress guard, secrets.
//!
//! Where an input could lead elsewhere than its benchmark says, that is checked before anything is measured.
//! Only public functions are called, and nothing does I/O, but for the random nonce of a sealed secret.

use divan::{Bencher, Divan, black_box};
use std::time::Duration;

/// Long enough that a figure is not that of one moment. `--min-time` sets another.
const PER_BENCHMARK: Duration = Duration::from_millis(100);

fn main() {
    Divan::default().min_time(PER_BENCHMARK).config_with_args().main();
}

mod saga {
    use super::{Bencher, black_box};
    use hooksaga_saga::{
        Applied, Demand, ErrorCode, JobResult, Outcome, RetryPolicy, Saga, SagaEvent, SagaStatus, Standing,
        Timestamp,
    };
    use std::time::Duration;

    const CREATED: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const LIMIT: u32 = 8;

    /// How an attempt ends, and with it perhaps the delivery.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Success,
        Retry,
        DeadLetter,
    }

    const ENDS: [End; 3] = [End::Success, End::Retry, End::DeadLetter];

    impl End {
        fn status(self) -> SagaStatus {
            match self {
                Self::Success => SagaStatus::Completed,
                Self::Retry => SagaStatus::PendingRetry,
                Self::DeadLetter => SagaStatus::DeadLettered,
            }
        }

        /// A saga whose attempt is under way, and what that attempt comes to.
        fn fixture(self) -> (Saga, Outcome) {
            // A dead letter is what the last attempt leaves; the others end their first.
            let attempt_count = if matches!(self, Self::DeadLetter) { LIMIT - 1 } else { 0 };
            let saga = Saga { status: SagaStatus::InProgress, attempt_count, ..Saga::new(LIMIT, CREATED) };
            let outcome = match self {
                Self::Success => Outcome::Delivered,
                Self::Retry | Self::DeadLetter => Outcome::Failed(ErrorCode::http(503)),
            };
            (saga, outcome)
        }
    }

    fn now() -> Timestamp {
        CREATED.after(Duration::from_millis(20))
    }

    #[divan::bench(args = ENDS)]
    fn step(bencher: Bencher<'_, '_>, end: End) {
        let (saga, outcome) = end.fixture();
        let event = SagaEvent::JobFinished { attempt_at: CREATED, outcome, retry_at: None };
        let (policy, now) = (RetryPolicy::default(), now());
        let run =
            || hooksaga_saga::step(black_box(&saga), black_box(&event), black_box(&policy), black_box(now));
        assert_eq!(run().map(|next| next.status), Ok(end.status()));
        bencher.bench_local(run);
    }

    #[divan::bench(args = ENDS)]
    fn apply_result(bencher: Bencher<'_, '_>, end: End) {
        let (saga, outcome) = end.fixture();
        let job = JobResult { attempt_at: CREATED, outcome, retry_at: None };
        let run = || apply(&saga, &job);
        assert!(matches!(run(), Applied::Changed { saga, promoted: false } if saga.status == end.status()));
        bencher.bench_local(run);
    }

    /// A result that comes a second time: the saga is final, and nothing changes.
    #[divan::bench]
    fn apply_result_again(bencher: Bencher<'_, '_>) {
        let (saga, outcome) = End::Success.fixture();
        let saga = Saga { status: SagaStatus::Completed, attempt_count: 1, ..saga };
        let job = JobResult { attempt_at: CREATED, outcome, retry_at: None };
        let run = || apply(&saga, &job);
        assert_eq!(run(), Applied::Already);
        bencher.bench_local(run);
    }

    fn apply(saga: &Saga, job: &JobResult) -> Applied {
        let policy = RetryPolicy::default();
        hooksaga_saga::apply_result(black_box(saga), black_box(job), black_box(&policy), black_box(now()))
    }

    /// The first retry, one in the middle, and one at the longest delay.
    #[divan::bench(args = [1, 5, 40])]
    fn backoff(attempt_count: u32) -> Duration {
        hooksaga_saga::backoff(black_box(attempt_count), black_box(&RetryPolicy::default()))
    }

    /// One decision about this many subscriptions, every fourth of which hangs.
    #[divan::bench(args = [1, 10, 100, 1000, 4000])]
    fn allot(bencher: Bencher<'_, '_>, subscriptions: u64) {
        let quick = Standing::Answering { latency: Duration::from_millis(3) };
        let demand = |number: u64| Demand {
            waiting: u32::MAX,
            open: u32::try_from(number % 5).unwrap_or(0),
            window: 64,
            standing: if number % 4 == 3 { Standing::Unreachable } else { quick },
            last_response: None,
            last_turn: number,
            waits_since: number,
        };
        let demands: Vec<Demand> = (0..subscriptions).map(demand).collect();
        bencher.bench_local(|| hooksaga_saga::allot(black_box(512), black_box(&demands)));
    }
}

mod egress {
    use super::{Bencher, black_box};
    use hooksaga_pipeline::EgressPolicy;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const PUBLIC_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8));
    const PUBLIC_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2606, 0x4700, 0, 0, 0, 0, 0, 1));
    const LINK_LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

    #[divan::bench(args = [PUBLIC_V4, PUBLIC_V6, LINK_LOCAL])]
    fn permits(bencher: Bencher<'_, '_>, address: IpAddr) {
        let policy = EgressPolicy::default();
        let run = || black_box(&policy).permits(black_box(address));
        assert_eq!(run(), address != LINK_LOCAL);
        bencher.bench_local(run);
    }
}

mod secrets {
    use super::{Bencher, black_box};
    use hooksaga_pipeline::{SecretKey, SigningSecret};
    use hooksaga_saga::SubscriptionId;

    /// With a nonce from the operating system.
    #[divan::bench]
    fn seal(bencher: Bencher<'_, '_>) {
        let (key, secret) = (SecretKey::generate(), SigningSecret::generate());
        bencher.bench_local(|| black_box(&key).seal(SubscriptionId(1), black_box(&secret)));
    }

    /// As a worker does for each subscription of a batch: decrypted and made ready to sign.
    #[divan::bench]
    fn open(bencher: Bencher<'_, '_>) {
        let (key, secret) = (SecretKey::generate(), SigningSecret::generate());
        let sealed = key.seal(SubscriptionId(1), &secret);
        let run = || black_box(&key).open(SubscriptionId(1), black_box(&sealed));
        assert!(run().is_ok_and(|opened| opened.as_bytes() == secret.as_bytes()));
        bencher.bench_local(run);
    }

    #[divan::bench]
    fn parse(bencher: Bencher<'_, '_>) {
        let text = SigningSecret::generate().reveal();
        let run = || black_box(text.as_str()).parse::<SigningSecret>();
        assert!(run().is_ok_and(|secret| secret.reveal() == text));
        bencher.bench_local(run);
    }
}
