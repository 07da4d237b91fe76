//! That the conformance suite leaves no case out.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::{collections::BTreeSet, fs, path::Path};

/// The text between a list's opening line and its closing brace, for every subject.
fn listed(suite: &str) -> BTreeSet<String> {
    let body = suite.split("conformance_cases! { $fresh;").nth(1).unwrap();
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
        // These have cases for database servers only, which those two crates name themselves.
        if ["lib", "outbox", "locked"].contains(&subject.as_str()) {
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

#[test]
fn every_case_that_is_written_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let suite = fs::read_to_string(folder.join("suite.rs")).unwrap();
    let (listed, written) = (listed(&suite), written(&folder));
    assert!(written.len() > 100, "the files were found");
    let forgotten: Vec<_> = written.difference(&listed).collect();
    assert!(forgotten.is_empty(), "not in conformance_suite!: {forgotten:#?}");
    let unknown: Vec<_> = listed.difference(&written).collect();
    assert!(unknown.is_empty(), "listed but not written: {unknown:#?}");
}
