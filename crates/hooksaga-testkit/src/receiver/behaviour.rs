//! What a receiver does with a request.

use super::Arrival;
use std::{sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::Semaphore, time::sleep};

/// How one request is answered.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// This status, with a short body.
    Status(u16),
    /// This status and body.
    Body(u16, String),
    /// This status, with this `Retry-After`.
    RetryAfter(u16, String),
    /// A wait, then this status.
    Slow(Duration, u16),
    /// A wait, then 200, while there is a permit; else 429 at once.
    Throttle(Arc<Semaphore>, Duration),
    /// The challenge as it should be answered.
    AnswerChallenge,
    /// The challenge alone, as plain text.
    PlainChallenge,
    /// The request's body, as received.
    Echo,
    /// 302 to this URL.
    Redirect(String),
    /// Never an answer.
    Hang,
    /// The connection is reset before an answer.
    Reset,
    /// The connection is closed before an answer.
    Close,
    /// Bytes that are no HTTP.
    Garbage,
    /// This status at once, and then a body byte now and then, without end.
    Drip(u16),
    /// This status, and then a body as fast as it is taken, without end.
    Endless(u16),
}

impl Behaviour {
    /// Answers; false when the connection is to be dropped.
    pub(super) async fn perform(self, stream: &mut TcpStream, arrival: &Arrival) -> bool {
        match self {
            Self::Status(status) => respond(stream, status, "", &format!("status {status}\n")).await,
            Self::Body(status, body) => respond(stream, status, "", &body).await,
            Self::RetryAfter(status, when) => {
                respond(stream, status, &format!("retry-after: {when}\r\n"), "later\n").await
            }
            Self::Slow(delay, status) => {
                sleep(delay).await;
                respond(stream, status, "", "late\n").await
            }
            Self::Throttle(places, takes) => {
                let Ok(_place) = places.try_acquire() else {
                    return respond(stream, 429, "", "too many at a time\n").await;
                };
                sleep(takes).await;
                respond(stream, 200, "", "").await
            }
            Self::AnswerChallenge => {
                let body = format!(r#"{{"challenge":"{}"}}"#, arrival.challenge().unwrap_or_default());
                respond(stream, 200, "content-type: application/json\r\n", &body).await
            }
            Self::PlainChallenge => respond(stream, 200, "", arrival.challenge().unwrap_or_default()).await,
            Self::Echo => respond(stream, 200, "", arrival.text()).await,
            Self::Redirect(to) => respond(stream, 302, &format!("location: {to}\r\n"), "").await,
            Self::Hang => {
                std::future::pending::<()>().await;
                false
            }
            Self::Reset => {
                // Closing with linger zero sends RST instead of FIN.
                let _ = stream.set_zero_linger();
                false
            }
            Self::Close => false,
            Self::Garbage => {
                let _ = write(stream, b"\x16\x03\x01 this is no HTTP at all\r\n\r\n").await;
                false
            }
            Self::Drip(status) => endless(stream, status, b".", Duration::from_millis(100)).await,
            Self::Endless(status) => endless(stream, status, &[b'x'; 64 * 1024], Duration::ZERO).await,
        }
    }
}

async fn respond(stream: &mut TcpStream, status: u16, headers: &str, body: &str) -> bool {
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} Answer\r\n{headers}content-length: {length}\r\n\r\n{body}");
    write(stream, answer.as_bytes()).await
}

async fn endless(stream: &mut TcpStream, status: u16, piece: &[u8], pause: Duration) -> bool {
    let head = format!("HTTP/1.1 {status} Answer\r\nconnection: close\r\n\r\n");
    let mut open = write(stream, head.as_bytes()).await;
    while open {
        sleep(pause).await;
        open = write(stream, piece).await;
    }
    false
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok()
}
