//! docs/SCHEMA.md names everything that the migrations make.

use crate::adapter::fresh;
use hooksaga_conformance::TestDatabase as _;
use std::{fs, path::Path};

/// What the page says of a table: its own section, or its row among the helper tables.
fn described(page: &str, table: &str) -> String {
    let section =
        page.split_once(&format!("### `{table}`")).map(|(_, rest)| rest.split("\n#").next().unwrap());
    let row = || page.lines().find(|line| line.starts_with(&format!("| `{table}` |")));
    section.or_else(row).unwrap_or_default().to_owned()
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
        .filter(|(table, column)| !described(&page, table).contains(&format!("`{column}`")))
        .map(|(table, column)| format!("{table}.{column}"))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "in docs/SCHEMA.md");
}
