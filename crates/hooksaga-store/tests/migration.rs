//! Which steps a schema still needs, and whether it can be used as it is.

use hooksaga_store::{
    StoreError,
    migration::{Migration, check_current, latest, pending},
};

const STEPS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: "" },
    Migration { version: 2, name: "guards", sql: "" },
    Migration { version: 3, name: "roles", sql: "" },
];

fn versions(current: i64) -> Vec<i64> {
    pending(current, STEPS).unwrap().iter().map(|step| step.version).collect()
}

#[test]
fn pending_steps_are_those_after_the_current_one() {
    assert_eq!(versions(0), [1, 2, 3]);
    assert_eq!(versions(1), [2, 3]);
    assert_eq!(versions(2), [3]);
    assert_eq!(versions(3), [] as [i64; 0]);
}

#[test]
fn a_newer_schema_is_not_touched() {
    let error = pending(4, STEPS).unwrap_err();
    assert!(
        matches!(&error, StoreError::Schema(text) if text.contains('4') && text.contains('3')),
        "{error}"
    );
}

#[test]
fn only_the_current_schema_can_be_used() {
    check_current(3, STEPS).unwrap();
    for (current, hint) in [(0, "hooksaga migrate"), (2, "hooksaga migrate"), (4, "at least as new")] {
        let error = check_current(current, STEPS).unwrap_err();
        assert!(matches!(&error, StoreError::Schema(text) if text.contains(hint)), "{current}: {error}");
    }
}

#[test]
fn the_latest_version_is_the_last_steps() {
    assert_eq!(latest(STEPS), 3);
    assert_eq!(latest(&[]), 0);
}
