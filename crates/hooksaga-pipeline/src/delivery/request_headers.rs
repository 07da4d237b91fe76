//! The static request headers of a subscription, opened for a callback.

use crate::{SealError, SecretKey};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::SealedSecret;
use http::{HeaderName, HeaderValue};

/// The headers in the clear, marked so that nothing shows their values; none if there are none.
pub(crate) fn open(
    subscription: SubscriptionId,
    headers: Option<&SealedSecret>,
    key: &SecretKey,
) -> Result<Vec<(HeaderName, HeaderValue)>, SealError> {
    let Some(sealed) = headers else { return Ok(Vec::new()) };
    let opened = key.open_headers(subscription, sealed)?;
    opened
        .iter()
        .map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_str().as_bytes()).map_err(|_| SealError::Changed)?;
            let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| SealError::Changed)?;
            value.set_sensitive(true);
            Ok((name, value))
        })
        .collect()
}
