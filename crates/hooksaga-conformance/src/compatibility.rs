//! A newer schema: running processes continue if it says that they can.

use super::TestDatabase;
use hooksaga_store::StoreError;

pub async fn a_newer_schema_that_says_so_leaves_this_program_ready(db: &dyn TestDatabase) {
    let reader = db.stores().reader;
    reader.ready().await.unwrap();
    // What a later program's `hooksaga migrate` would leave behind.
    let later = "INSERT INTO schema_migrations (version, name, fingerprint, applied_at, lowest_program)
                 SELECT 99, 'later', '0123456789abcdef', applied_at, lowest_program
                 FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)";
    assert_eq!(db.execute_as_owner(later).await.unwrap(), 1);
    assert_eq!(reader.ready().await.unwrap(), 99, "what the database has, not what this program knows");
    for lowest in ["99", "NULL"] {
        let sql = format!("UPDATE schema_migrations SET lowest_program = {lowest} WHERE version = 99");
        assert_eq!(db.execute_as_owner(&sql).await.unwrap(), 1);
        let error = reader.ready().await.unwrap_err();
        assert!(matches!(&error, StoreError::Schema(text) if text.contains("at least as new")), "{error:?}");
    }
}
