//! What callers can do about an error.

use hooksaga_store::StoreError;

#[test]
fn only_an_unavailable_database_is_worth_another_try() {
    let text = || "reason".to_owned();
    assert!(StoreError::Unavailable(text()).is_transient());
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
