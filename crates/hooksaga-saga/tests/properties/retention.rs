//! When finished history may go.

use hooksaga_saga::{EventRemains, JanitorRest, Retention, Timestamp, may_go};
use proptest::prelude::*;
use std::time::Duration;

const NOW: i64 = 1_700_000_000_000_000;

fn ago(seconds: u64) -> Timestamp {
    Timestamp::from_micros(NOW).before(Duration::from_secs(seconds))
}

fn now() -> Timestamp {
    Timestamp::from_micros(NOW)
}

/// Times up to some hours ago, close ones too.
fn ages() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..130, 0_u64..20_000]
}

prop_compose! {
    fn retentions()(finished in ages(), letters in proptest::option::of(ages())) -> Retention {
        Retention {
            finished: Duration::from_secs(finished),
            dead_letters: letters.map(|more| Duration::from_secs(finished + more)),
        }
    }
}

prop_compose! {
    fn events()(
        created in ages(), is_queued: bool, open_sagas in 0_u32..2, dead_sagas in 0_u32..3,
        change in proptest::option::of(ages()), letters in 0_u32..3, letter in ages(),
    ) -> EventRemains {
        EventRemains {
            created_at: ago(created),
            is_queued,
            open_sagas,
            dead_sagas,
            last_change: change.map(ago),
            letters,
            last_letter: (letters > 0).then(|| ago(letter)),
        }
    }
}

fn age(at: Timestamp) -> Duration {
    now().since(at)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What is open, waits, or changed within the retention time, or within a minute, never goes.
    #[test]
    fn nothing_goes_that_is_open_or_young(event in events(), retention in retentions()) {
        if may_go(&event, &retention, now()) {
            let least = retention.finished.max(Duration::from_secs(60));
            prop_assert!(!event.is_queued && event.open_sagas == 0);
            prop_assert!(age(event.created_at) >= least);
            prop_assert!(event.last_change.is_none_or(|at| age(at) >= least));
        }
    }

    /// A dead letter keeps its event for its own time; one that is not written yet keeps it too.
    #[test]
    fn a_dead_letter_keeps_its_event(event in events(), retention in retentions()) {
        if may_go(&event, &retention, now()) {
            prop_assert!(event.dead_sagas <= event.letters);
            if let Some(at) = event.last_letter {
                prop_assert!(retention.dead_letters.is_some_and(|kept| age(at) >= kept));
            }
        }
    }

    /// What may go may go later too, and under a shorter retention; nothing else holds it up.
    #[test]
    fn what_may_go_stays_removable(event in events(), retention in retentions(), later in ages(), less in ages()) {
        let shorter = Retention {
            finished: retention.finished.saturating_sub(Duration::from_secs(less)),
            dead_letters: retention.dead_letters.map(|kept| kept.saturating_sub(Duration::from_secs(less))),
        };
        if may_go(&event, &retention, now()) {
            prop_assert!(may_go(&event, &retention, now().after(Duration::from_secs(later))));
            prop_assert!(may_go(&event, &shorter, now()));
        }
    }

    /// Everything that is final and buried goes in the end.
    #[test]
    fn what_is_final_goes_in_the_end(event in events(), retention in retentions()) {
        let event = EventRemains { is_queued: false, open_sagas: 0, dead_sagas: event.letters, ..event };
        let kept_for_good = event.letters > 0 && retention.dead_letters.is_none();
        let much_later = now().after(Duration::from_secs(1_000_000));
        prop_assert_eq!(may_go(&event, &retention, much_later), !kept_for_good);
    }
}

/// Whatever the ages were, it rests, at most as usual, and takes its full rest as soon as it keeps up.
#[test]
fn the_janitor_rests_less_only_while_it_falls_behind() {
    let (rest, seconds) = (Duration::from_millis(40), Duration::from_secs);
    let after = |ages: &[u64]| {
        let pace = ages
            .windows(2)
            .fold(JanitorRest::FULL, |pace, ages| pace.next(seconds(ages[0]), seconds(ages[1])));
        pace.of(rest).as_millis()
    };
    assert_eq!(after(&[0, 60, 120]), 40, "within two minutes it is not late");
    assert_eq!(after(&[9000, 8990, 8980, 8980]), 40, "a backlog that shrinks needs no haste");
    assert_eq!(after(&[100, 121]), 30);
    assert_eq!(after(&[100, 121, 122, 123, 124, 125]), 10, "there is always a rest");
    assert_eq!(after(&[100, 121, 122, 123, 300, 290, 280]), 10, "it stays quick until it has caught up");
    assert_eq!(after(&[100, 121, 122, 123, 300, 290, 120]), 40);
}

#[test]
fn what_could_have_gone_is_overdue_since_then() {
    let retention = Retention { finished: Duration::from_secs(300), dead_letters: None };
    assert_eq!(retention.overdue(ago(310), now()), Duration::from_secs(10));
    assert_eq!(retention.overdue(ago(290), now()), Duration::ZERO);
}
