//! Passes deliveries on to a program under development, and its responses back.

use crate::{
    client::{Bounds, Transport, Unanswered},
    error::CliResult,
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use std::time::Duration;

/// A delivery's deadline is 15 s by default; a program that is being debugged may take longer.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(60), bytes: 16 << 20 };

/// Headers that belong to one connection, and those that the client sets itself.
const OF_THE_CONNECTION: [header::HeaderName; 8] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
];

/// Where deliveries are passed on to.
#[derive(Clone)]
pub(crate) struct Forward {
    to: Uri,
    transport: Transport,
}

/// What came back.
pub(super) struct Forwarded {
    pub(super) response: Response<Bytes>,
    /// For people, behind the status.
    pub(super) remark: String,
}

impl Forward {
    pub(crate) fn new(to: Uri) -> CliResult<Self> {
        Ok(Self { to, transport: Transport::from_environment()? })
    }

    /// Passes a delivery on unchanged. A program that cannot be reached counts as 502.
    pub(super) async fn pass_on(&self, headers: &HeaderMap, body: Bytes) -> Forwarded {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.to.clone();
        for (name, value) in headers.iter().filter(|(name, _)| !OF_THE_CONNECTION.contains(name)) {
            request.headers_mut().append(name, value.clone());
        }
        match self.transport.send(request, BOUNDS).await {
            Ok(response) => {
                Forwarded { response: without_connection(response), remark: format!(" from {}", self.to) }
            }
            Err(Unanswered(why)) => {
                let mut response = Response::new(Bytes::from(format!("cannot forward: {why}\n")));
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                Forwarded { response, remark: format!(": cannot forward to {}: {why}", self.to) }
            }
        }
    }
}

fn without_connection(mut response: Response<Bytes>) -> Response<Bytes> {
    for name in &OF_THE_CONNECTION {
        response.headers_mut().remove(name);
    }
    response
}

/// Reads the address to forward to.
pub(crate) fn target(text: &str) -> Result<Uri, String> {
    let wrong = || "write an address such as http://localhost:3000/hook".to_owned();
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    (known && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_testkit::receiver::{Behaviour, Receiver};

    #[tokio::test]
    async fn a_delivery_is_passed_on_as_it_came_and_the_response_comes_back() {
        let program = Receiver::start().await;
        program.answer("/hook", [Behaviour::Body(422, "no such order".to_owned())]);
        let forward = Forward::new(target(&program.url("/hook")).expect("an address")).expect("a client");
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "evt_1".parse().expect("a value"));
        headers.insert(header::HOST, "elsewhere".parse().expect("a value"));
        headers.insert(header::CONNECTION, "close".parse().expect("a value"));
        let Forwarded { response, remark } =
            forward.pass_on(&headers, Bytes::from_static(b"{\"a\": 1}")).await;
        assert_eq!((response.status().as_u16(), &response.body()[..]), (422, &b"no such order"[..]));
        assert_eq!(remark, format!(" from {}", program.url("/hook")));
        let arrived = program.deliveries("/hook").remove(0);
        assert_eq!((&arrived.body[..], arrived.header("webhook-id")), (&b"{\"a\": 1}"[..], Some("evt_1")));
        assert_ne!(arrived.header("host"), Some("elsewhere"));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_counts_as_502() {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("loopback").port();
        let forward = Forward::new(target(&format!("http://127.0.0.1:{port}/")).expect("an address"))
            .expect("a client");
        let Forwarded { response, remark } = forward.pass_on(&HeaderMap::new(), Bytes::new()).await;
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        assert!(remark.contains("cannot forward to http://127.0.0.1"), "{remark}");
    }

    #[test]
    fn only_addresses_of_programs_are_taken() {
        assert!(target("http://localhost:3000/hook").is_ok() && target("https://[::1]/").is_ok());
        for wrong in ["", "localhost:3000", "/hook", "ftp://x/"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
