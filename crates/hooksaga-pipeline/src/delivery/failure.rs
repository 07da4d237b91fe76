//! Maps an error of any layer to the error code of the attempt, or reports that no attempt was made.

use super::proxy::ProxyError;
use hooksaga_saga::ErrorCode;
use hyper_util::client::legacy;
use std::{error::Error, io};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("the host has an address that must not be called")]
    Blocked,
    #[error("the host name did not resolve")]
    Dns,
    /// The name was not asked for.
    #[error("too many lookups are under way in this process")]
    NoLookup,
    #[error("no TCP connection: {0}")]
    Tcp(io::Error),
    #[error("no connection through the proxy: {0}")]
    Proxy(ProxyError),
    /// The other side was not even tried.
    #[error("this process has no file descriptor left: {0}")]
    NoDescriptor(io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the connection took too long")]
    TooLong,
}

/// Why a request got no response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendError {
    /// A failed attempt.
    Failed(ErrorCode),
    /// No attempt: this process could not even open a connection.
    NoDescriptor,
    /// No attempt: this process could not even ask for the host's addresses.
    NoLookup,
}

impl ConnectError {
    fn seen_from_outside(&self) -> SendError {
        SendError::Failed(match self {
            Self::NoDescriptor(_) => return SendError::NoDescriptor,
            Self::NoLookup => return SendError::NoLookup,
            Self::Blocked => ErrorCode::BLOCKED_ADDRESS,
            Self::Dns => ErrorCode::DNS_FAILED,
            Self::Tcp(_) | Self::Proxy(_) => ErrorCode::CONNECT_FAILED,
            Self::Tls(_) => ErrorCode::TLS_FAILED,
            Self::TooLong => ErrorCode::TIMEOUT,
        })
    }

    /// A failed lookup, sorted by whose fault it is.
    pub(super) fn from_lookup(error: io::Error) -> Self {
        match error.kind() {
            _ if is_shortage(&error) => Self::NoDescriptor(error),
            io::ErrorKind::ResourceBusy => Self::NoLookup,
            _ => Self::Dns,
        }
    }

    /// A failed `connect`, sorted by whose fault it is.
    pub(super) fn from_connect(error: io::Error) -> Self {
        if is_shortage(&error) { Self::NoDescriptor(error) } else { Self::Tcp(error) }
    }
}

/// Whether this process, or the whole system, has no file descriptor left.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// What became of a request that got no response.
///
/// What is left when the connection came about and nobody here is at fault is a server that did not answer
/// in HTTP, or not at all.
pub(super) fn cause_of(error: &legacy::Error) -> SendError {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(connect) = cause.downcast_ref::<ConnectError>() {
            return connect.seen_from_outside();
        }
        if let Some(hyper) = cause.downcast_ref::<hyper::Error>() {
            if hyper.is_user() {
                return SendError::Failed(ErrorCode::INTERNAL);
            }
            if hyper.is_timeout() {
                return SendError::Failed(ErrorCode::TIMEOUT);
            }
        }
        if cause.downcast_ref::<io::Error>().is_some_and(is_tls_alert) {
            return SendError::Failed(ErrorCode::TLS_FAILED);
        }
        next = cause.source();
    }
    SendError::Failed(ErrorCode::RESPONSE_INVALID)
}

/// In TLS 1.3 a server refuses a client (for want of a certificate, say) only after the handshake.
fn is_tls_alert(error: &io::Error) -> bool {
    error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        .is_some_and(|error| matches!(error, rustls::Error::AlertReceived(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_descriptors_is_no_failed_attempt() {
        for errno in [23, 24] {
            let error = || io::Error::from_raw_os_error(errno);
            for cause in [ConnectError::from_connect(error()), ConnectError::from_lookup(error())] {
                assert_eq!(cause.seen_from_outside(), SendError::NoDescriptor, "{cause}");
            }
        }
    }

    #[test]
    fn a_lookup_for_which_there_was_no_room_is_no_failed_attempt() {
        let busy = io::Error::from(io::ErrorKind::ResourceBusy);
        assert_eq!(ConnectError::from_lookup(busy).seen_from_outside(), SendError::NoLookup);
    }

    #[test]
    fn any_other_error_is_the_other_sides() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let code = |cause: ConnectError| cause.seen_from_outside();
        assert_eq!(code(ConnectError::from_connect(refused())), SendError::Failed(ErrorCode::CONNECT_FAILED));
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut, io::ErrorKind::NotFound] {
            assert_eq!(
                code(ConnectError::from_lookup(kind.into())),
                SendError::Failed(ErrorCode::DNS_FAILED)
            );
        }
    }
}
