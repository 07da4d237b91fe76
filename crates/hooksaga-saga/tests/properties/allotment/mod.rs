//! The allotment, over arbitrary demands and over states that it has made itself.
//!
//! Weights are in microseconds of T, so that a slot is 50,000 and nothing is rounded.

mod examples;
mod hanging;

use hooksaga_saga::{Demand, Standing, allot};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use std::time::Duration;

const SLOT: u64 = 50_000;
const MANY: u32 = u32::MAX;

fn weight(demand: &Demand) -> u64 {
    match demand.standing {
        Standing::Answering { latency } => u64::try_from(latency.as_micros()).unwrap().clamp(6_250, SLOT),
        Standing::New | Standing::Unconfirmed | Standing::Unreachable => SLOT,
    }
}

fn holds(demand: &Demand) -> u64 {
    u64::from(demand.open) * weight(demand)
}

fn total(demands: &[Demand]) -> u64 {
    demands.iter().map(holds).sum()
}

/// How many jobs it could have open.
fn most(demand: &Demand) -> u32 {
    let bound = match demand.standing {
        Standing::New | Standing::Unconfirmed => 4,
        Standing::Answering { .. } => u32::MAX,
        Standing::Unreachable => 8,
    };
    demand.window.min(bound).min(demand.open.saturating_add(demand.waiting))
}

fn is_unmet(demand: &Demand) -> bool {
    demand.open < most(demand)
}

fn answering(millis: u64) -> Standing {
    Standing::Answering { latency: Duration::from_millis(millis) }
}

/// A demand without a backlog of its own making: nothing open, everything waiting.
fn greedy(standing: Standing) -> Demand {
    Demand {
        waiting: MANY,
        open: 0,
        window: MANY,
        standing,
        last_response: None,
        last_turn: 0,
        waits_since: 0,
    }
}

fn standings() -> impl Strategy<Value = Standing> {
    let latency = prop_oneof![0_u64..=60_000, 0_u64..=2_000_000];
    let answering = latency.prop_map(|micros| Standing::Answering { latency: Duration::from_micros(micros) });
    prop_oneof![
        3 => answering,
        1 => Just(Standing::New),
        1 => Just(Standing::Unconfirmed),
        1 => Just(Standing::Unreachable),
    ]
}

fn sizes() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..=4, 0_u32..=200, Just(MANY)]
}

/// How long ago an endpoint gave its last response.
fn ages() -> impl Strategy<Value = Option<Duration>> {
    prop::option::of(prop_oneof![0_u64..=300, 0_u64..=20_000].prop_map(Duration::from_millis))
}

/// Any demand that has nothing open.
fn fresh() -> impl Strategy<Value = Demand> {
    (sizes(), 1_u32..=600, standings(), ages(), 0_u64..=50, 0_u64..=50).prop_map(
        |(waiting, window, standing, last_response, last_turn, waits_since)| Demand {
            waiting,
            open: 0,
            window,
            standing,
            last_response,
            last_turn,
            waits_since,
        },
    )
}

/// Any demand, with anything open.
fn demands() -> impl Strategy<Value = Demand> {
    (fresh(), prop_oneof![0_u32..=3, 0_u32..=40, 0_u32..=3_000])
        .prop_map(|(demand, open)| Demand { open, ..demand })
}

fn capacities() -> impl Strategy<Value = u32> {
    prop_oneof![16_u32..=24, 16_u32..=600]
}

/// Hands out jobs, as an orchestrator does.
fn admit(capacity: u32, demands: &mut [Demand], turn: &mut u64) -> Vec<u32> {
    let given = allot(capacity, demands);
    for (demand, jobs) in demands.iter_mut().zip(&given).filter(|(_, jobs)| **jobs > 0) {
        *turn += 1;
        demand.open += jobs;
        demand.waiting = if demand.waiting == MANY { MANY } else { demand.waiting - jobs };
        demand.last_turn = *turn;
    }
    given
}

/// What happens between two passes: some jobs of one subscription end, more is waiting for another.
type Between = Vec<(Index, u32, Index, u32)>;

fn histories() -> impl Strategy<Value = Vec<Between>> {
    let between = vec((any::<Index>(), 0_u32..=40, any::<Index>(), sizes()), 0..6);
    vec(between, 0..8)
}

/// A state that the allotment has made itself, from nothing.
fn play(capacity: u32, demands: &mut [Demand], history: Vec<Between>) -> Result<(), TestCaseError> {
    if demands.is_empty() {
        return Ok(());
    }
    let (mut turn, slots) = (100, u64::from(capacity) * SLOT);
    admit(capacity, demands, &mut turn);
    prop_assert!(total(demands) <= slots);
    for between in history {
        for (ends, jobs, comes, waiting) in between {
            let ending = &mut demands[ends.index(demands.len())];
            ending.open = ending.open.saturating_sub(jobs);
            let coming = &mut demands[comes.index(demands.len())];
            if coming.waiting == 0 {
                coming.waits_since = turn;
            }
            coming.waiting = waiting;
        }
        admit(capacity, demands, &mut turn);
        prop_assert!(total(demands) <= slots, "more than the capacity");
    }
    Ok(())
}

/// Those that were tried have been silent for so long that they count as unreachable.
fn hang(demands: &mut [Demand]) {
    for tried in demands.iter_mut().filter(|demand| demand.open > 0) {
        tried.standing = Standing::Unreachable;
    }
}

/// The one that has hung for longest times out.
fn release_oldest(demands: &mut [Demand]) {
    let tried = demands.iter_mut().filter(|demand| demand.open > 0);
    if let Some(oldest) = tried.min_by_key(|demand| demand.last_turn) {
        oldest.open -= 1;
    }
}

/// What of the slots silent endpoints may hold together.
fn most_of_silent(capacity: u32) -> u32 {
    capacity - (capacity / 8).max(1)
}

/// The same with those that responded more recently than the others.
fn most_with_recent(capacity: u32) -> u32 {
    capacity - ((capacity / 8).max(1) / 3).max(1)
}

/// What endpoints do that have jobs open: as before, or they are silent, for a moment or for longer, or become slow.
fn turns() -> impl Strategy<Value = Vec<Option<Standing>>> {
    let turned = select(vec![Standing::Unconfirmed, Standing::Unreachable, answering(900)]);
    vec(prop::option::of(turned), 60)
}

fn held_by(demands: &[Demand], standing: Standing) -> u32 {
    demands.iter().filter(|demand| demand.standing == standing).map(|demand| demand.open).sum()
}

/// What is left of the slots where workers let each subscription hold two thirds of what the larger ones leave, and a quarter
/// is kept from those that have more than one slot.
fn left_by(demands: &[Demand], slots: u64) -> u64 {
    let mut held: Vec<u64> = demands.iter().map(holds).collect();
    held.sort_unstable_by(|a, b| b.cmp(a));
    let kept = (slots / 8 / SLOT).max(1) * SLOT;
    held.into_iter().fold(slots, |left, held| {
        let kept = if held > SLOT { 2 * kept } else { kept };
        left - held.min(left - left / 3).min(left.saturating_sub(kept))
    })
}

proptest! {
    /// FB-2, never more than the capacity: what is open never weighs more than the slots, whatever the history,
    /// the unreachable hold at most half, and all that are not known to answer leave a third of an eighth, and one slot.
    #[test]
    fn never_more_than_the_capacity(
        capacity in capacities(), mut demands in vec(fresh(), 1..60), history in histories(),
    ) {
        play(capacity, &mut demands, history)?;
        let unreachable = held_by(&demands, Standing::Unreachable);
        prop_assert!(unreachable * 2 <= capacity);
        let untested = held_by(&demands, Standing::New) + held_by(&demands, Standing::Unconfirmed);
        prop_assert!(unreachable + untested <= most_with_recent(capacity));
    }

    /// However much is open already: new jobs only where slots are free (an eighth is, in any case), and nobody gets more
    /// than it asks for.
    #[test]
    fn nothing_is_given_that_is_not_there(capacity in 0_u32..=600, demands in vec(demands(), 0..60)) {
        let given = allot(capacity, &demands);
        prop_assert_eq!(given.len(), demands.len());
        let (slots, mut more) = (u64::from(capacity) * SLOT, 0);
        for (demand, jobs) in demands.iter().zip(&given) {
            prop_assert!(*jobs <= demand.waiting);
            prop_assert!(*jobs == 0 || demand.open + jobs <= most(demand));
            more += u64::from(*jobs) * weight(demand);
        }
        prop_assert!(more <= left_by(&demands, slots));
    }

    /// FB-2, max-min fair: who is given something has, but for one job, no more than anybody of its class, or
    /// anybody that answers, who would like more.
    #[test]
    fn nobody_gets_more_while_another_has_less(capacity in capacities(), mut after in vec(demands(), 1..60)) {
        let given = admit(capacity, &mut after, &mut 0);
        for rich in after.iter().zip(&given).filter(|(_, jobs)| **jobs > 0).map(|(demand, _)| demand) {
            for poor in after.iter().filter(|demand| is_unmet(demand)) {
                let comparable = matches!(poor.standing, Standing::Answering { .. })
                    || poor.standing == rich.standing;
                let fair = holds(rich) < holds(poor) + weight(rich) + weight(poor);
                prop_assert!(!comparable || fair || last_slot(rich), "{:?} beside {:?}", rich, poor);
            }
        }
    }

    /// No slot is left empty but those that are kept free on purpose.
    #[test]
    fn slots_are_used(capacity in capacities(), mut after in vec(demands(), 1..60)) {
        admit(capacity, &mut after, &mut 0);
        let free = (u64::from(capacity) * SLOT).saturating_sub(total(&after));
        for unmet in after.iter().filter(|demand| is_unmet(demand)) {
            if let Standing::Answering { .. } = unmet.standing {
                let spare = (holds(unmet) + weight(unmet)).div_ceil(2).max(2 * SLOT);
                prop_assert!(free < spare + 3 * SLOT, "{} slots are free beside {:?}", free / SLOT, unmet);
            }
        }
    }

    /// FB-2: a newcomer finds room, whatever those that are known have made of the capacity, as long as those that hang leave
    /// more than the eighth for those that answer.
    #[test]
    fn a_newcomer_finds_room(
        capacity in capacities(), mut demands in vec(fresh(), 1..60), history in histories(),
        hangs: Vec<bool>, standing in select(vec![Standing::New, Standing::Unconfirmed]), place: Index,
    ) {
        let is_known = |standing| matches!(standing, Standing::Answering { .. } | Standing::Unreachable);
        demands.retain(|demand| is_known(demand.standing) && weight(demand) == SLOT);
        play(capacity, &mut demands, history)?;
        let mut hung = held_by(&demands, Standing::Unreachable);
        for (demand, _) in demands.iter_mut().zip(hangs).filter(|(_, hangs)| *hangs) {
            if demand.standing != Standing::Unreachable && hung + demand.open < most_of_silent(capacity) {
                hung += demand.open;
                demand.standing = Standing::Unreachable;
            }
        }
        let place = place.index(demands.len() + 1);
        demands.insert(place, Demand { waiting: 1, window: 4, ..greedy(standing) });
        prop_assert_eq!(allot(capacity, &demands)[place], 1);
    }

    /// FB-2, beside any number of others that were never tried and hang: a newcomer gets its job at once, and so do those
    /// after it, until as many of them hang as slots are kept for them.
    #[test]
    fn a_newcomer_finds_room_beside_a_crowd_that_was_never_tried(
        capacity in capacities(), count in 1_usize..=1_000, rounds in 0_usize..20, are_silent: Vec<bool>,
        standing in select(vec![Standing::New, Standing::Unconfirmed]),
        newcomer in select(vec![Standing::New, Standing::Unconfirmed]),
    ) {
        let mut demands = vec![greedy(standing); count];
        let mut turn = 0;
        // Nothing ends: every attempt runs into its timeout, which is far away.
        for _ in 0..rounds {
            admit(capacity, &mut demands, &mut turn);
            hang(&mut demands);
        }
        let mut are_silent = are_silent.into_iter();
        // The last one of the crowd may have taken three more than one slot, when it was the only new one.
        for _ in 0..(capacity / 8).saturating_sub(3).max(1) {
            demands.push(Demand { waits_since: turn, waiting: 1, window: 4, ..greedy(newcomer) });
            admit(capacity, &mut demands, &mut turn);
            prop_assert!(demands.last().is_some_and(|newcomer| newcomer.open > 0), "{} of {}", demands.len(), count);
            // The next one comes at once, or when it is known that this one hangs.
            if are_silent.next().unwrap_or(true) {
                hang(&mut demands);
            }
        }
    }

    /// However many hang that came before, newcomers that come one after the other are admitted as soon as slots are
    /// released, and the last one does not wait for the first to be tried.
    #[test]
    fn newcomers_are_admitted_as_slots_are_released(capacity in capacities(), count in 1_usize..=400) {
        let mut demands = vec![greedy(Standing::New); count];
        let (mut turn, mut longest) = (0, 0);
        for _ in 0..40 {
            demands.push(Demand { waits_since: turn, waiting: 1, window: 4, ..greedy(Standing::New) });
            let (newest, mut waited) = (demands.len() - 1, 0);
            while demands[newest].last_turn == 0 {
                release_oldest(&mut demands);
                admit(capacity, &mut demands, &mut turn);
                hang(&mut demands);
                waited += 1;
                prop_assert!(waited <= u64::from(capacity), "it waits for ever");
            }
            longest = longest.max(waited);
        }
        prop_assert!(longest <= 2, "{} rounds", longest);
    }

    /// Neither end of the line of new endpoints starves: while two slots are released and two newcomers come in every
    /// round, one of whom has to wait, those that came first are tried, too.
    #[test]
    fn the_oldest_of_the_new_get_their_turn_too(capacity in capacities(), count in 1_usize..=100) {
        let mut demands = vec![Demand { waiting: 1, ..greedy(Standing::New) }; count + 100];
        let mut turn = 0;
        for _ in 0..2 * (count + 100) + 50 {
            demands.extend([Demand { waits_since: turn, waiting: 1, ..greedy(Standing::New) }; 2]);
            for _ in 0..2 {
                release_oldest(&mut demands);
            }
            admit(capacity, &mut demands, &mut turn);
            hang(&mut demands);
        }
        prop_assert!(demands[..count + 100].iter().all(|demand| demand.last_turn > 0));
    }

    /// FB-2: a known quick endpoint finds room, beside any number of unreachable, unconfirmed and slow ones.
    #[test]
    fn a_quick_endpoint_finds_room(
        capacity in capacities(), mut demands in vec(fresh(), 1..60), history in histories(), millis in 0_u64..=40,
    ) {
        demands.retain(|demand| demand.standing != Standing::New && weight(demand) == SLOT);
        play(capacity, &mut demands, history)?;
        demands.push(Demand { waiting: 1, ..greedy(answering(millis)) });
        prop_assert_eq!(allot(capacity, &demands).last().copied(), Some(1));
    }

    /// FB-1: light jobs, of which more are open than there are slots, turn out to weigh a slot each, since their endpoints
    /// hang or have become slow. One that answers still gets a job, and so do others after it.
    #[test]
    fn a_quick_endpoint_finds_room_beside_quick_ones_that_turn_silent(
        capacity in capacities(), mut demands in vec(fresh(), 1..60), history in histories(), turns in turns(),
        millis in 0_u64..=6, are_greedy: bool,
    ) {
        play(capacity, &mut demands, history)?;
        for (demand, turned) in demands.iter_mut().zip(turns).filter(|(demand, _)| demand.open > 0) {
            let is_light = weight(demand) < SLOT;
            demand.standing = turned.unwrap_or(if is_light { Standing::Unconfirmed } else { demand.standing });
            demand.waiting = if are_greedy { MANY } else { 0 };
        }
        demands.retain(|demand| demand.open > 0);
        for _ in 0..8 {
            demands.push(Demand { waiting: 1, ..greedy(answering(millis)) });
            let given = admit(capacity, &mut demands, &mut 1_000);
            prop_assert_eq!(given.last().copied(), Some(1));
        }
    }

    /// FB-2: alone, a quick endpoint can use everything, and pipelines; a slow one leaves a third free.
    #[test]
    fn a_lone_quick_endpoint_can_use_everything(capacity in 16_u32..=5_000, micros in 0_u64..=30_000) {
        let quick = Standing::Answering { latency: Duration::from_micros(micros) };
        prop_assert!(allot(capacity, &[greedy(quick)])[0] >= capacity);
        let slow = allot(capacity, &[greedy(answering(850))])[0];
        prop_assert!((capacity * 2 / 3..=capacity * 3 / 4).contains(&(slow + 1)), "{} of {}", slow, capacity);
    }

    /// FB-1: slow ones leave two slots free, however many they are; and each has one if there are enough.
    #[test]
    fn slow_endpoints_leave_a_free_slot(capacity in capacities(), count in 1_u32..=700, millis in 50_u64..=9_000) {
        let mut demands = vec![greedy(answering(millis)); usize::try_from(count).unwrap()];
        admit(capacity, &mut demands, &mut 0);
        prop_assert!(total(&demands) + 2 * SLOT <= u64::from(capacity) * SLOT);
        if count + 1 < capacity {
            prop_assert!(demands.iter().all(|demand| demand.open > 0));
        }
    }

    /// FB-2: unreachable ones take turns in their half, and so do slow ones that are more than the slots.
    #[test]
    fn everybody_gets_a_turn(capacity in 16_u32..=64, count in 1_u32..=300, unreachable: bool) {
        let (standing, slots) = if unreachable {
            (Standing::Unreachable, capacity / 2)
        } else {
            (answering(900), capacity - 2)
        };
        let mut demands = vec![greedy(standing); usize::try_from(count).unwrap()];
        let mut turn = 0;
        for _ in 0..count.div_ceil(slots) {
            admit(capacity, &mut demands, &mut turn);
            prop_assert!(demands.iter().map(|demand| demand.open).sum::<u32>() <= slots);
            demands.iter_mut().for_each(|demand| demand.open = 0);
        }
        prop_assert!(demands.iter().all(|demand| demand.last_turn > 0));
    }

    /// Four slots are enough for everybody to be tried, and even then no more is handed out.
    #[test]
    fn with_few_slots_everybody_gets_a_turn(
        capacity in 4_u32..16, count in 1_usize..=30,
        standing in select(vec![Standing::New, Standing::Unconfirmed, Standing::Unreachable, answering(5), answering(900)]),
    ) {
        let mut demands = vec![Demand { waiting: 1, ..greedy(standing) }; count];
        let mut turn = 0;
        for _ in 0..count {
            admit(capacity, &mut demands, &mut turn);
            prop_assert!(total(&demands) <= u64::from(capacity) * SLOT);
            demands.iter_mut().for_each(|demand| demand.open = 0);
        }
        prop_assert!(demands.iter().all(|demand| demand.last_turn > 0));
    }

    /// The order of the demands makes no difference: whose turn it is does.
    #[test]
    fn order_makes_no_difference(capacity in capacities(), mut demands in vec(demands(), 1..60), by in 0_usize..60) {
        for (turn, demand) in (0..).zip(&mut demands) {
            demand.last_turn = turn;
            demand.waits_since = (turn * 7) % 61;
        }
        let mut given = allot(capacity, &demands);
        let by = by % demands.len();
        demands.rotate_left(by);
        given.rotate_left(by);
        prop_assert_eq!(allot(capacity, &demands), given);
    }
}

/// The last free slot goes to those who have nothing, one after another, and not to the one with least. Light jobs may fill
/// the last slot but one.
fn last_slot(demand: &Demand) -> bool {
    (demand.open == 1 && demand.standing == Standing::New) || (weight(demand) < SLOT && holds(demand) <= SLOT)
}
