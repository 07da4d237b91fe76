//! API keys.

use super::{TestDatabase, fixture::only, rows::db_now};
use hooksaga_saga::KeyId;
use hooksaga_store::{NewApiKey, Scope, Scopes, StoreError};
use std::time::Duration;

fn key(n: u8, scopes: Scopes) -> NewApiKey {
    NewApiKey { name: format!("key {n}"), scopes, sha256: [n; 32] }
}

pub async fn a_key_is_found_by_its_hash(db: &dyn TestDatabase) {
    let keys = db.stores().keys;
    let before = db_now(db).await;
    for (n, scope) in (1..).zip(Scope::ALL) {
        let scopes = Scopes::from_iter([*scope]);
        let created = keys.create(&key(n, scopes)).await.unwrap();
        assert_eq!((created.name, created.scopes), (format!("key {n}"), scopes));
        assert_eq!(created.revoked_at, None);
        assert!(created.created_at.since(before) < Duration::from_secs(60));
    }
    let all = keys.create(&key(0, Scopes::all())).await.unwrap();
    assert_eq!(keys.find(&[0; 32]).await.unwrap(), Some(all));
    let second = keys.find(&[2; 32]).await.unwrap().expect("it is there");
    assert_eq!(second.scopes, Scopes::from_iter([Scope::Admin]));
    assert_eq!(keys.find(&[255; 32]).await.unwrap(), None);
    let mut nearly = [2; 32];
    nearly[31] = 3;
    assert_eq!(keys.find(&nearly).await.unwrap(), None);
}

pub async fn keys_are_listed_oldest_first_revoked_ones_too(db: &dyn TestDatabase) {
    let keys = db.stores().keys;
    assert_eq!(keys.list().await.unwrap(), []);
    let mut expected = Vec::new();
    for n in 1..=3 {
        expected.push(keys.create(&key(n, Scopes::all())).await.unwrap());
    }
    assert_eq!(keys.list().await.unwrap(), expected);
    expected[1] = keys.revoke(expected[1].id).await.unwrap().expect("it is there");
    assert_eq!(keys.list().await.unwrap(), expected);
}

pub async fn a_revoked_key_is_not_found(db: &dyn TestDatabase) {
    let keys = db.stores().keys;
    let created = keys.create(&key(1, Scopes::all())).await.unwrap();
    let other = keys.create(&key(2, Scopes::all())).await.unwrap();
    let revoked = keys.revoke(created.id).await.unwrap().expect("it is there");
    assert!(revoked.revoked_at.is_some());
    assert_eq!(keys.find(&[1; 32]).await.unwrap(), None);
    assert_eq!(keys.find(&[2; 32]).await.unwrap(), Some(other));
    let seen_elsewhere = db.second_instance().await.keys.find(&[1; 32]).await.unwrap();
    assert_eq!(seen_elsewhere, None, "in every process");
}

pub async fn revoking_again_changes_nothing(db: &dyn TestDatabase) {
    let keys = db.stores().keys;
    let id = keys.create(&key(1, Scopes::all())).await.unwrap().id;
    let first = keys.revoke(id).await.unwrap();
    assert_eq!(keys.revoke(id).await.unwrap(), first);
    assert_eq!(keys.revoke(KeyId(4711)).await.unwrap(), None);
}

pub async fn one_hash_is_one_key(db: &dyn TestDatabase) {
    let keys = db.stores().keys;
    keys.create(&key(1, Scopes::all())).await.unwrap();
    let before = keys.list().await.unwrap();
    let again = NewApiKey { name: "another".to_owned(), ..key(1, Scopes::all()) };
    let error = keys.create(&again).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    assert_eq!(keys.list().await.unwrap(), before);
}

pub async fn scopes_are_stored_as_a_list_of_names(db: &dyn TestDatabase) {
    let keys = db.stores().keys;
    keys.create(&key(1, Scopes::all())).await.unwrap();
    let stored = only(db.query_text("SELECT name, scopes FROM api_keys").await.unwrap());
    assert_eq!(stored, ["key 1", "ingest,admin,operator,read"].map(|text| Some(text.to_owned())));
}
