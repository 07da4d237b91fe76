//! The examples of `docs/API.md`, which a test compares with what the server returns.
//!
//! An operation is a heading such as ``### `POST /v1/events` ``; below it stand a command whose `-d '…'` is the request, and
//! a block `json 201` with the response. What follows another heading belongs to no operation.

use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/API.md");

/// One exchange.
#[derive(Debug, PartialEq)]
pub(super) struct Example {
    /// In lower case.
    pub(super) method: String,
    /// With the names of its parameters: `/v1/events/{id}`.
    pub(super) path: &'static str,
    pub(super) request: Option<Value>,
    pub(super) status: &'static str,
    pub(super) response: Value,
}

/// Every exchange that has a response in JSON.
pub(super) fn all() -> Vec<Example> {
    let mut examples = Vec::new();
    let mut operation: Option<(&str, &str)> = None;
    let mut request = None;
    let mut rest = PAGE;
    while let Some((line, tail)) = rest.split_once('\n') {
        rest = tail;
        if let Some(heading) = line.strip_prefix('#') {
            operation = heading
                .trim_start_matches('#')
                .trim()
                .trim_matches('`')
                .split_once(' ')
                .filter(|(_, path)| path.starts_with('/'));
            request = None;
            continue;
        }
        let Some(kind) = line.strip_prefix("```") else { continue };
        let (block, tail) = match rest.strip_prefix("```") {
            Some(tail) => ("", tail),
            None => rest.split_once("\n```").unwrap_or((rest, "")),
        };
        rest = tail;
        if kind == "sh" {
            request = block
                .split_once(" -d '")
                .and_then(|(_, body)| serde_json::from_str(body.trim_end().trim_end_matches('\'')).ok());
        }
        let Some((status, (method, path))) = kind.strip_prefix("json ").zip(operation) else { continue };
        let Ok(response) = serde_json::from_str(block) else { continue };
        let (method, request) = (method.to_lowercase(), request.take());
        examples.push(Example { method, path, request, status, response });
    }
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_the_page_is_understood() {
        let examples = all();
        let blocks = PAGE.lines().filter(|line| line.starts_with("```json ")).count();
        // A few stand in the story, about dead letters and operational events, and belong to no operation.
        assert!(examples.len() > 25 && examples.len() + 6 >= blocks, "{} of {blocks}", examples.len());
        let first =
            examples.iter().find(|example| (example.method.as_str(), example.path) == ("post", "/v1/events"));
        let first = first.expect("ingestion has an example");
        assert_eq!(
            (first.status, first.request.as_ref().map(|body| &body["external_id"])),
            ("201", Some(&first.response["external_id"]))
        );
        let commands = PAGE.matches(" -d '").count();
        assert!(examples.iter().filter(|example| example.request.is_some()).count() + 5 >= commands);
    }
}
