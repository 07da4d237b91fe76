//! A server for tests that gives the answers it was told to, in order, and remembers what it was asked.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;

/// One answer.
#[derive(Clone)]
pub(crate) struct Reply(u16, String);

impl Reply {
    pub(crate) fn new(status: u16, body: &Value) -> Self {
        Self(status, body.to_string())
    }
}

/// The bodies that were sent.
#[derive(Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<Value>>>);

impl Requests {
    pub(crate) fn take(&self) -> Vec<Value> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }
}

/// Starts it; answers its address. Beyond the script it answers 500.
pub(crate) async fn serve(script: Vec<Reply>) -> (String, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (script, requests) = (Arc::new(Mutex::new(VecDeque::from(script))), Requests::default());
    let asked = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, asked) = (script.clone(), asked.clone());
            let service = service_fn(move |request| answer(request, script.clone(), asked.clone()));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, requests)
}

async fn answer(
    request: Request<Incoming>,
    script: Arc<Mutex<VecDeque<Reply>>>,
    asked: Requests,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("a whole request").to_bytes();
    asked.0.lock().expect("not poisoned").push(serde_json::from_slice(&body).unwrap_or(Value::Null));
    let reply = script.lock().expect("not poisoned").pop_front();
    let Reply(status, body) = reply.unwrap_or(Reply(500, "the script has ended".to_owned()));
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("0"));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    Ok(response)
}
