//! docs/CONFORMANCE.md is complete, and the tests it names exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// How many rules each section of the specification has.
const RULES: &[(&str, u32)] = &[
    ("DB", 10),
    ("EV", 5),
    ("SUB", 6),
    ("RT", 5),
    ("SG", 10),
    ("JB", 10),
    ("DL", 3),
    ("RO", 2),
    ("OB", 2),
    ("SC", 3),
    ("TN", 5),
    ("FB", 8),
    ("CA", 11),
    ("AG", 3),
    ("HI", 4),
    ("OX", 1),
    ("HA", 3),
];

/// What stands in place of tests beside a rule that is still to be built.
const NOT_BUILT: &str = "not built yet";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
}

/// The rows of the table: a rule, and the names in backticks beside it; no names for what is not built yet.
fn table() -> Vec<(String, Option<Vec<String>>)> {
    let text = fs::read_to_string(root().join("docs/CONFORMANCE.md")).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("| **"))
        .map(|row| {
            let (rule, rest) = row.split_once("**").unwrap();
            let tests = rest.trim_end_matches(" |").rsplit(" | ").next().unwrap();
            let names = || tests.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect();
            (rule.to_owned(), (tests.trim() != NOT_BUILT).then(names))
        })
        .collect()
}

#[test]
fn every_rule_has_a_row_and_every_row_has_tests() {
    let table = table();
    let listed: BTreeSet<_> = table.iter().map(|(rule, _)| rule.clone()).collect();
    let expected: BTreeSet<_> = RULES
        .iter()
        .flat_map(|(name, count)| (1..=*count).map(move |number| format!("{name}-{number}")))
        .collect();
    assert_eq!(listed, expected);
    for (rule, tests) in table {
        assert!(tests.is_none_or(|tests| !tests.is_empty()), "{rule} has no test");
    }
}

#[test]
fn every_test_that_the_table_names_exists() {
    let mut found = Vec::new();
    for folder in ["crates", "tests"] {
        sources(&root().join(folder), &mut found);
    }
    let missing: Vec<_> = table()
        .into_iter()
        .flat_map(|(_, tests)| tests.unwrap_or_default())
        .filter(|test| !found.iter().any(|source| source.contains(&format!("fn {test}("))))
        .collect();
    assert!(missing.is_empty(), "named in docs/CONFORMANCE.md and not found: {missing:#?}");
}
