//! What hyper refuses before any route sees it: requests that cannot be parsed. It sends a bare status; clients get
//! a problem document like everywhere else.

use crate::problem::{Kind, Problem};
use bytes::Bytes;

/// The whole response to send in place of hyper's own, given the first bytes of that.
pub(super) fn in_place_of(bare: &[u8]) -> Option<Bytes> {
    let status = bare.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let (kind, detail) = match status {
        b"400" => (Kind::BadRequest, "the request line or a header is not valid HTTP"),
        b"414" => (Kind::UriTooLong, "the request's path and query are too long"),
        b"431" => (Kind::HeadTooLarge, "the request's headers are too many or too long"),
        _ => return None,
    };
    let reason = match status {
        b"400" => "Bad Request",
        b"414" => "URI Too Long",
        _ => "Request Header Fields Too Large",
    };
    let body = serde_json::to_string(&Problem::new(kind, detail).into_body()).ok()?;
    let status = std::str::from_utf8(status).ok()?;
    Some(Bytes::from(format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )))
}
