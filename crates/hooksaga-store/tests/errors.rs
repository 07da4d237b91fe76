//! What callers can do about an error.

use hooksaga_store::StoreError;

#[test]
fn only_a_database_that_is_away_slow_or_full_is_worth_another_try() {
    let text = || "reason".to_owned();
    for error in
        [StoreError::Unavailable(text()), StoreError::TimedOut(text()), StoreError::Unwritable(text())]
    {
        assert!(error.is_transient(), "{error:?}");
        assert!(error.to_string().contains("reason"), "{error}");
    }
    for error in [
        StoreError::Denied(text()),
        StoreError::Refused(text()),
        StoreError::Schema(text()),
        StoreError::Setup(text()),
        StoreError::Other(text()),
    ] {
        assert!(!error.is_transient(), "{error:?}");
        assert!(error.to_string().contains("reason"), "{error}");
    }
}
