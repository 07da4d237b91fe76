//! docs/CONFORMANCE.md is complete, and the tests that it, docs/SECURITY.md and docs/RELIABILITY.md name exist.

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

/// Every source file of the project, tests included.
fn every_source() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["crates", "tests"] {
        sources(&root().join(folder), &mut found);
    }
    found
}

fn is_test(sources: &[String], name: &str) -> bool {
    sources.iter().any(|source| source.contains(&format!("fn {name}(")))
}

#[test]
fn every_test_that_the_table_names_exists() {
    let found = every_source();
    let missing: Vec<_> = table()
        .into_iter()
        .flat_map(|(_, tests)| tests.unwrap_or_default())
        .filter(|test| !is_test(&found, test))
        .collect();
    assert!(missing.is_empty(), "named in docs/CONFORMANCE.md and not found: {missing:#?}");
}

/// What stands in backticks like a test and is none: columns, and a setting of MySQL.
const NO_TESTS: [&str; 3] = ["attempt_count", "lease_resets", "innodb_flush_log_at_trx_commit"];

/// The tests, or groups of tests, that a page names: all names in the last column of a table of tests, and elsewhere those
/// that are as long as only names of tests are.
fn tests_named_in(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (mut named, mut head) = (Vec::new(), None);
    for line in text.lines() {
        let last = line.strip_suffix(" |").and_then(|row| row.rsplit(" | ").next()).unwrap_or_default();
        head = line.starts_with('|').then(|| head.unwrap_or(last));
        let of_tests = matches!(head, Some("tests" | "tested by"));
        let all = if of_tests { last } else { line };
        let is_name = |word: &&str| {
            !word.is_empty()
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                && (of_tests || word.matches('_').count() >= 5)
                && !NO_TESTS.contains(word)
        };
        named.extend(all.split('`').skip(1).step_by(2).filter(is_name).map(ToOwned::to_owned));
    }
    named
}

#[test]
fn every_test_that_the_pages_on_security_and_reliability_name_exists() {
    let found = every_source();
    for (page, at_least) in [("docs/SECURITY.md", 80), ("docs/RELIABILITY.md", 45)] {
        let named = tests_named_in(page);
        assert!(named.len() >= at_least, "{page}: {} are read", named.len());
        let is_group = |name: &str| {
            let (module, cases) = (format!("mod {name};"), format!("{name} {{"));
            let opens = |line: &str| line.ends_with(&module) || line.trim() == cases;
            found.iter().any(|source| source.lines().any(opens))
        };
        let missing: Vec<_> =
            named.into_iter().filter(|name| !is_test(&found, name) && !is_group(name)).collect();
        assert!(missing.is_empty(), "named in {page} and not found: {missing:#?}");
    }
}
