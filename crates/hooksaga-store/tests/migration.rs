//! Which steps a schema still needs, and whether it can be used as it is.

use hooksaga_store::{
    StoreError,
    migration::{Migration, Recorded, check_released, check_usable, latest, pending},
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
    let at = |version| vec![Recorded { version, fingerprint: None, lowest_program: None }];
    check_usable(&at(3), STEPS).unwrap();
    for (current, hint) in [(0, "hooksaga migrate"), (2, "hooksaga migrate"), (4, "at least as new")] {
        let recorded = if current == 0 { Vec::new() } else { at(current) };
        let error = check_usable(&recorded, STEPS).unwrap_err();
        assert!(matches!(&error, StoreError::Schema(text) if text.contains(hint)), "{current}: {error}");
    }
}

#[test]
fn a_newer_schema_can_be_used_if_it_says_so() {
    let check = |lowest| {
        let at = |version, lowest_program| Recorded { version, fingerprint: None, lowest_program };
        check_usable(&[at(3, Some(1)), at(4, None), at(5, lowest)], STEPS)
    };
    check(Some(3)).unwrap();
    check(Some(1)).unwrap();
    for lowest in [None, Some(4), Some(5)] {
        let error = check(lowest).unwrap_err();
        assert!(matches!(&error, StoreError::Schema(text) if text.contains("at least as new")), "{error}");
    }
    // What it says about older programs does not make an older schema a newer one.
    check_usable(&[Recorded { version: 2, fingerprint: None, lowest_program: Some(1) }], STEPS).unwrap_err();
}

#[test]
fn the_latest_version_is_the_last_steps() {
    assert_eq!(latest(STEPS), 3);
    assert_eq!(latest(&[]), 0);
}

#[test]
fn a_fingerprint_is_that_of_the_text() {
    let of = |sql| Migration { version: 1, name: "tables", sql }.fingerprint();
    // The test vectors of FNV-1a.
    assert_eq!(of(""), "cbf29ce484222325");
    assert_eq!(of("foobar"), "85944171f73967e8");
    assert_eq!(of("a\r\nb"), of("a\nb"));
    assert_ne!(of("ab"), of("ba"));
}

const EDITED: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: "CREATE TABLE a" },
    Migration { version: 2, name: "guards", sql: "CREATE TRIGGER b" },
];

fn recorded(versions: std::ops::RangeInclusive<i64>) -> Vec<Recorded> {
    let print = |version| EDITED.iter().find(|step| step.version == version).map(Migration::fingerprint);
    versions.map(|version| Recorded { version, fingerprint: print(version), lowest_program: None }).collect()
}

#[test]
fn a_schema_made_by_these_steps_is_accepted_whole_in_part_or_newer() {
    for last in 0..=3 {
        check_released(&recorded(1..=last), EDITED).unwrap();
    }
}

#[test]
fn a_schema_made_by_other_steps_is_refused_with_one_line() {
    let foreign = |at: usize, fingerprint: Option<&str>| {
        let mut recorded = recorded(1..=2);
        recorded[at].fingerprint = fingerprint.map(str::to_owned);
        recorded
    };
    for recorded in
        [foreign(0, None), foreign(1, None), foreign(0, Some("85944171f73967e8")), recorded(0..=0)]
    {
        let error = check_released(&recorded, EDITED).unwrap_err();
        assert!(matches!(error, StoreError::Schema(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            "this database was made by an unreleased version of hooksaga: create a new one (its schema cannot be upgraded)"
        );
    }
}
