//! The admission window and the feedback that moves it.

use super::durations;
use hooksaga_saga::{Feedback, Window};
use proptest::{collection::vec, prelude::*, sample::select};
use std::time::Duration;

const ALL: [Feedback; 3] = [Feedback::Quick, Feedback::Neutral, Feedback::Slow];

fn badness(feedback: Feedback) -> u8 {
    match feedback {
        Feedback::Quick => 0,
        Feedback::Neutral => 1,
        Feedback::Slow => 2,
    }
}

proptest! {
    #[test]
    fn a_window_stays_within_its_bounds(history in vec(select(ALL.to_vec()), 0..60)) {
        let mut window = Window::default();
        prop_assert_eq!(window.size(), Window::FLOOR.size());
        for feedback in history {
            let before = window.size();
            window = window.after(feedback);
            let wanted = match feedback {
                Feedback::Quick => before * 2,
                Feedback::Neutral => before + 1,
                Feedback::Slow => before / 2,
            };
            prop_assert_eq!(window.size(), wanted.clamp(4, 480));
        }
    }

    #[test]
    fn feedback_of_an_attempt(duration in durations(), unreachable: bool) {
        let expected = match duration.as_nanos() {
            _ if unreachable => Feedback::Slow,
            0..1_000_000_000 => Feedback::Quick,
            1_000_000_000..5_000_000_000 => Feedback::Neutral,
            _ => Feedback::Slow,
        };
        prop_assert_eq!(Feedback::of(duration, unreachable), expected);
    }

    /// A batch says the worst of its attempts, in whatever order they are put together.
    #[test]
    fn feedback_of_a_batch_is_its_worst(mut batch in vec(select(ALL.to_vec()), 1..20)) {
        let together = |batch: &[Feedback]| batch.iter().copied().reduce(Feedback::and).unwrap();
        let worst = batch.iter().copied().max_by_key(|feedback| badness(*feedback)).unwrap();
        prop_assert_eq!(together(&batch), worst);
        batch.reverse();
        prop_assert_eq!(together(&batch), worst);
    }
}

#[test]
fn every_window_can_reach_both_bounds() {
    let run = |from: Window, feedback| (0..7).fold(from, |window: Window, _| window.after(feedback));
    assert_eq!(run(Window::FLOOR, Feedback::Quick), Window::CEILING);
    assert_eq!(run(Window::CEILING, Feedback::Slow), Window::FLOOR);
}

/// One that always takes its time is not kept at the floor for ever; it only gets there more slowly.
#[test]
fn an_endpoint_that_takes_its_time_gets_there_step_by_step() {
    assert_eq!(Feedback::of(Duration::from_secs(1), false), Feedback::Neutral);
    let steps = Window::CEILING.size() - Window::FLOOR.size();
    let after = |steps| (0..steps).fold(Window::default(), |window, _| window.after(Feedback::Neutral));
    assert_eq!(after(1).size(), Window::FLOOR.size() + 1);
    assert_ne!(after(steps - 1), Window::CEILING);
    assert_eq!(after(steps), Window::CEILING);
    assert_eq!(after(steps + 1), Window::CEILING);
}
