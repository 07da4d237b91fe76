//! A client of the HTTP API, written from its documentation alone.

use super::{eventually, json};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A client of one server.
#[derive(Clone)]
pub(crate) struct Api {
    address: String,
    key: Option<String>,
}

/// What the server answered.
#[derive(Clone, Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl ApiResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON: {}", self.text()))
    }

    /// The body, if the status is this one.
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }
}

impl Api {
    pub(crate) fn new(address: &str, key: Option<&str>) -> Self {
        Self { address: address.to_owned(), key: key.map(ToOwned::to_owned) }
    }

    pub(crate) async fn get(&self, path: &str) -> ApiResponse {
        self.send("GET", path, &[], b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> ApiResponse {
        self.send("PATCH", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    /// The same where the server may be gone: nothing if there was no whole answer.
    pub(crate) async fn try_get(&self, path: &str) -> Option<ApiResponse> {
        self.try_send("GET", path, &[], b"").await
    }

    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> Option<ApiResponse> {
        self.try_send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
            .await
    }

    /// The same, and an error if there was nobody to connect to.
    pub(crate) async fn post_unless_refused(
        &self,
        path: &str,
        body: &Value,
    ) -> std::io::Result<Option<ApiResponse>> {
        let headers = [("content-type", "application/json")];
        Ok(whole(&self.exchange("POST", path, &headers, body.to_string().as_bytes()).await?))
    }

    async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<ApiResponse> {
        whole(&self.exchange(method, path, headers, body).await.ok()?)
    }

    /// One request on a connection of its own.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> ApiResponse {
        parse(&self.exchange(method, path, headers, body).await.unwrap())
    }

    /// The bytes that come back.
    async fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        if let Some(key) = &self.key {
            head += &format!("authorization: Bearer {key}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        // A server that refuses early may close before it has read everything: its answer counts.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        Ok(answer)
    }

    /// Ingests an event; its id.
    pub(crate) async fn event(&self, event_type: &str, payload: &Value) -> i64 {
        let event = json!({"event_type": event_type, "payload": payload});
        self.post("/v1/events", &event).await.expect(201)["id"].as_i64().unwrap()
    }

    /// Creates a subscription and waits until it is verified; its id and secret.
    pub(crate) async fn verified_subscription(&self, event_type: &str, url: &str) -> (i64, String) {
        let created = self
            .post("/v1/subscriptions", &json!({"event_type": event_type, "callback_url": url}))
            .await
            .expect(201);
        let id = created["id"].as_i64().unwrap();
        eventually("the subscription is verified", || async {
            self.subscription(id).await["verified"].as_bool().unwrap().then_some(())
        })
        .await;
        (id, created["secret"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn subscription(&self, id: i64) -> Value {
        self.get(&format!("/v1/subscriptions/{id}")).await.expect(200)
    }

    /// The deliveries of an event, once it is routed.
    pub(crate) async fn deliveries(&self, event_id: i64) -> Vec<Value> {
        eventually("the event is routed", || async {
            // Looked for in the text: a payload may hold what this client's JSON library cannot.
            let event = self.get(&format!("/v1/events/{event_id}")).await;
            event.text().contains(r#""routed":true"#).then_some(())
        })
        .await;
        let listed = self.get(&format!("/v1/deliveries?event_id={event_id}")).await.expect(200);
        listed["items"].as_array().unwrap().clone()
    }

    /// The only delivery of an event once it has this status, with its attempts.
    pub(crate) async fn delivery_with_status(&self, event_id: i64, status: &str) -> Value {
        let deliveries = self.deliveries(event_id).await;
        assert_eq!(deliveries.len(), 1, "{deliveries:?}");
        self.saga_with_status(deliveries[0]["saga_id"].as_i64().unwrap(), status).await
    }

    /// A delivery once it has this status, with its attempts.
    pub(crate) async fn saga_with_status(&self, saga_id: i64, status: &str) -> Value {
        eventually(&format!("saga {saga_id} is {status}"), || async {
            let saga = self.get(&format!("/v1/deliveries/{saga_id}")).await.expect(200);
            (saga["status"] == status).then_some(saga)
        })
        .await
    }
}

/// The answer, if all of it is there.
fn whole(bytes: &[u8]) -> Option<ApiResponse> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?.to_ascii_lowercase();
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "))?;
    (bytes.len() - end - 4 == length.parse::<usize>().ok()?).then(|| parse(bytes))
}

fn parse(bytes: &[u8]) -> ApiResponse {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("an HTTP answer");
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut answer = ApiResponse { status, headers, body: bytes[end + 4..].to_vec() };
    if answer.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        answer.body = unchunk(&answer.body);
    }
    answer
}

fn unchunk(mut chunked: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = chunked.windows(2).position(|window| window == b"\r\n").expect("a chunk size");
        let size = usize::from_str_radix(std::str::from_utf8(&chunked[..end]).unwrap().trim(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&chunked[end + 2..end + 2 + size]);
        chunked = &chunked[end + 4 + size..];
    }
}
