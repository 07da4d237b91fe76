//! Secrets are encrypted with another key while a server runs.

use super::{
    TestDatabase,
    fixture::{new_subscription, rotation},
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{Rewrap, SealedSecret, SecretRotation, StoreError, StoreResult, Stores, TenantScope};
use std::time::Duration;

fn sealed(key_id: &str, n: u8) -> SealedSecret {
    SealedSecret { key_id: key_id.to_owned(), sealed: vec![n; 60] }
}

/// Seals by adding one to every byte.
fn reseal(subscription: SubscriptionId, old: &SealedSecret) -> StoreResult<SealedSecret> {
    if old.key_id != "old" {
        return Err(StoreError::Other(format!("an unknown key {}", old.key_id)));
    }
    assert_eq!(subscription.0, i64::from(old.sealed[0]) + 1, "whose it is");
    Ok(SealedSecret { key_id: "new".to_owned(), sealed: old.sealed.iter().map(|byte| byte + 1).collect() })
}

async fn subscribe(stores: &Stores, n: u8, secret: SealedSecret) {
    let new = new_subscription("t", &format!("https://example.com/{n}"));
    stores.admin.create(&new, &secret).await.unwrap();
}

pub async fn everything_is_sealed_with_the_new_key_and_again_is_nothing(db: &dyn TestDatabase) {
    let stores = db.stores();
    for n in 0..150 {
        subscribe(&stores, n, sealed("old", n)).await;
    }
    subscribe(&stores, 200, sealed("new", 200)).await;
    let rewrap = Rewrap { key_id: "new", reseal: &reseal };
    assert_eq!(db.rewrap(rewrap).await.unwrap(), 150);
    assert_eq!(stores.verifier.secret_key_ids().await.unwrap(), ["new"]);
    let checks = stores.verifier.take_checks(500, Duration::from_secs(10)).await.unwrap();
    let mut found: Vec<_> = checks.iter().map(|check| check.secrets[0].secret.clone()).collect();
    found.sort_by_key(|secret| secret.sealed[0]);
    let mut expected: Vec<_> = (0..150).map(|n| sealed("new", n + 1)).collect();
    expected.push(sealed("new", 200));
    assert_eq!(found, expected);
    assert_eq!(db.rewrap(rewrap).await.unwrap(), 0);

    subscribe(&stores, 201, sealed("lost", 201)).await;
    let failed = db.rewrap(rewrap).await;
    assert!(matches!(failed, Err(StoreError::Other(_))), "{failed:?}");

    // Once it has expired nobody opens it any more, and it blocks nothing.
    let (last, secret) = (SubscriptionId(152), sealed("old", 151));
    assert!(
        stores
            .admin
            .rotate_secret(
                &TenantScope::All,
                &SecretRotation { max_valid: 2, ..rotation(last, secret, Duration::ZERO) }
            )
            .await
            .unwrap()
    );
    assert_eq!(db.rewrap(rewrap).await.unwrap(), 1);
    assert_eq!(db.rewrap(rewrap).await.unwrap(), 0);
}
