//! The documents: what of them is run, and where their links lead. (That the program understands every command that they name
//! is a test beside the command line, `cli/documents.rs`.)

use crate::support::{project, text};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The pages for people, with their places.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![project("README.md"), project("CONTRIBUTING.md"), project("deploy/helm/README.md")];
    let docs = fs::read_dir(project("docs")).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Blocks in these languages could be run; the others are data and pictures.
const CODE: [&str; 8] = ["bash", "go", "js", "php", "python", "rust", "sh", "sql"];

/// Each block says above itself by which name a test runs it, or why none does. docs/API.md is run as a whole.
#[test]
fn every_code_block_is_run_by_a_test_or_says_why_not() {
    let tests = sources(&project("tests"));
    let (mut run, mut not_run) = (0, 0);
    for (path, page) in pages().into_iter().filter(|(path, _)| !path.ends_with("docs/API.md")) {
        let (mut above, mut is_inside) = ("", false);
        for line in page.lines().map(str::trim) {
            let Some(kind) = line.strip_prefix("```") else {
                above = line;
                continue;
            };
            is_inside = !is_inside;
            if !is_inside {
                continue;
            }
            let place = format!("{}: ```{kind} after {above:?}", path.display());
            assert!(!kind.is_empty(), "{place}: a block says what it is, `text` if it is nothing else");
            let mark = |prefix| above.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(" -->"));
            if let Some(name) = mark("<!-- run: ") {
                assert!(tests.contains(&format!("\"{name}\"")), "{place}: no test runs it");
                run += 1;
            } else if mark("<!-- not run: ").is_some() {
                not_run += 1;
            } else {
                assert!(!CODE.contains(&kind), "{place}: neither run by a test nor marked as not run");
            }
        }
    }
    assert!(run > 20 && not_run < 10, "{run} and {not_run}");
}

/// The tests' text.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| if path.is_dir() { sources(&path) } else { fs::read_to_string(path).unwrap() };
    entries.map(read).collect()
}

#[test]
fn every_make_target_in_the_documents_exists() {
    let makefile = text("Makefile");
    let mut number = 0;
    for (path, page) in pages() {
        for piece in page
            .split('`')
            .filter_map(|piece| piece.strip_prefix("make "))
            .filter(|piece| !piece.starts_with('…'))
        {
            let target = piece.split_whitespace().next().unwrap();
            let exists = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
            assert!(exists, "{}: make {target}", path.display());
            number += 1;
        }
    }
    assert!(number > 10, "{number}");
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut links = 0;
    for (path, page) in pages() {
        for target in
            page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
        {
            if target.contains("://") || target.contains(' ') {
                continue;
            }
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(linked.exists(), "{}: {target} is not there", path.display());
            if !place.is_empty() {
                let text = fs::read_to_string(&linked).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(
                    headings.into_iter().any(|heading| heading == place),
                    "{}: no {target}",
                    path.display()
                );
            }
            links += 1;
        }
    }
    assert!(links > 60, "{links}");
}

/// A heading as links name it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn the_index_of_the_documents_is_complete() {
    let index = text("docs/README.md");
    for entry in fs::read_dir(project("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "README.md" {
            assert!(index.contains(&format!("[{name}]({name})")), "{name} is not in docs/README.md");
        }
    }
}
