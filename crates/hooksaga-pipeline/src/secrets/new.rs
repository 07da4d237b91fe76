//! The secrets of a subscription that does not exist yet. They are sealed once it has an id.

use super::{SecretKey, SigningSecret};
use hooksaga_saga::RequestHeaders;
use hooksaga_store::{SealedParts, Sealer, Seals};
use std::sync::Arc;

/// A new subscription's signing secret and request headers, and the key that seals them.
pub struct NewSecrets {
    key: Arc<SecretKey>,
    secret: SigningSecret,
    headers: RequestHeaders,
}

impl NewSecrets {
    pub fn new(key: &Arc<SecretKey>, secret: &SigningSecret, headers: RequestHeaders) -> Self {
        Self { key: Arc::clone(key), secret: secret.clone(), headers }
    }
}

impl Seals for NewSecrets {
    fn sealer(&self) -> Sealer {
        let (key, secret, headers) = (Arc::clone(&self.key), self.secret.clone(), self.headers.clone());
        Arc::new(move |id| SealedParts {
            secret: key.seal(id, &secret),
            headers: key.seal_headers(id, &headers).map(|sealed| sealed.secret),
        })
    }
}
