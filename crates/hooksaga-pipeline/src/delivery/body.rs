//! Reading as much of a response body as is wanted, and no more.

use bytes::Buf;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::{Instant, timeout, timeout_at};

/// How reading a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is complete.
    Complete,
    /// There is more than was wanted.
    Cut,
    /// The deadline passed.
    Late,
    /// The connection broke.
    Broken,
}

/// Reads up to `limit` bytes before the deadline, and keeps what came however it ended.
pub(super) async fn read_start(body: &mut Incoming, limit: usize, deadline: Instant) -> (Vec<u8>, End) {
    let mut start = Vec::new();
    loop {
        let mut data = match timeout_at(deadline, body.frame()).await {
            Err(_) => return (start, End::Late),
            Ok(None) => return (start, End::Complete),
            Ok(Some(Err(_))) => return (start, End::Broken),
            // Trailers carry nothing of the body.
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        let wanted = limit - start.len();
        if data.len() > wanted {
            data.truncate(wanted);
            start.extend_from_slice(&data);
            return (start, End::Cut);
        }
        start.extend_from_slice(&data);
    }
}

/// Reads the rest of a body that nobody wants, so that its connection can be used again: what is there
/// already at once, what is still to come in the background, and neither more than is worth a connection.
/// Never waits.
pub(super) fn discard(mut body: Incoming) {
    const MAX_BYTES: usize = 64 * 1024;
    const MAX_TIME: Duration = Duration::from_secs(1);

    if body.size_hint().lower() > MAX_BYTES as u64 {
        return;
    }
    let mut left = MAX_BYTES;
    let mut at_hand = Context::from_waker(Waker::noop());
    loop {
        if body.is_end_stream() {
            return;
        }
        match Pin::new(&mut body).poll_frame(&mut at_hand) {
            Poll::Ready(Some(Ok(frame))) => match spend(left, &frame) {
                Some(rest) => left = rest,
                None => return,
            },
            Poll::Ready(Some(Err(_)) | None) => return,
            Poll::Pending => break,
        }
    }
    tokio::spawn(timeout(MAX_TIME, async move {
        while let Some(Ok(frame)) = body.frame().await {
            match spend(left, &frame) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }));
}

/// What is left of the bytes that may be thrown away, unless the frame has more.
fn spend(left: usize, frame: &hyper::body::Frame<bytes::Bytes>) -> Option<usize> {
    left.checked_sub(frame.data_ref().map_or(0, Buf::remaining))
}

/// The beginning of a response as text: at most `limit` bytes of valid UTF-8 without NUL, which
/// PostgreSQL does not store; `None` if it is empty.
pub(super) fn excerpt(start: &[u8], limit: usize, cut: bool) -> Option<String> {
    let whole = if cut { without_partial_character(start) } else { start };
    let mut text = String::from_utf8_lossy(whole).replace('\0', "\u{fffd}");
    // Every replacement is longer than what it stands for.
    text.truncate(text.floor_char_boundary(limit));
    (!text.is_empty()).then_some(text)
}

/// Leaves out the beginning of a character that the cut went through.
fn without_partial_character(bytes: &[u8]) -> &[u8] {
    match bytes.utf8_chunks().last() {
        Some(last) if is_unfinished(last.invalid()) => &bytes[..bytes.len() - last.invalid().len()],
        _ => bytes,
    }
}

fn is_unfinished(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_the_text_itself() {
        assert_eq!(excerpt("größer".as_bytes(), 4096, false).as_deref(), Some("größer"));
        assert_eq!(excerpt(b"", 4096, false), None);
    }

    #[test]
    fn what_is_not_utf8_or_not_storable_is_replaced() {
        assert_eq!(excerpt(b"a\0b\xffc", 4096, false).as_deref(), Some("a\u{fffd}b\u{fffd}c"));
        // A half character at the end of a complete body is a fault of the body; at a cut it is ours.
        assert_eq!(excerpt("é".as_bytes().split_at(1).0, 4096, false).as_deref(), Some("\u{fffd}"));
        assert_eq!(excerpt(b"ok\xe2\x82", 4096, true).as_deref(), Some("ok"));
        assert_eq!(excerpt(b"x\xf0\x9f\x98", 4, true).as_deref(), Some("x"));
        assert_eq!(excerpt(b"ok\xff", 4096, true).as_deref(), Some("ok\u{fffd}"));
    }

    #[test]
    fn replacements_do_not_make_it_longer_than_the_limit() {
        let text = excerpt(&[0xff; 4096], 4096, true).expect("not empty");
        assert_eq!(text.len(), 4095);
        assert!(text.chars().all(|c| c == '\u{fffd}'));
    }
}
