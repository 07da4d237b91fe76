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
use std::time::Instant;

/// Everything that was accepted ends within this time after the last fault.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);

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

/// What takes longer than the suite has time for: each once, in this order, spread over a long run on a database server.
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
    const ALL: [Self; 3] = [Self::InATransaction, Self::LostConnections, Self::FrozenDatabase];
    /// In runs of at least this length.
    const FROM: Duration = Duration::from_secs(60);

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
            Self::LostConnections | Self::FrozenDatabase => SETTLED_WITHIN,
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

#[expect(clippy::print_stdout, reason = "the figures of a run, for whoever asked for it")]
async fn torture(mut setup: Setup) {
    let seed = setting("HOOKSAGA_TORTURE_SEED", 1);
    let lasting = Duration::from_secs(setting("HOOKSAGA_TORTURE_SECONDS", 6));
    let mut dice = Dice(seed);
    let receiver = Receiver::start().await;
    misbehave(&receiver, &mut dice);

    let mut cast = Cast::start(&setup).await;
    let mut subscriptions = Vec::new();
    for path in ["/good", "/flaky", "/hanging"] {
        let api = Api::new(&cast.api_addresses()[0], Some(ROOT_KEY));
        subscriptions.push((api.verified_subscription("t", &receiver.url(path)).await.0, path));
    }
    let (addresses, works) = (cast.addresses(), subscriptions[0].0);
    let posting = Posting::start(&addresses);

    let began = Instant::now();
    let mut faults = [0_u32; 5];
    let is_long = lasting >= Lasting::FROM && setup.has_server();
    let mut long = Lasting::ALL.into_iter().filter(|_| is_long).zip(1_u32..);
    let mut next_long = long.next();
    let (mut probes, mut went_on) = (Vec::new(), Vec::new());
    while began.elapsed() < lasting || next_long.is_some() {
        tokio::time::sleep(dice.millis(20, 250)).await;
        if let Some((fault, number)) = next_long
            && began.elapsed() > lasting * number / 5
        {
            // By itself: what is frozen or killed meanwhile would not be this fault's doing.
            cast.recover(&setup).await;
            let within = fault.happen(&setup).await;
            let name = format!("{fault:?}");
            let (probe, took) = progress::one_event_completes(&addresses, works, &name, within).await;
            probes.push(probe);
            went_on.push(format!("{name} {:.1} s", took.as_secs_f64()));
            next_long = long.next();
        }
        let fault = dice.fault(&setup);
        faults[fault as usize] += 1;
        match fault {
            // It counts those that it killed.
            Fault::Kill => faults[Fault::Kill as usize] += cast.kill(dice.roll(), &setup).await - 1,
            Fault::Freeze => cast.freeze(dice.roll(), dice.millis(100, 2500), &setup).await,
            Fault::CutConnections => setup.cut_connections(),
            Fault::SilenceConnections => {
                setup.silence(true);
                tokio::time::sleep(dice.millis(100, 1200)).await;
                setup.silence(false);
            }
            Fault::CrashDatabase => setup.crash(),
        }
        cast.look_after(&setup).await;
    }
    let faults_for = began.elapsed();
    // The time until everything has ended begins here, whoever has to wait for what.
    let stopped = Instant::now();
    cast.recover(&setup).await;
    // An endpoint that still throttles would be sent to one request at a time: it holds itself.
    receiver.answer("/flaky", [Behaviour::Status(200)]);
    let accepted = tokio::time::timeout(SETTLED_WITHIN, posting.stop(probes)).await;
    let accepted = accepted.expect("what was being posted when the faults stopped is accepted in time");
    let api = Api::new(&cast.api_addresses()[0], Some(ROOT_KEY));
    oracles::wait_until_settled(&api, SETTLED_WITHIN.saturating_sub(stopped.elapsed())).await;
    let settled = stopped.elapsed();
    let [kills, freezes, cuts, silences, crashes] = faults;
    let found = oracles::check(&api, &accepted, &subscriptions, &receiver).await;
    println!(
        "torture: {}, seed {seed}, {:.0} s of faults: {kills} kills, {freezes} freezes, {cuts} cuts, {silences} silences, \
         {crashes} database crashes; {} events accepted, 0 lost, 0 results applied twice, {found}; everything had \
         ended {:.1} s after the last fault; beside lasting faults an event took: {}",
        setup.name(),
        faults_for.as_secs_f64(),
        accepted.len(),
        settled.as_secs_f64(),
        if went_on.is_empty() { "-".to_owned() } else { went_on.join(", ") }
    );
    assert!(!accepted.is_empty(), "nothing was accepted");
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
