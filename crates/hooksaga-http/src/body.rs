//! Reads request bodies: JSON by content type, never more than the route's limit, never more in all requests
//! together than [`BodyBudget`] has room for, and never for longer than [`IDLE`] without a byte or [`TOTAL`] in all.

use crate::{
    body_room::{BodySender, Room, RoomPermit, Wait},
    errors::FieldErrors,
    json::Object,
    problem::{Kind, Problem},
};
use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// A client that sends nothing for this long has gone.
const IDLE: Duration = Duration::from_secs(30);

/// One that is not done after this long never will be.
const TOTAL: Duration = Duration::from_secs(120);

/// All large bodies that are held at one moment, in bytes.
const LARGE_ROOM: usize = 64 << 20;

/// All small bodies that are held at one moment, in bytes. They have room of their own, and never wait behind large ones.
const SMALL_ROOM: usize = 32 << 20;

/// All bodies of sign-ins that are held at one moment, in bytes.
const SIGN_IN_ROOM: usize = 1 << 20;

/// A body with more bytes than this is a large one.
const LARGE: usize = 256 << 10;

/// How long a large body waits for room before it is refused.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(5);

/// How long a small body waits for room while those that hold it do not send what they announced.
const WAIT_FOR_STALLED: Duration = Duration::from_secs(2);

/// Allowance for an event's fields besides its payload, in bytes.
pub(crate) const ENVELOPE_ALLOWANCE: usize = 64 << 10;

/// Bodies of routes that take a few short fields.
pub(crate) const SMALL: usize = 64 << 10;

/// A sign-in: a key, and where to go on.
pub(crate) const SIGN_IN: usize = 4 << 10;

/// The memory that request bodies may take together.
#[derive(Clone)]
pub(crate) struct BodyBudget {
    small: Arc<Room>,
    large: Arc<Room>,
}

impl BodyBudget {
    /// Room for at least one of the largest bodies.
    pub(crate) fn new(largest: usize) -> Self {
        let large = LARGE_ROOM.max(largest.saturating_add(ENVELOPE_ALLOWANCE));
        Self { small: Room::new(SMALL_ROOM), large: Room::new(large) }
    }

    /// For sign-ins alone, which have shown no key: whatever they do, requests with one have their own room.
    pub(crate) fn of_sign_ins() -> Self {
        let room = Room::new(SIGN_IN_ROOM);
        Self { small: Arc::clone(&room), large: room }
    }

    /// Room for a body whose length is known: all of it before any of it is read. Taken piece by piece, many large
    /// ones at once would each get a part and none its whole.
    async fn reserve(&self, bytes: usize) -> Result<RoomPermit, Problem> {
        let taken = if bytes <= LARGE {
            self.small.take(bytes, Wait::ForStalled(WAIT_FOR_STALLED)).await
        } else {
            self.large.take(bytes, Wait::ForAnybody(WAIT_FOR_ROOM)).await
        };
        taken.ok_or_else(overloaded)
    }
}

fn overloaded() -> Problem {
    Problem::new(Kind::Overloaded, "too many requests at once; try again shortly")
}

/// The room that a body takes: reserved in advance, or growing with it.
struct BodyRoom<'a> {
    budget: &'a BodyBudget,
    sender: Arc<BodySender>,
    reserved: usize,
    small: Option<RoomPermit>,
    large: Option<RoomPermit>,
}

impl<'a> BodyRoom<'a> {
    fn new(budget: &'a BodyBudget) -> Self {
        Self { budget, sender: BodySender::new(), reserved: 0, small: None, large: None }
    }

    /// Room for a body of this length, in advance.
    async fn reserve(&mut self, bytes: usize) -> Result<(), Problem> {
        let held = Some(self.budget.reserve(bytes).await?);
        if bytes <= LARGE {
            self.small = held
        } else {
            self.large = held
        }
        self.reserved = bytes;
        Ok(())
    }

    /// Makes sure that there is room for a body of this many bytes.
    fn grow_to(&mut self, bytes: usize) -> Result<(), Problem> {
        let Some(more) = bytes.checked_sub(self.reserved).filter(|more| *more > 0) else { return Ok(()) };
        let (held, room) = if bytes <= LARGE {
            (&mut self.small, &self.budget.small)
        } else {
            (&mut self.large, &self.budget.large)
        };
        match held {
            Some(held) => held.grow(more).ok_or_else(overloaded)?,
            None => *held = Some(room.try_take(more).ok_or_else(overloaded)?),
        }
        self.reserved = bytes;
        Ok(())
    }

    /// Waits for what the client sends, at most for the given time, and for as long as nobody else needs the room.
    async fn wait_for<T>(&mut self, sent: impl Future<Output = T>) -> Result<T, Problem> {
        for held in [&mut self.small, &mut self.large].into_iter().flatten() {
            held.belongs_to(&self.sender);
        }
        let too_slow = |detail| Problem::new(Kind::TooSlow, detail);
        self.sender
            .wait_for(tokio::time::timeout(IDLE, sent))
            .await
            .ok_or_else(|| too_slow("the body came too slowly while others were waiting"))?
            .map_err(|_| too_slow("no part of the body came for 30 seconds"))
    }
}

/// A body that has been read; its share of the budget is given back when it goes.
pub(crate) struct ReadBody {
    pub(crate) bytes: Bytes,
    _share: [Option<RoomPermit>; 2],
}

/// A body that has not been read yet: the handler knows the limit.
pub(crate) struct Unread {
    headers: HeaderMap,
    body: Body,
}

impl<S: Sync> FromRequest<S> for Unread {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        Ok(Self { headers: parts.headers, body })
    }
}

impl Unread {
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body of a route that needs one.
    pub(crate) async fn json(self, limit: usize, budget: &BodyBudget) -> Result<ReadBody, Problem> {
        check_media(&self.headers)?;
        self.read_in_time(limit, budget).await
    }

    /// The fields of a form, as browsers send it, in the order of the form.
    pub(crate) async fn form(
        self,
        limit: usize,
        budget: &BodyBudget,
    ) -> Result<Vec<(String, String)>, Problem> {
        let is_form =
            self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(
                |text| {
                    text.split(';')
                        .next()
                        .is_some_and(|essence| essence.trim() == "application/x-www-form-urlencoded")
                },
            );
        if !is_form {
            return Err(Problem::new(Kind::NotAForm, "send a form"));
        }
        let body = self.read_in_time(limit, budget).await?;
        Ok(form_urlencoded::parse(&body.bytes).into_owned().collect())
    }

    /// For routes that need no body: none, or an empty object.
    pub(crate) async fn nothing(self, budget: &BodyBudget) -> Result<(), Problem> {
        self.optional(budget, |_, _| ()).await
    }

    /// For routes that read an object and need none: what is absent is read as an empty one.
    pub(crate) async fn optional<T>(
        self,
        budget: &BodyBudget,
        read: impl FnOnce(&mut Object<'_>, &mut FieldErrors) -> T,
    ) -> Result<T, Problem> {
        let media = check_media(&self.headers);
        let body = self.read_in_time(SMALL, budget).await?;
        let bytes: &[u8] = if body.bytes.is_empty() {
            b"{}"
        } else {
            media?;
            &body.bytes
        };
        let mut errors = FieldErrors::default();
        let mut object = Object::from_body(bytes)?;
        let found = read(&mut object, &mut errors);
        object.finish(&mut errors);
        errors.check()?;
        Ok(found)
    }

    async fn read_in_time(self, limit: usize, budget: &BodyBudget) -> Result<ReadBody, Problem> {
        tokio::time::timeout(TOTAL, self.read(limit, budget)).await.unwrap_or_else(|_| {
            Err(Problem::new(Kind::TooSlow, "the body did not arrive within 120 seconds"))
        })
    }

    async fn read(self, limit: usize, budget: &BodyBudget) -> Result<ReadBody, Problem> {
        let too_large = || Problem::new(Kind::TooLarge, format!("the body must have at most {limit} bytes"));
        let declared = self
            .headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if declared
            .is_some_and(|declared| usize::try_from(declared).map_or(true, |declared| declared > limit))
        {
            return Err(too_large());
        }

        let declared = declared.and_then(|declared| usize::try_from(declared).ok()).unwrap_or(0);
        let mut share = BodyRoom::new(budget);
        if declared > 0 {
            share.reserve(declared).await?;
        }
        let mut body = self.body;
        let mut first = Bytes::new();
        let mut collected = BytesMut::new();
        loop {
            // Most bodies are there already.
            let at_once = Pin::new(&mut body.frame()).poll(&mut Context::from_waker(Waker::noop()));
            let frame = match at_once {
                Poll::Ready(frame) => frame,
                Poll::Pending => share.wait_for(body.frame()).await?,
            };
            let Some(frame) = frame else { break };
            let frame = frame
                .map_err(|_| Problem::new(Kind::BadBody, "the body is incomplete: the connection ended"))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = first.len() + collected.len() + data.len();
            if length > limit {
                return Err(too_large());
            }
            share.grow_to(length)?;
            // Most bodies come in one piece, which is then used as it is.
            if first.is_empty() && collected.is_empty() {
                first = data;
            } else {
                if collected.is_empty() {
                    // Exactly as much as is needed, where that is known: doubling would take twice the memory.
                    collected.reserve(declared.max(length));
                    collected.extend_from_slice(&std::mem::take(&mut first));
                }
                collected.extend_from_slice(&data);
            }
        }
        let bytes = if collected.is_empty() { first } else { collected.freeze() };
        Ok(ReadBody { bytes, _share: [share.small, share.large] })
    }
}

/// Whether this is a body that is read here: JSON by its type, and not encoded.
fn check_media(headers: &HeaderMap) -> Result<(), Problem> {
    check_content_type(headers)?;
    check_not_encoded(headers)
}

/// `application/json`, or a type built on it (`application/merge-patch+json`).
fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let essence = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|text| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match essence.as_deref() {
        Some("application/json") => Ok(()),
        Some(other) if other.starts_with("application/") && other.ends_with("+json") => Ok(()),
        _ => Err(Problem::new(Kind::NotJsonByType, "send the header content-type: application/json")),
    }
}

/// Bodies are read as they are: a compressed one would only look like something that is not JSON.
fn check_not_encoded(headers: &HeaderMap) -> Result<(), Problem> {
    let plain = |value: &HeaderValue| value.is_empty() || value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).iter().all(plain) {
        return Ok(());
    }
    let detail = "send the body as it is, without content-encoding: it is not decompressed here";
    let plain = HeaderValue::from_static("identity");
    Err(Problem::new(Kind::Encoded, detail).with_header(header::ACCEPT_ENCODING, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_bodies_wait_for_room_and_small_ones_never_wait_behind_them() {
        let budget = BodyBudget::new(8 << 20);
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(budget.reserve(8 << 20).await.expect("room for eight"));
        }
        tokio::time::pause();
        let ninth = tokio::spawn({
            let budget = budget.clone();
            async move { budget.reserve(8 << 20).await.is_ok() }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!ninth.is_finished(), "it waits");
        assert!(budget.reserve(1000).await.is_ok(), "a small one has room of its own");
        held.pop();
        assert!(ninth.await.expect("it ran"), "as soon as there is room");
        held.push(budget.reserve(8 << 20).await.expect("the ninth gave its room back"));
        assert!(budget.reserve(8 << 20).await.is_err(), "not for ever");
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_takes_room_as_it_grows() {
        let budget = BodyBudget::new(1 << 20);
        let before = (budget.small.free(), budget.large.free());
        let mut share = BodyRoom::new(&budget);
        for length in [1000, LARGE, LARGE + 1, 3 * LARGE] {
            share.grow_to(length).expect("room");
            assert_eq!(budget.small.free() + budget.large.free(), before.0 + before.1 - length);
        }
        assert!(share.grow_to(LARGE_ROOM + 2 * LARGE).is_err());
        drop(share);
        assert_eq!((budget.small.free(), budget.large.free()), before);
    }

    /// A client that has said that it sends so much, and sends nothing.
    fn silent(budget: &BodyBudget, bytes: usize) -> tokio::task::JoinHandle<Result<(), Problem>> {
        let budget = budget.clone();
        tokio::spawn(async move {
            let mut share = BodyRoom::new(&budget);
            share.reserve(bytes).await?;
            share.wait_for(std::future::pending()).await
        })
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stalls_makes_room_and_whoever_is_handled_does_not() {
        let budget = BodyBudget::new(1 << 20);
        let handled = budget.reserve(LARGE).await.expect("room");
        let stalled: Vec<_> = (1..SMALL_ROOM / LARGE).map(|_| silent(&budget, LARGE)).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(budget.small.free(), 0, "they hold everything");
        assert!(budget.reserve(LARGE + 1).await.is_ok(), "but not the room of large ones");
        let began = tokio::time::Instant::now();
        let next = budget.reserve(1000).await.expect("room, once they have stalled");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(stalled.iter().filter(|task| task.is_finished()).count(), 1, "no more than needed");
        for task in stalled {
            task.abort();
        }
        drop(next);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(budget.small.free(), SMALL_ROOM - LARGE);

        let _rest: Vec<_> = std::iter::from_fn(|| budget.small.try_take(LARGE)).collect();
        let began = tokio::time::Instant::now();
        assert!(budget.reserve(1000).await.is_err());
        assert!(began.elapsed() < Duration::from_millis(500), "nobody is waited for: refused at once");
        drop(handled);
    }
}
