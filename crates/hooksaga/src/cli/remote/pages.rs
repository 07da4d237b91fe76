//! Lists: as many pages as are asked for, each a bounded request.

use super::{CommonListArgs, PageArgs, QueryString, Remote};
use crate::{
    client::Client,
    error::CliResult,
    output::{self, Cell, Table},
};
use serde::{Deserialize, de::DeserializeOwned};

/// The API's limit of items per page.
const LARGEST_PAGE: u32 = 500;

#[derive(Deserialize)]
struct PageOf<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

/// What is said in the place of a list without items.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Empty<'a> {
    /// There are none that match.
    pub(in crate::cli) matching: &'a str,
    /// There are none.
    pub(in crate::cli) at_all: &'a str,
}

impl CommonListArgs {
    /// Prints what the query and these options ask for, see [`list`].
    pub(in crate::cli) async fn show<T: DeserializeOwned>(
        self,
        query: QueryString,
        titles: &[&str],
        empty: Empty<'_>,
        row: impl Fn(T) -> Vec<Cell>,
    ) -> CliResult {
        list(&self.remote, query.with("tenant", self.tenant), &self.page, titles, empty, row).await
    }
}

/// Prints a list: a table of rows, or with `--json` the server's pages, one line each.
pub(in crate::cli) async fn list<T: DeserializeOwned>(
    remote: &Remote,
    query: QueryString,
    page: &PageArgs,
    titles: &[&str],
    empty: Empty<'_>,
    row: impl Fn(T) -> Vec<Cell>,
) -> CliResult {
    let client = remote.connect()?;
    let mut table = Table::new(titles);
    let is_part = query.has_filter() || page.cursor.is_some();
    let each = |item| table.row(row(item));
    let next = walk(&client, query, page, each, |text| remote.json.then(|| output::line(text))).await?;
    if remote.json {
        return Ok(());
    }
    if table.is_empty() {
        output::line(if is_part { empty.matching } else { empty.at_all });
    } else {
        table.print();
    }
    if let Some(cursor) = next {
        output::note(format!(
            "there are more: show them with --cursor {cursor}, or more at once with --limit"
        ));
    }
    Ok(())
}

/// Reads as many items as are asked for; the cursor of what follows them, if anything does.
async fn walk<T: DeserializeOwned>(
    client: &Client,
    mut query: QueryString,
    page: &PageArgs,
    mut each: impl FnMut(T),
    printed: impl Fn(&str) -> Option<()>,
) -> CliResult<Option<String>> {
    let mut left = page.limit;
    let mut cursor = page.cursor.clone();
    loop {
        query.set("limit", Some(left.min(LARGEST_PAGE).to_string()));
        query.set("cursor", cursor.take());
        let answer = client.get(&query.target()).await?;
        let read: PageOf<T> = answer.json()?;
        left = left.saturating_sub(u32::try_from(read.items.len()).unwrap_or(u32::MAX));
        printed(answer.text().trim_end());
        // A page without items ends the list, even if it has a cursor: no loop without an end.
        let ended = read.items.is_empty();
        read.items.into_iter().for_each(&mut each);
        match read.next_cursor {
            Some(next) if !ended && left > 0 => cursor = Some(next),
            next => return Ok(next.filter(|_| !ended)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::scripted::{self, Reply};
    use serde_json::{Value, json};

    async fn walked(script: Vec<Value>, limit: u32) -> (Vec<i64>, Option<String>, usize) {
        let script = script.iter().map(|page| Reply::new(200, page)).collect();
        let (url, requests) = scripted::serve(script).await;
        let client = Client::new(&url, "k").expect("valid");
        let mut items = Vec::new();
        let page = PageArgs { limit, cursor: None };
        let each = |item: i64| items.push(item);
        let next = walk(&client, QueryString::new("/v1/x"), &page, each, |_| None).await.expect("read");
        (items, next, requests.take().len())
    }

    #[tokio::test]
    async fn pages_are_followed_until_there_are_enough() {
        let pages =
            || vec![json!({"items": [3, 2], "next_cursor": "A"}), json!({"items": [1], "next_cursor": null})];
        assert_eq!(walked(pages(), 10).await, (vec![3, 2, 1], None, 2));
        assert_eq!(walked(pages(), 2).await, (vec![3, 2], Some("A".into()), 1));
        // A server that never ends does not keep us.
        assert_eq!(walked(vec![json!({"items": [], "next_cursor": "A"}); 3], 10).await, (vec![], None, 1));
    }
}
