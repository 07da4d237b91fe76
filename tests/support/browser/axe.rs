//! The accessibility checker axe-core, put into a page.

use super::{Page, tool};
use std::{fs, sync::LazyLock};

static AXE: LazyLock<String> = LazyLock::new(|| fs::read_to_string(tool("axe.min.js")).unwrap());

/// A line per rule that the page breaks, with the elements.
pub(super) async fn check(page: &Page) -> Vec<String> {
    // The text is a program, not an expression: its value is of no use here.
    page.eval(&format!("{}\n;0", *AXE)).await;
    let broken = page
        .eval(
            "axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations.map(
               (rule) => `${rule.id}: ${rule.help}: ${rule.nodes.slice(0, 4).map(
                 (node) => `${node.html.slice(0, 160)} (${node.failureSummary.replaceAll('\\n', ' ').slice(0, 200)})`).join(' | ')}`))",
        )
        .await;
    let broken = broken.as_array().expect("a list");
    broken
        .iter()
        .map(|rule| rule.as_str().map_or_else(|| rule.to_string(), ToOwned::to_owned))
        .collect::<Vec<String>>()
}
