//! One meaning for each name (CONTRIBUTING.md): types over all crates, and the tags of SQL statements.

use crate::support::{project, rust_files};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

const BACK_ENDS: [&str; 3] = ["mysql", "postgres", "sqlite"];

/// Types of one name in several crates, and why each is right.
const SHARED_NAMES: [(&str, &str); 5] = [
    ("Arrival", "what a receiver got: the one of `hooksaga listen`, and the one of the tests"),
    ("NewRedrive", "the API's body has the name of its schema in the OpenAPI document"),
    ("Receiver", "the one of `hooksaga listen`, and the one of the tests"),
    ("RequeuedSaga", "the API's response has the name of its schema in the OpenAPI document"),
    ("Server", "the product, and the server of the tests for single bytes"),
];

/// The name of a type that this line defines for other modules than its own and its parent.
fn public_type(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub")?;
    let line = match line.strip_prefix('(').map(|rest| rest.split_once(')')) {
        Some(Some(("super", _)) | None) => return None,
        Some(Some((_, rest))) => rest,
        None => line,
    };
    let (kind, rest) = line.strip_prefix(' ')?.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

/// Where each type is defined: by its crate, and the file there. The back ends count as one crate.
fn public_types() -> BTreeMap<String, BTreeSet<(String, String)>> {
    let mut found: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for folder in fs::read_dir(project("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let name = name.strip_prefix("hooksaga-").unwrap_or(name);
        let (name, is_back_end) = (name.to_owned(), BACK_ENDS.contains(&name));
        for (file, path) in rust_files(&folder.join("src")) {
            let place =
                if is_back_end { ("a back end".to_owned(), file) } else { (name.clone(), String::new()) };
            for defined in fs::read_to_string(path).unwrap().lines().filter_map(public_type) {
                found.entry(defined.to_owned()).or_default().insert(place.clone());
            }
        }
    }
    found
}

/// The back ends have types of the same name for the same things, in files of the same name.
#[test]
fn no_type_name_means_two_things() {
    let types = public_types();
    assert!(types.len() > 500 && types["RouterSql"].len() == 1, "{}", types.len());
    for (name, places) in &types {
        let shared = SHARED_NAMES.iter().find(|(shared, _)| shared == name);
        assert!(
            places.len() == 1 || shared.is_some(),
            "{name} is defined more than once: {places:?}. Rename one, or say in SHARED_NAMES why both are right"
        );
        assert!(places.len() > 1 || shared.is_none(), "{name} is defined once: remove it from SHARED_NAMES");
    }
    for (name, _) in SHARED_NAMES {
        assert!(types.contains_key(name), "{name} is no type any more: remove it from SHARED_NAMES");
    }
}

#[test]
fn a_type_is_recognised_by_its_definition() {
    for (line, name) in [
        ("pub struct Router {", Some("Router")),
        ("    pub(crate) enum Kind<T> {", Some("Kind")),
        ("pub(in crate::cli) type Rows = Vec<Row>;", Some("Rows")),
        ("pub(super) struct Row(u8);", None),
        ("struct Own;", None),
        ("pub fn struct_of() {}", None),
        ("pub struct $name(String);", None),
    ] {
        assert_eq!(public_type(line), name, "{line}");
    }
}

/// The stores: a file or folder of `roles/` for each, but for keys, of which one file has three.
const STORES: [&str; 16] = [
    "admin",
    "caretaker",
    "cleaner",
    "dead_letters",
    "ingest",
    "janitor",
    "key_reader",
    "keys",
    "list_indexer",
    "orchestrator",
    "portal_keys",
    "reader",
    "redrives",
    "router",
    "verifier",
    "worker",
];
/// Constants that hold a part of a statement.
const PARTS: [&str; 4] = ["IN_PROGRESS", "IN_PROGRESS_IDS", "WAITING_IDS", "WAITING_IDS_OF_TENANT"];

/// The constants of this code that begin as a statement does, without a tag.
fn untagged(code: &str) -> Vec<String> {
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let constants = code.split("const ").skip(1).filter_map(|rest| rest.split_once(": &str = "));
    let untagged = constants.filter(|(_, text)| {
        let text = text.strip_prefix("concat!( ").unwrap_or(text).trim_start_matches('"');
        ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH "].iter().any(|verb| text.starts_with(verb))
    });
    untagged.map(|(name, _)| name.to_owned()).filter(|name| !PARTS.contains(&name.as_str())).collect()
}

/// Each text between `/* ` and ` */` in the code, or the beginning of one that a macro completes.
fn tags(code: &str) -> impl Iterator<Item = &str> {
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("/* ").skip(1)).filter_map(|rest| {
        let tag = rest.split([' ', '"', '\\']).next()?;
        // A macro or a function has the whole name as its argument.
        (!tag.is_empty() && !tag.starts_with('{')).then_some(tag)
    })
}

/// `/* worker.claim */`, in all back ends alike: the store, which is a file or folder of `roles/`, and the statement. In
/// `pg_stat_statements`, slow logs and the process list it leads to the code.
#[test]
fn every_statement_of_a_store_is_tagged_with_the_store_and_its_name() {
    let is_store = |name: &str| STORES.contains(&name);
    for back_end in BACK_ENDS {
        let (mut number, mut seen) = (0, BTreeMap::new());
        for (file, path) in rust_files(&project(&format!("crates/hooksaga-{back_end}/src/roles"))) {
            let code = fs::read_to_string(path).unwrap();
            let own = file.split(['/', '.']).next().unwrap();
            for tag in tags(&code) {
                let place = format!("hooksaga-{back_end}, roles/{file}: /* {tag} */");
                let (store, statement) =
                    tag.split_once('.').unwrap_or_else(|| panic!("{place} has no store and name"));
                let fits = match own {
                    "keys" => ["keys", "key_reader", "portal_keys"].contains(&store),
                    own if is_store(own) => store == own,
                    // What several stores share has the tag of the store that runs it, or of its own file.
                    own => store == own || is_store(store),
                };
                assert!(fits, "{place} begins with another store");
                assert!(
                    statement.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
                    "{place}"
                );
                if !statement.is_empty() {
                    let before = seen.insert(tag.to_owned(), file.clone());
                    assert_eq!(before, None, "{place} is the tag of two statements");
                }
                number += 1;
            }
            assert_eq!(untagged(&code), Vec::<String>::new(), "hooksaga-{back_end}, roles/{file}");
        }
        assert!(number > 150, "{back_end}: {number}");
    }
}
