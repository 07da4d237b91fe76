//! Columns that every back end selects by the same names, in the order in which it reads them: literals for `concat!`.

/// Of an API key, for an [`ApiKey`](crate::ApiKey).
#[macro_export]
macro_rules! key_columns {
    () => {
        "id, name, scopes, tenant, created_at, expires_at, revoked_at, last_used_at"
    };
}

/// Of a redrive, for a [`Redrive`](crate::Redrive).
#[macro_export]
macro_rules! redrive_columns {
    () => {
        "id, tenant, kind, subscription_id, event_type, final_error_code, since, until, status, error, examined, created,
    skipped, started_by_key, started_by, created_at, updated_at, after_at"
    };
}
