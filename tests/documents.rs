//! The documents: what of them is run, and where their links lead. (That the program understands every command that they
//! name is a test beside the command line, `cli/documented_commands_tests.rs`.)

use crate::support::{project, rust_files, text};
use std::{
    collections::{BTreeMap, BTreeSet},
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
const CODE: [&str; 10] = ["bash", "go", "js", "php", "python", "rust", "sh", "sql", "toml", "yaml"];

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

#[test]
fn every_error_code_is_explained() {
    let page = text("docs/API.md");
    let missing: Vec<_> = hooksaga_saga::ErrorCode::ALL
        .iter()
        .filter(|code| !page.contains(&format!("\n| `{code}` |")))
        .collect();
    assert!(missing.is_empty(), "docs/API.md lacks {missing:?}");
}

/// What operators search for in the log.
#[test]
fn the_messages_that_operators_are_told_of_exist() {
    let page = text("docs/OPERATIONS.md");
    let (_, table) = page.split_once("\n| message | when |\n").unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let code: String = ["hooksaga", "hooksaga-pipeline"]
        .map(|name| sources(&project(&format!("crates/{name}/src"))))
        .concat();
    let mut number = 0;
    for message in rows.flat_map(|row| row.split('`').skip(1).step_by(2)) {
        // The counts, and the name of a field.
        if message.starts_with('(') || message == "error_code" {
            continue;
        }
        assert!(code.contains(&format!("\"{message}")), "nobody says {message:?}");
        number += 1;
    }
    assert!(number > 12, "{number}");
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

/// Cargo refuses a second filter; the test program itself, after `--`, takes several.
#[test]
fn every_cargo_test_of_the_makefile_has_one_filter_at_most() {
    let makefile = text("Makefile").replace("\\\n", " ");
    let mut number = 0;
    for command in makefile.split("$(CARGO) test ").skip(1) {
        let command = command.split(['\n', ';', '\'', '&', '|']).next().unwrap();
        let own = format!(" {command} ");
        let own = own.split(" -- ").next().unwrap();
        let mut filters = Vec::new();
        let mut words = own.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "-p" | "--test" => drop(words.next()),
                option if option.starts_with('-') => {}
                filter => filters.push(filter),
            }
        }
        assert!(filters.len() <= 1, "cargo takes one filter: $(CARGO) test {command}: {filters:?}");
        number += 1;
    }
    assert!(number > 5, "{number}");
}

/// A filter that matches no test would run none, and succeed.
#[test]
fn every_filter_of_whole_binary_tests_in_the_documents_matches() {
    let tests = sources(&project("tests"));
    let mut number = 0;
    for (path, page) in pages() {
        for rest in page.split(" --test whole ").skip(1) {
            let filter = rest.split([' ', '`', '\n']).next().unwrap();
            for part in filter.split("::") {
                let exists = tests.contains(&format!("mod {part};")) || tests.contains(&format!("fn {part}"));
                assert!(exists, "{}: --test whole {filter}", path.display());
            }
            number += 1;
        }
    }
    assert!(number > 2, "{number}");
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

#[test]
fn the_code_map_names_the_files_in_which_the_back_ends_differ() {
    let [sqlite, postgres, mysql]: [BTreeSet<String>; 3] = ["sqlite", "postgres", "mysql"]
        .map(|name| rust_files(&project(&format!("crates/hooksaga-{name}/src"))).into_keys().collect());
    let mut expected: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for file in sqlite.iter().chain(&postgres).chain(&mysql) {
        let row = match [&sqlite, &postgres, &mysql].map(|files| files.contains(file)) {
            [true, true, true] => continue,
            [true, false, false] => "SQLite",
            [false, true, true] => "both servers",
            [false, true, false] => "PostgreSQL",
            [false, false, true] => "MySQL, MariaDB",
            _ => panic!("{file} is in SQLite and one server: the table has no row for that"),
        };
        expected.entry(row).or_default().insert(file.clone());
    }
    let page = text("docs/ARCHITECTURE.md");
    let (_, table) = page.split_once("| back end | files of its own | in `roles/` |").unwrap();
    for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [row, own, roles] = cells[..] else { panic!("{line}") };
        let names = |cell: &str, folder: &str| {
            let marked = cell.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs"));
            marked.map(|name| format!("{folder}{name}")).collect::<Vec<_>>()
        };
        let named: BTreeSet<String> = names(own, "").into_iter().chain(names(roles, "roles/")).collect();
        assert_eq!(Some(named), expected.remove(row), "{row}");
    }
    assert!(expected.is_empty(), "no row has {expected:?}");
}

/// Unit tests with as many lines are in a file of their own (CONTRIBUTING.md).
const LONG_TESTS: usize = 180;
/// Shorter ones are only where the whole would be nearly as long as a file may be.
const LONG_FILE: usize = 480;

#[test]
fn long_unit_tests_have_a_file_of_their_own_and_short_ones_have_none() {
    let (mut inline, mut own) = (0, 0);
    for folder in fs::read_dir(project("crates")).unwrap().map(|entry| entry.unwrap().path().join("src")) {
        for path in rust_files(&folder).into_values() {
            let (place, content) = (path.display(), fs::read_to_string(&path).unwrap());
            if let Some((_, tests)) = content.split_once("\nmod tests {\n") {
                let lines = tests.lines().count();
                assert!(lines < LONG_TESTS, "{place}: {lines} lines of tests belong in a file of their own");
                inline += 1;
            }
            let name = path.file_name().unwrap().to_str().unwrap();
            let tested = if name == "tests.rs" { Some("mod") } else { name.strip_suffix("_tests.rs") };
            let tested = tested.map(|tested| path.with_file_name(format!("{tested}.rs")));
            if let Some(tested) = tested.filter(|tested| tested.exists()) {
                let (lines, code) = (content.lines().count(), fs::read_to_string(tested).unwrap());
                let is_long = lines >= LONG_TESTS || lines + code.lines().count() >= LONG_FILE;
                assert!(
                    is_long,
                    "{place}: {lines} lines of tests belong at the end of the file that they test"
                );
                own += 1;
            }
        }
    }
    assert!(inline > 100 && own > 5, "{inline} and {own}");
}
