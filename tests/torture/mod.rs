//! Under fire: events are posted while processes are killed and frozen, connections cut and silenced, and the database
//! crashed, in an order that a seed decides. Afterwards every promise is checked.
//!
//! A run of the suite takes a few seconds of it on each back end. `make torture` takes as long as it is told to:
//! `HOOKSAGA_TORTURE_SECONDS`, and `HOOKSAGA_TORTURE_SEED` for another order. It also has the faults that last: see
//! [`Lasting`].

pub(crate) mod oracles;
mod posting;
mod processes;
mod progress;
mod setup;

use crate::support::*;
use posting::Posting;
use processes::Cast;
use setup::Setup;
use std::{collections::VecDeque, time::Instant};

/// Everything that was accepted ends within so many seconds after the last fault. `HOOKSAGA_TORTURE_SETTLED` allows more on a
/// machine that has far too much else to do; the figures say how long it took.
const SETTLED_WITHIN: u64 = 40;

fn settled_within() -> Duration {
    Duration::from_secs(setting("HOOKSAGA_TORTURE_SETTLED", SETTLED_WITHIN))
}

/// A long run has rounds of this length, and after each of them the faults stop until everything has ended. For an endpoint
/// that throttles, more waits the longer the faults last, and so the time until all of it has ended says less and less.
const ROUND: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    torture(Setup::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    torture(Setup::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() {
    torture(Setup::mysql().await).await;
}

/// What is done to the product.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    /// For a moment, or for longer than a lease. The limit for a transaction that is left open is longer: see
    /// [`Lasting::InATransaction`].
    Freeze,
    CutConnections,
    SilenceConnections,
    CrashDatabase,
}

/// What takes longer than the suite has time for: each once, in this order, spread over a long run on a database server. Whose
/// transaction is frozen is chance, so `HOOKSAGA_TORTURE_LOST_COMMITS` asks for more than one of those.
#[derive(Clone, Copy, Debug)]
enum Lasting {
    /// A transaction stays open with its locks, and nobody hears of its client again.
    InATransaction,
    /// Every connection that there is falls silent for good.
    LostConnections,
    /// The database is frozen for longer than calls wait.
    FrozenDatabase,
}

impl Lasting {
    /// In runs of at least this length.
    const FROM: Duration = Duration::from_secs(60);

    /// Those of a run, each with the time from which it is due.
    fn all(run: Duration) -> VecDeque<(Self, Duration)> {
        let lost_commits = usize::try_from(setting("HOOKSAGA_TORTURE_LOST_COMMITS", 1)).unwrap();
        let faults = std::iter::repeat_n(Self::InATransaction, lost_commits)
            .chain([Self::LostConnections, Self::FrozenDatabase]);
        let parts = u32::try_from(lost_commits).unwrap() + 4;
        faults.zip(1_u32..).map(|(fault, number)| (fault, run * number / parts)).collect()
    }

    /// Makes it happen. Afterwards everybody else goes on within this time.
    async fn happen(self, setup: &Setup) -> Duration {
        match self {
            Self::InATransaction => {
                setup.lose_a_commit();
                // There is always something to commit: every lease ends, and clients post all the time.
                eventually("a commit is lost", || async { setup.has_lost_the_commit().then_some(()) }).await;
            }
            Self::LostConnections => setup.lose_connections(),
            Self::FrozenDatabase => setup.freeze_database().await,
        }
        match self {
            Self::InATransaction => setup.locks_are_kept_for(),
            Self::LostConnections | Self::FrozenDatabase => settled_within(),
        }
    }
}

/// Numbers that follow from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    fn fault(&mut self, setup: &Setup) -> Fault {
        match self.below(100) {
            0..45 => Fault::Kill,
            45..65 => Fault::Freeze,
            65..80 if setup.has_server() => Fault::CutConnections,
            80..92 if setup.has_server() => Fault::SilenceConnections,
            92..100 if setup.has_server() => Fault::CrashDatabase,
            _ => Fault::Kill,
        }
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

async fn torture(setup: Setup) {
    let seed = setting("HOOKSAGA_TORTURE_SEED", 1);
    let lasting = Duration::from_secs(setting("HOOKSAGA_TORTURE_SECONDS", 6));
    let rounds = u32::try_from(lasting.as_secs() / ROUND.as_secs()).unwrap().max(1);
    let mut run = Run::begin(setup, seed, lasting).await;
    for round in 1..=rounds {
        run.round(lasting * round / rounds, round == rounds).await;
    }
    run.check(seed).await;
}

/// What a run has done so far.
struct Run {
    setup: Setup,
    dice: Dice,
    receiver: Receiver,
    cast: Cast,
    subscriptions: Vec<(i64, &'static str)>,
    /// The lasting faults that are still to come, each with the time from which it is due.
    to_come: VecDeque<(Lasting, Duration)>,
    /// For so long there were faults.
    faults_for: Duration,
    faults: [u32; 5],
    accepted: Vec<i64>,
    /// How long an event took that was posted beside each lasting fault.
    went_on: Vec<String>,
    /// The longest time after the last fault of a round until everything had ended.
    settled: Duration,
}

impl Run {
    async fn begin(setup: Setup, seed: u64, lasting: Duration) -> Self {
        let (receiver, cast) = (Receiver::start().await, Cast::start(&setup).await);
        let mut subscriptions = Vec::new();
        for path in ["/good", "/flaky", "/hanging"] {
            let api = Api::new(&cast.api_addresses()[0], Some(ROOT_KEY));
            subscriptions.push((api.verified_subscription("t", &receiver.url(path)).await.0, path));
        }
        let is_long = lasting >= Lasting::FROM && setup.has_server();
        Self {
            setup,
            dice: Dice(seed),
            receiver,
            cast,
            subscriptions,
            to_come: if is_long { Lasting::all(lasting) } else { VecDeque::new() },
            faults_for: Duration::ZERO,
            faults: [0; 5],
            accepted: Vec::new(),
            went_on: Vec::new(),
            settled: Duration::ZERO,
        }
    }

    /// Faults, until they have lasted for so long in all; then everything has to end.
    async fn round(&mut self, until: Duration, is_last: bool) {
        misbehave(&self.receiver, &mut self.dice);
        let posting = Posting::start(&self.cast.addresses(), self.accepted.len());
        let (began, before) = (Instant::now(), self.faults_for);
        while self.faults_for < until || (is_last && !self.to_come.is_empty()) {
            tokio::time::sleep(self.dice.millis(20, 250)).await;
            if let Some((fault, _)) = self.to_come.pop_front_if(|(_, due)| self.faults_for > *due) {
                self.one_that_lasts(fault).await;
            }
            self.one_that_passes().await;
            self.cast.look_after(&self.setup).await;
            self.faults_for = before + began.elapsed();
        }
        // The time until everything has ended begins here, whoever has to wait for what.
        let stopped = Instant::now();
        self.cast.recover(&self.setup).await;
        // An endpoint that still throttles or hangs would be sent few requests at a time: it holds itself.
        for path in ["/flaky", "/hanging"] {
            self.receiver.answer(path, [Behaviour::Status(200)]);
        }
        let accepted = tokio::time::timeout(settled_within(), posting.stop()).await;
        self.accepted
            .extend(accepted.expect("what was being posted when the faults stopped is accepted in time"));
        oracles::wait_until_settled(&self.api(), settled_within().saturating_sub(stopped.elapsed())).await;
        self.settled = self.settled.max(stopped.elapsed());
    }

    /// By itself: what is frozen or killed meanwhile would not be this fault's doing.
    async fn one_that_lasts(&mut self, fault: Lasting) {
        self.cast.recover(&self.setup).await;
        let within = fault.happen(&self.setup).await;
        let (works, external_id) = (self.subscriptions[0].0, format!("{fault:?}-{}", self.went_on.len()));
        let (event, took) =
            progress::one_event_completes(&self.cast.addresses(), works, &external_id, within).await;
        self.accepted.push(event);
        self.went_on.push(format!("{fault:?} {:.1} s", took.as_secs_f64()));
    }

    async fn one_that_passes(&mut self) {
        let Self { setup, dice, cast, faults, .. } = self;
        let fault = dice.fault(setup);
        faults[fault as usize] += 1;
        match fault {
            // It counts those that it killed.
            Fault::Kill => faults[Fault::Kill as usize] += cast.kill(dice.roll(), setup).await - 1,
            Fault::Freeze => cast.freeze(dice.roll(), dice.millis(100, 2500), setup).await,
            Fault::CutConnections => setup.cut_connections(),
            Fault::SilenceConnections => {
                setup.silence(true);
                tokio::time::sleep(dice.millis(100, 1200)).await;
                setup.silence(false);
            }
            Fault::CrashDatabase => setup.crash(),
        }
    }

    fn api(&self) -> Api {
        Api::new(&self.cast.api_addresses()[0], Some(ROOT_KEY))
    }

    #[expect(clippy::print_stdout, reason = "the figures of a run, for whoever asked for it")]
    async fn check(self, seed: u64) {
        let [kills, freezes, cuts, silences, crashes] = self.faults;
        let found = oracles::check(&self.api(), &self.accepted, &self.subscriptions, &self.receiver).await;
        println!(
            "torture: {}, seed {seed}, {:.0} s of faults: {kills} kills, {freezes} freezes, {cuts} cuts, {silences} silences, \
             {crashes} database crashes; {} events accepted, 0 lost, 0 results applied twice, {found}; everything had \
             ended {:.1} s after the last fault; beside lasting faults an event took: {}",
            self.setup.name(),
            self.faults_for.as_secs_f64(),
            self.accepted.len(),
            self.settled.as_secs_f64(),
            if self.went_on.is_empty() { "-".to_owned() } else { self.went_on.join(", ") }
        );
        assert!(!self.accepted.is_empty(), "nothing was accepted");
    }
}

/// Endpoints that work, fail in every way now and then, and hang now and then.
fn misbehave(receiver: &Receiver, dice: &mut Dice) {
    let flaky = (0..5000).map(|_| match dice.below(10) {
        0 | 1 => Behaviour::Status(500),
        2 => Behaviour::Reset,
        3 => Behaviour::Close,
        4 => Behaviour::Slow(Duration::from_millis(300), 200),
        5 => Behaviour::RetryAfter(429, "1".to_owned()),
        _ => Behaviour::Status(200),
    });
    receiver.answer("/flaky", flaky.collect::<Vec<_>>().into_iter().chain([Behaviour::Status(200)]));
    let hanging =
        (0..5000).map(|_| if dice.below(25) == 0 { Behaviour::Hang } else { Behaviour::Status(200) });
    receiver.answer("/hanging", hanging.collect::<Vec<_>>().into_iter().chain([Behaviour::Status(200)]));
}
