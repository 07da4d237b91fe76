//! API keys beside a running server.

use crate::{event, folder::Folder};
use hooksaga_sqlite::{SqliteOptions, open, open_keys};
use hooksaga_store::{NewApiKey, Scope};

fn key(n: u8) -> NewApiKey {
    NewApiKey {
        name: format!("key {n}"),
        scopes: [Scope::Ingest].into_iter().collect(),
        sha256: [n; 32],
        tenant: None,
        expires_in: None,
    }
}

#[tokio::test]
async fn keys_come_before_the_first_server() {
    let folder = Folder::new();
    let keys = open_keys(&folder.database()).await.unwrap();
    let created = keys.create(&key(1)).await.unwrap();
    let server = open(SqliteOptions { path: folder.database() }).await.unwrap();
    assert_eq!(server.stores().key_reader.find(&[1; 32]).await.unwrap(), Some(created));
    assert!(server.migration_report().applied.is_empty(), "the schema was made with the keys");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_created_and_revoked_while_a_server_writes_without_pause() {
    let folder = Folder::new();
    let server = open(SqliteOptions { path: folder.database() }).await.unwrap();
    let ingest = server.stores().ingest;
    let busy = tokio::spawn(async move {
        let event = event("a");
        loop {
            ingest.append(&vec![event.clone(); 100]).await.unwrap();
        }
    });

    let keys = open_keys(&folder.database()).await.unwrap();
    for n in 1..=20 {
        let created = keys.create(&key(n)).await.unwrap();
        let seen = server.stores().key_reader.find(&[n; 32]).await.unwrap();
        assert_eq!(seen.as_ref(), Some(&created));
        keys.revoke(created.id).await.unwrap();
        assert_eq!(server.stores().key_reader.find(&[n; 32]).await.unwrap(), None);
    }
    assert!(!busy.is_finished(), "the server was never refused the lock");
    busy.abort();
}
