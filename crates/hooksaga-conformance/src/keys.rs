//! API keys.

use super::{
    Dialect, TestDatabase,
    fixture::{only, tenant},
    guards::refused,
    rows::{changes, db_now},
};
use hooksaga_saga::{KeyId, Timestamp};
use hooksaga_store::{
    KeyView, NewApiKey, NewPortalKey, PORTAL_SESSION, PageRequest, Role, Scope, Scopes, StoreError, Stores,
};
use std::time::Duration;

fn key(n: u8, scopes: Scopes) -> NewApiKey {
    NewApiKey { name: format!("key {n}"), scopes, sha256: [n; 32], tenant: None, expires_in: None }
}

pub async fn a_key_is_found_by_its_hash(db: &dyn TestDatabase) {
    let Stores { keys, key_reader, .. } = db.stores();
    let before = db_now(db).await;
    for (n, scope) in (1..).zip(Scope::ALL) {
        let scopes = Scopes::from_iter([*scope]);
        let created = keys.create(&key(n, scopes)).await.unwrap();
        assert_eq!((created.name, created.scopes), (format!("key {n}"), scopes));
        assert_eq!(created.revoked_at, None);
        assert!(created.created_at.since(before) < Duration::from_secs(60));
    }
    let all = keys.create(&key(0, Scopes::all())).await.unwrap();
    assert_eq!(key_reader.find(&[0; 32]).await.unwrap(), Some(all));
    let second = key_reader.find(&[2; 32]).await.unwrap().expect("it is there");
    assert_eq!(second.scopes, Scopes::from_iter([Scope::Admin]));
    assert_eq!(key_reader.find(&[255; 32]).await.unwrap(), None);
    let mut nearly = [2; 32];
    nearly[31] = 3;
    assert_eq!(key_reader.find(&nearly).await.unwrap(), None);
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

pub async fn keys_are_paged_newest_first(db: &dyn TestDatabase) {
    let Stores { keys, portal_keys, .. } = db.stores();
    let mut expected = Vec::new();
    for n in 1..=5 {
        expected.insert(0, keys.create(&key(n, Scopes::all())).await.unwrap());
    }
    let mut before = None;
    for (rows, more) in [(&expected[..2], true), (&expected[2..4], true), (&expected[4..], false)] {
        let page = portal_keys.newest(KeyView::Issued, PageRequest { limit: 2, before }).await.unwrap();
        assert_eq!((&page.items[..], page.next.is_some()), (rows, more));
        before = page.next;
    }
    let all = portal_keys.newest(KeyView::Issued, PageRequest { limit: 5, before: None }).await.unwrap();
    assert_eq!((all.items, all.next), (expected, None));
}

pub async fn keys_are_viewed_apart_from_portal_sessions_and_what_has_ended(db: &dyn TestDatabase) {
    let Stores { keys, portal_keys, .. } = db.stores();
    let session = |n: u8, expires_in: Duration| NewPortalKey {
        name: PORTAL_SESSION.to_owned(),
        scopes: Scopes::all(),
        sha256: [n; 32],
        tenant: "acme".parse().unwrap(),
        expires_in,
    };
    let (hour, soon) = (Duration::from_secs(3600), Duration::from_millis(1));
    let valid = keys.create(&key(1, Scopes::all())).await.unwrap().id;
    // Only the name is that of a session.
    let named = NewApiKey { name: PORTAL_SESSION.to_owned(), ..key(2, Scopes::all()) };
    let named = keys.create(&named).await.unwrap().id;
    let revoked = keys.create(&key(3, Scopes::all())).await.unwrap().id;
    keys.revoke(revoked).await.unwrap();
    let open = portal_keys.create(&session(4, hour)).await.unwrap().id;
    let ended = portal_keys.create(&session(5, soon)).await.unwrap().id;
    let closed = portal_keys.create(&session(6, hour)).await.unwrap().id;
    portal_keys.revoke(closed).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    for (view, expected) in [
        (KeyView::Issued, vec![named, valid]),
        (KeyView::PortalSessions, vec![open]),
        (KeyView::Ended, vec![closed, ended, revoked]),
    ] {
        let page = portal_keys.newest(view, PageRequest { limit: 5, before: None }).await.unwrap();
        assert_eq!(page.items.iter().map(|key| key.id).collect::<Vec<_>>(), expected, "{view:?}");
        let first = portal_keys.newest(view, PageRequest { limit: 1, before: None }).await.unwrap();
        assert_eq!((first.items.len(), first.next.is_some()), (1, expected.len() > 1), "{view:?}");
    }
}

pub async fn a_revoked_key_is_not_found(db: &dyn TestDatabase) {
    let Stores { keys, key_reader, .. } = db.stores();
    let created = keys.create(&key(1, Scopes::all())).await.unwrap();
    let other = keys.create(&key(2, Scopes::all())).await.unwrap();
    let revoked = keys.revoke(created.id).await.unwrap().expect("it is there");
    assert!(revoked.revoked_at.is_some());
    assert_eq!(key_reader.find(&[1; 32]).await.unwrap(), None);
    assert_eq!(key_reader.find(&[2; 32]).await.unwrap(), Some(other));
    let seen_elsewhere = db.second_instance().await.key_reader.find(&[1; 32]).await.unwrap();
    assert_eq!(seen_elsewhere, None, "in every process");
}

pub async fn revoking_again_changes_nothing(db: &dyn TestDatabase) {
    let keys = db.stores().keys;
    let id = keys.create(&key(1, Scopes::all())).await.unwrap().id;
    let first = keys.revoke(id).await.unwrap();
    assert_eq!(keys.revoke(id).await.unwrap(), first);
    assert_eq!(keys.revoke(KeyId(4711)).await.unwrap(), None);
}

/// This holds for every role, whatever it may write.
pub async fn a_revoked_key_stays_revoked(db: &dyn TestDatabase) {
    let Stores { keys, key_reader, .. } = db.stores();
    let id = keys.create(&key(1, Scopes::all())).await.unwrap().id;
    let revoked = keys.revoke(id).await.unwrap().expect("it is there");
    let later = db.dialect().time(db_now(db).await.after(Duration::from_secs(3600)));
    for value in ["NULL", &later] {
        let sql = format!("UPDATE api_keys SET revoked_at = {value}");
        for role in [Role::PortalKeyWriter, Role::KeyAdmin] {
            let refusal = db.execute_as(role, &sql).await;
            assert!(matches!(refusal, Err(StoreError::Refused(_))), "{role}: {value}: {refusal:?}");
        }
        refused(db, &sql).await;
    }
    assert_eq!(keys.list().await.unwrap(), [revoked]);
    assert_eq!(key_reader.find(&[1; 32]).await.unwrap(), None);
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

pub async fn a_key_may_be_bound_to_a_tenant(db: &dyn TestDatabase) {
    let Stores { keys, key_reader, .. } = db.stores();
    let bound = NewApiKey { tenant: Some(tenant("acme")), ..key(1, Scopes::all()) };
    let created = keys.create(&bound).await.unwrap();
    assert_eq!(created.tenant, Some(tenant("acme")));
    assert_eq!(key_reader.find(&[1; 32]).await.unwrap(), Some(created.clone()));
    let free = keys.create(&key(2, Scopes::all())).await.unwrap();
    assert_eq!(key_reader.find(&[2; 32]).await.unwrap(), Some(free.clone()));
    assert_eq!(free.tenant, None);
    assert_eq!(keys.list().await.unwrap(), [created, free]);
}

pub async fn a_key_expires_by_the_databases_clock(db: &dyn TestDatabase) {
    let Stores { keys, key_reader, .. } = db.stores();
    let valid_for = |n, time| NewApiKey { expires_in: Some(time), ..key(n, Scopes::all()) };
    let hour = keys.create(&valid_for(1, Duration::from_secs(3600))).await.unwrap();
    assert_eq!(hour.expires_at.map(|end| end.since(hour.created_at)), Some(Duration::from_secs(3600)));
    assert_eq!(key_reader.find(&[1; 32]).await.unwrap(), Some(hour.clone()));
    let over = keys.create(&valid_for(2, Duration::ZERO)).await.unwrap();
    assert_eq!(over.expires_at, Some(over.created_at));
    assert_eq!(key_reader.find(&[2; 32]).await.unwrap(), None);
    let a_second_ago = db_now(db).await.as_micros() - 1_000_000;
    let past = db.dialect().time(Timestamp::from_micros(a_second_ago));
    changes(db, &format!("UPDATE api_keys SET expires_at = {past} WHERE id = {}", hour.id), 1).await;
    assert_eq!(key_reader.find(&[1; 32]).await.unwrap(), None);
    assert_eq!(keys.list().await.unwrap().len(), 2, "they are listed all the same");
}

pub async fn the_use_of_a_key_is_noted(db: &dyn TestDatabase) {
    let Stores { keys, key_reader, .. } = db.stores();
    let mut ids = Vec::new();
    for n in 1..=3 {
        ids.push(keys.create(&key(n, Scopes::all())).await.unwrap().id);
    }
    let before = db_now(db).await;
    key_reader.note_use(&[ids[0], ids[2], KeyId(4711)]).await.unwrap();
    key_reader.note_use(&[]).await.unwrap();
    let used: Vec<_> = keys.list().await.unwrap().iter().map(|key| key.last_used_at).collect();
    assert_eq!(used[1], None);
    for used in [used[0], used[2]] {
        let used = used.expect("it was noted");
        assert!(used.since(before).max(before.since(used)) <= Duration::from_secs(60), "to the minute");
    }
    let found = key_reader.find(&[1; 32]).await.unwrap().expect("it is valid");
    assert_eq!(found.last_used_at, used[0]);
    keys.revoke(ids[0]).await.unwrap();
    key_reader.note_use(&ids).await.unwrap();
    assert!(key_reader.find(&[1; 32]).await.unwrap().is_none(), "a use brings no key back");
}

/// The keys of portal sessions: as the API's role creates them, and what the database refuses to that role.
pub async fn the_api_creates_only_keys_with_a_tenant_and_an_end(db: &dyn TestDatabase) {
    let Stores { portal_keys, key_reader, .. } = db.stores();
    let new = NewPortalKey {
        name: "session".to_owned(),
        scopes: Scopes::from_iter([Scope::Read]),
        sha256: [1; 32],
        tenant: tenant("a"),
        expires_in: Duration::from_secs(60),
    };
    let created = portal_keys.create(&new).await.unwrap();
    assert_eq!(created.tenant, Some(tenant("a")));
    assert_eq!(created.expires_at.unwrap().since(created.created_at), Duration::from_secs(60));
    assert_eq!(key_reader.find(&[1; 32]).await.unwrap().as_ref(), Some(&created));

    // SQLite's table has no default for it.
    let (created_at, now) = match db.dialect() {
        Dialect::Sqlite => ("created_at, ", "1, "),
        _ => ("", ""),
    };
    let later = db.dialect().time(db_now(db).await.after(Duration::from_secs(60)));
    let insert = async |n: u8, columns: &str, values: &str| {
        let sha256 = db.dialect().bytes(&[n; 32]);
        let sql = format!(
            "INSERT INTO api_keys ({created_at}name, scopes, sha256{columns}) \
             VALUES ({now}'x', 'admin', {sha256}{values})"
        );
        db.execute_as(Role::PortalKeyWriter, &sql).await
    };
    for (columns, values) in [
        ("", String::new()),
        (", tenant", ", 'a'".to_owned()),
        (", expires_at", format!(", {later}")),
        (", by_admin", ", TRUE".to_owned()),
        (", tenant, by_admin", ", 'a', TRUE".to_owned()),
        (", expires_at, by_admin", format!(", {later}, TRUE")),
    ] {
        let refused = insert(2, columns, &values).await;
        assert!(refused.is_err(), "{columns}: {refused:?}");
    }
    assert_eq!(insert(2, ", tenant, expires_at", &format!(", 'a', {later}")).await.unwrap(), 1);
    assert_eq!(key_reader.find(&[2; 32]).await.unwrap().and_then(|key| key.tenant), Some(tenant("a")));
}
