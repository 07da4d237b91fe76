//! `delete` and `test`, and the headers that `add` and `update` take.

use super::One;
use crate::{
    error::{CliError, CliResult},
    output,
};
use hooksaga_saga::{Invalid, RequestHeaderName, RequestHeaderValue, RequestHeaders};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A header, given as `NAME: VALUE`.
#[derive(Clone, Debug)]
pub(super) struct Header(RequestHeaderName, RequestHeaderValue);

pub(super) fn header(text: &str) -> Result<Header, String> {
    let (name, value) = text.split_once(':').ok_or("give it as NAME: VALUE")?;
    let said = |invalid: Invalid| invalid.to_string();
    Ok(Header(name.trim().parse().map_err(said)?, value.trim().parse().map_err(said)?))
}

/// The headers of a request's body.
pub(super) fn headers(given: &[Header]) -> CliResult<Value> {
    let pairs = given.iter().map(|Header(name, value)| (name.clone(), value.clone()));
    let headers = RequestHeaders::new(pairs)
        .map_err(|invalid| CliError::new(format!("the headers {invalid}: change --header")))?;
    let members = headers.iter().map(|(name, value)| (name.to_string(), Value::from(value.reveal())));
    Ok(Value::Object(members.collect::<Map<_, _>>()))
}

pub(super) async fn delete(one: One) -> CliResult {
    let id = one.id;
    let answer = one.remote.connect()?.delete(&format!("/v1/subscriptions/{id}")).await?;
    answer.expect_success()?;
    if !one.remote.json {
        output::line(format!(
            "subscription {id} is deleted: its open deliveries end as dead letters, each when it is due"
        ));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Sent {
    event_id: i64,
    saga_id: i64,
}

pub(super) async fn test(one: One) -> CliResult {
    let answer = one.remote.connect()?.post(&format!("/v1/subscriptions/{}/test", one.id), "").await?;
    one.remote.print(&answer, |Sent { event_id, saga_id }| {
        output::line(format!(
            "test event {event_id} is sent as delivery {saga_id}: see `hooksaga deliveries show {saga_id}`"
        ));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn headers_are_given_as_name_and_value() {
        let given = ["X-Key: a b: c", "authorization:Bearer x"].map(|text| header(text).expect("a header"));
        let body = headers(&given).expect("two");
        assert_eq!(body, json!({ "x-key": "a b: c", "authorization": "Bearer x" }));
        for wrong in ["no-colon", ": x", "x:", "host: x", "x-é: y"] {
            let said = header(wrong).expect_err(wrong);
            assert!(!said.is_empty(), "{wrong}");
        }
        let twice = ["X-Key: a", "x-key: b"].map(|text| header(text).expect("a header"));
        assert!(headers(&twice).is_err());
    }
}
