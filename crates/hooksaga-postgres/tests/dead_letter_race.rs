//! A letter that is stored at the moment at which its saga is sent again.

use crate::adapter::{fresh, superuser};

/// A transaction that has run these statements, and what commits it.
async fn open(url: &str, statements: Vec<String>) -> impl Future<Output = ()> {
    let client = superuser(url).await;
    client.batch_execute(&format!("BEGIN; {}", statements.join("; "))).await.unwrap();
    async move { client.batch_execute("COMMIT").await.unwrap() }
}

hooksaga_conformance::letter_race_tests!(fresh, open);
