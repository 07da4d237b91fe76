//! A redrive's walk in steps of any size visits every row once.

use hooksaga_saga::{Fate, choose};
use proptest::prelude::*;

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    prop::collection::vec(prop_oneof![Just(Fate::Pass), Just(Fate::Skip), Just(Fate::Send)], 0..60)
}

proptest! {
    #[test]
    fn steps_of_any_size_send_each_row_once_and_end(fates in fates(), page in 1_usize..20, most in 0_usize..9) {
        let rows: Vec<(usize, Fate)> = fates.iter().copied().enumerate().collect();
        let (mut at, mut sent, mut examined, mut skipped, mut steps) = (0, Vec::new(), 0, 0, 0);
        loop {
            steps += 1;
            prop_assert!(steps <= rows.len() + 1, "a walk gets on with every step");
            let end = (at + page).min(rows.len());
            let chosen = choose(&rows[at..end], most, end == rows.len());
            prop_assert!(chosen.send.len() <= most.max(1));
            prop_assert_eq!(chosen.examined, chosen.skipped + chosen.send.len() as u64);
            sent.extend(chosen.send);
            examined += chosen.examined;
            skipped += chosen.skipped;
            at = chosen.reached.map_or(at, |row| row + 1);
            if chosen.is_end {
                break;
            }
        }
        let of = |wanted: Fate| rows.iter().filter(|(_, fate)| *fate == wanted).map(|(row, _)| *row).collect::<Vec<_>>();
        prop_assert_eq!(sent, of(Fate::Send));
        prop_assert_eq!(skipped, of(Fate::Skip).len() as u64);
        prop_assert_eq!(examined, (of(Fate::Skip).len() + of(Fate::Send).len()) as u64);
    }
}
