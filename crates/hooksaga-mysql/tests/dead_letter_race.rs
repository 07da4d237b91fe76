//! What lists of letters are read from: beside a letter that is stored at the moment at which its saga is sent again, and after
//! a restore.

use crate::adapter::{fresh, options, owner};
use hooksaga_conformance::{TestDatabase as _, letter_heads};
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

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_again_waits_for_a_letter_that_is_being_stored() {
    let db = fresh().await;
    let open = async |statements| open(&db.url, statements).await;
    letter_heads::who_sends_again_waits_for_a_letter_that_is_being_stored(&db.stores(), open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_letter_is_stored_while_its_saga_is_sent_again() {
    let db = fresh().await;
    let open = async |statements| open(&db.url, statements).await;
    letter_heads::no_letter_is_stored_while_its_saga_is_sent_again(&db.stores(), open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_repaired_after_a_restore() {
    let db = fresh().await;
    let repair = async || hooksaga_mysql::repair_lists(options(&db.url)).await.unwrap();
    letter_heads::lists_are_repaired_after_a_restore(&db, repair).await;
}
