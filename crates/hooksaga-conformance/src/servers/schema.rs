//! What happens on a schema that is not this program's, and in a second migration.

use super::{ServerDatabase, changed_nothing, failure, says_how_to_migrate, says_that_tls_is_missing};
use crate::{Dialect, fixture::only};
use hooksaga_store::StoreError;

/// The program refuses the schema: it neither migrates it, nor opens it, nor is ready on it.
async fn is_left_alone(db: &dyn ServerDatabase, because: &str) {
    for error in [failure(db.migrate().await), failure(db.connect("").await)] {
        assert!(matches!(error, StoreError::Schema(_)), "{error:?}");
        assert!(error.to_string().contains(because), "{error}");
    }
}

pub async fn migrating_again_changes_nothing(db: &dyn ServerDatabase) {
    changed_nothing(&db.migrate().await.unwrap());
}

pub async fn an_older_schema_is_not_opened(db: &dyn ServerDatabase) {
    db.execute_as_owner("DELETE FROM schema_migrations WHERE version = 2").await.unwrap();
    says_how_to_migrate(&failure(db.connect("").await));
}

pub async fn a_newer_schema_is_left_alone(db: &dyn ServerDatabase) {
    let newer = "INSERT INTO schema_migrations (version, name, fingerprint) VALUES (99, 'later', '?')";
    db.execute_as_owner(newer).await.unwrap();
    is_left_alone(db, "newer").await;
}

/// Unreleased versions edited steps in place, and recorded no fingerprint of their texts.
pub async fn a_schema_of_an_unreleased_version_is_left_alone(db: &dyn ServerDatabase) {
    const BECAUSE: &str = "this database was made by an unreleased version of hooksaga: create a new one (its \
                           schema cannot be upgraded)";
    let recorded = "SELECT fingerprint FROM schema_migrations WHERE version = 2";
    let recorded = only(only(db.query_text(recorded).await.unwrap())).unwrap();
    let set = |value: &str| format!("UPDATE schema_migrations SET fingerprint = {value} WHERE version = 2");
    db.execute_as_owner("DROP TABLE workers").await.unwrap();
    let mut states = vec![set("'0123456789abcdef'")];
    if db.dialect() == Dialect::MySql {
        states.push(set("NULL"));
    }
    states.push("ALTER TABLE schema_migrations DROP COLUMN fingerprint".to_owned());
    for made_otherwise in states {
        db.execute_as_owner(&set(&format!("'{recorded}'"))).await.unwrap();
        db.execute_as_owner(&made_otherwise).await.unwrap();
        is_left_alone(db, BECAUSE).await;
        assert_eq!(failure(db.stores().reader.ready().await).to_string(), BECAUSE, "{made_otherwise}");
    }
    assert!(db.query_text("SELECT 1 FROM workers").await.is_err(), "nothing was changed");
}

/// The server of the tests offers none.
pub async fn encryption_that_the_server_does_not_offer_can_be_demanded(db: &dyn ServerDatabase) {
    let demand = match db.dialect() {
        Dialect::Postgres => "?sslmode=require",
        Dialect::MySql => "?require_ssl=true",
        Dialect::Sqlite => panic!("a file has no server"),
    };
    says_that_tls_is_missing(&failure(db.connect(demand).await));
}
