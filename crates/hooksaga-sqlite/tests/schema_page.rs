//! docs/SCHEMA.md names everything that the migrations make.

use crate::adapter::fresh;
use hooksaga_conformance::TestDatabase as _;
use std::{fs, path::Path};

/// Where the page lists a table's columns: the first cells of its section's table (dead letters have a sentence
/// instead), or the second cell of its row among the helper tables.
fn listed(page: &str, table: &str) -> String {
    let Some((_, rest)) = page.split_once(&format!("### `{table}`")) else {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{table}` |")));
        return row.and_then(|row| row.split('|').nth(2)).unwrap_or_default().to_owned();
    };
    let section = rest.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let cells: String = rows.filter_map(|row| row.split('|').nth(1)).collect();
    if cells.is_empty() { section.to_owned() } else { cells }
}

#[tokio::test]
async fn the_schemas_page_names_every_column() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SCHEMA.md")).unwrap();
    let db = fresh().await;
    // Generated columns are listed by table_xinfo alone.
    let columns = db
        .query_text(
            "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_xinfo(t.name) c
             WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'",
        )
        .await
        .unwrap();
    assert!(columns.len() > 100, "{columns:?}");
    let missing: Vec<String> = columns
        .into_iter()
        .map(|row| (row[0].clone().unwrap(), row[1].clone().unwrap()))
        .filter(|(table, column)| !listed(&page, table).contains(&format!("`{column}`")))
        .map(|(table, column)| format!("{table}.{column}"))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "in docs/SCHEMA.md");
}
