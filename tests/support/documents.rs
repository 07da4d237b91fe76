//! The documents, and the examples in them that the tests run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A file or folder of the project.
pub(crate) fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(project(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file below a folder, by its path there; a folder's `mod.rs` has the name that a file beside the folder would
/// have.
pub(crate) fn rust_files(folder: &Path) -> BTreeMap<String, PathBuf> {
    fn collect(root: &Path, folder: &Path, found: &mut BTreeMap<String, PathBuf>) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                collect(root, &path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace("/mod.rs", ".rs");
                found.insert(name, path);
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(folder, folder, &mut found);
    found
}

/// The block of a page that is marked `<!-- run: NAME -->`.
pub(crate) fn example(page: &str, name: &str) -> String {
    let text = text(page);
    let mark = format!("<!-- run: {name} -->");
    let mut lines = text.lines().skip_while(|line| line.trim() != mark).skip(1);
    let fence = lines.next().unwrap_or_else(|| panic!("{page} has no example {name}"));
    let indent = fence.find("```").unwrap_or_else(|| panic!("{page}: a block follows {mark}"));
    let inside = lines.take_while(|line| line.trim() != "```").map(|line| line.get(indent..).unwrap_or(""));
    inside.map(|line| format!("{line}\n")).collect()
}

/// The metrics that a page or a query names.
pub(crate) fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("hooksaga_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}
