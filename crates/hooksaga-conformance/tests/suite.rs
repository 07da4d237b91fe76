//! That the conformance suite leaves no case out.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::{collections::BTreeSet, fs, path::Path};

/// The text between a list's opening line and its closing brace, for every subject.
fn listed(suite: &str) -> BTreeSet<String> {
    let body = suite.split("], $fresh;").nth(1).unwrap();
    let body = body.split("    };").next().unwrap();
    let mut subject = "";
    let mut cases = BTreeSet::new();
    for line in body.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            subject = name;
        } else if let Some(case) = line.strip_suffix(',') {
            cases.insert(format!("{subject}::{case}"));
        }
    }
    cases
}

/// Every `pub async fn` of the suite's files.
fn written(folder: &Path) -> BTreeSet<String> {
    let mut cases = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let subject = path.file_stem().unwrap().to_str().unwrap().to_owned();
        // The outbox is of database servers only, and those two crates name its cases themselves.
        if path.is_dir() || ["lib", "mod", "outbox", "locked"].contains(&subject.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        // Nor those that take more than a database, such as a transaction that somebody else holds open.
        let cases_of = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        for line in cases_of.filter(|line| !line.contains('<')) {
            cases.insert(format!("{subject}::{}", line.split('(').next().unwrap()));
        }
    }
    cases
}

/// `list`: the file in the folder with the list. At least `least` cases must be found.
fn all_written_are_listed(folder: &str, list: &str, least: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let suite = fs::read_to_string(folder.join(list)).unwrap();
    let (listed, written) = (listed(&suite), written(&folder));
    assert!(written.len() > least, "the files were found");
    let forgotten: Vec<_> = written.difference(&listed).collect();
    assert!(forgotten.is_empty(), "not in the list: {forgotten:#?}");
    let unknown: Vec<_> = listed.difference(&written).collect();
    assert!(unknown.is_empty(), "listed but not written: {unknown:#?}");
}

#[test]
fn every_case_that_is_written_is_listed() {
    all_written_are_listed("src", "suite.rs", 100);
}

#[test]
fn every_case_of_servers_that_is_written_is_listed() {
    all_written_are_listed("src/servers", "mod.rs", 5);
}
