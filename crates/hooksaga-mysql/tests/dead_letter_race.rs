//! A letter that is stored at the moment at which its saga is sent again.

use crate::adapter::{fresh, owner};
use mysql_async::prelude::Queryable as _;

/// A transaction that has run these statements, and what commits it.
async fn open(url: &str, statements: Vec<String>) -> impl Future<Output = ()> {
    let mut connection = owner(url).await;
    let begin = ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"];
    for sql in begin.into_iter().chain(statements.iter().map(String::as_str)) {
        connection.query_drop(sql).await.unwrap();
    }
    async move { connection.query_drop("COMMIT").await.unwrap() }
}

hooksaga_conformance::letter_race_tests!(fresh, open);
