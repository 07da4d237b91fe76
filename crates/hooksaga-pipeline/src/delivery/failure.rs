//! From an error of any layer to the error code of the attempt.

use hooksaga_saga::ErrorCode;
use hyper_util::client::legacy;
use std::{error::Error, io};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("every address of the host is one that must not be called")]
    Blocked,
    #[error("the host name did not resolve")]
    Dns,
    #[error("no TCP connection: {0}")]
    Tcp(io::Error),
    /// The other side was not even tried.
    #[error("this process has no file descriptor left: {0}")]
    NoDescriptor(io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the connection took too long")]
    TooLong,
}

impl ConnectError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Blocked => ErrorCode::BLOCKED_ADDRESS,
            Self::Dns => ErrorCode::DNS_FAILED,
            Self::Tcp(_) => ErrorCode::CONNECT_FAILED,
            Self::NoDescriptor(_) => ErrorCode::INTERNAL,
            Self::Tls(_) => ErrorCode::TLS_FAILED,
            Self::TooLong => ErrorCode::TIMEOUT,
        }
    }

    /// A failed `connect`, sorted by whose fault it is.
    pub(super) fn from_connect(error: io::Error) -> Self {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        match error.raw_os_error() {
            Some(ENFILE | EMFILE) => Self::NoDescriptor(error),
            _ => Self::Tcp(error),
        }
    }
}

/// The code of a request that got no response.
///
/// What is left when the connection came about and nobody here is at fault is a server that did not answer
/// in HTTP, or not at all.
pub(super) fn code_of(error: &legacy::Error) -> ErrorCode {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(connect) = cause.downcast_ref::<ConnectError>() {
            return connect.code();
        }
        if let Some(hyper) = cause.downcast_ref::<hyper::Error>() {
            if hyper.is_user() {
                return ErrorCode::INTERNAL;
            }
            if hyper.is_timeout() {
                return ErrorCode::TIMEOUT;
            }
        }
        if cause.downcast_ref::<io::Error>().is_some_and(is_tls_alert) {
            return ErrorCode::TLS_FAILED;
        }
        next = cause.source();
    }
    ErrorCode::RESPONSE_INVALID
}

/// In TLS 1.3 a server refuses a client (for want of a certificate, say) only after the handshake.
fn is_tls_alert(error: &io::Error) -> bool {
    error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        .is_some_and(|error| matches!(error, rustls::Error::AlertReceived(_)))
}
