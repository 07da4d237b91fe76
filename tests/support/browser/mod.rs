//! A real browser: Chromium without a window, driven over its DevTools protocol.
//!
//! One browser process serves the whole run; each [`Page`] has a profile of its own, so cookies of one test are unknown
//! to the others. Commands and events travel through a pipe that the browser inherits, which needs neither a driver
//! program nor a library, and which ends the browser when the tests end, however they do.

mod axe;
mod page;
mod pipe;

pub(crate) use page::Page;

use std::{
    env,
    path::{Path, PathBuf},
};

/// A file of the folder where `scripts/install-test-tools` puts what the tests download.
pub(crate) fn tool(name: &str) -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(&env::var_os("HOME").expect("HOME is set")).join(".cache"));
    let tool = cache.join("hooksaga-tests").join(name);
    assert!(tool.exists(), "{} is not there: run scripts/install-test-tools", tool.display());
    tool
}

/// The browser's program.
fn program() -> PathBuf {
    let folders = env::var_os("PATH").expect("PATH is set");
    env::split_paths(&folders)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|program| program.is_file())
        .expect("Chromium is installed: run scripts/install-test-tools")
}
