//! The server's error responses (`application/problem+json`) as one clear line.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiProblem {
    #[serde(rename = "type")]
    kind: String,
    title: String,
    detail: String,
    /// What a conflict is with.
    pub(crate) existing_id: Option<i64>,
    pub(crate) errors: Vec<ApiFieldError>,
}

/// What is wrong with one field.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct ApiFieldError {
    pub(crate) field: String,
    pub(crate) detail: String,
}

impl ApiProblem {
    /// Reads an error response; one that is no problem document is shown by its beginning.
    pub(super) fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_else(|_| {
            let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
            Self { detail: text.split_whitespace().collect::<Vec<_>>().join(" "), ..Self::default() }
        })
    }

    /// The problem as one line.
    pub(crate) fn line(&self, status: u16) -> String {
        let mut parts = Vec::new();
        for text in [&self.title, &self.detail] {
            if !text.is_empty() && !parts.contains(text) {
                parts.push(text.clone());
            }
        }
        for error in &self.errors {
            let text = format!("{}: {}", error.field, error.detail);
            // The detail of a problem with one field often says it already.
            if !parts.iter().any(|part| part.contains(&text)) {
                parts.push(text);
            }
        }
        let advice = match status {
            401 => Some("set HOOKSAGA_API_KEY to a valid key (`hooksaga keys create` makes one)"),
            // The server says what is needed, unless it is a scope.
            403 if self.kind.ends_with(":scope-missing") => {
                Some("use a key that may do this (`hooksaga keys create`)")
            }
            404 => Some("the lists show what there is"),
            429 => Some("try again in a moment"),
            503 => Some("try again in a moment"),
            _ => None,
        };
        parts.extend(advice.map(str::to_owned));
        if parts.is_empty() {
            return format!("the server answered {status}");
        }
        format!("the server answered {status}: {}", parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_with_its_fields() {
        let body = br#"{"type":"about:blank","title":"Invalid","status":422,"detail":"1 field is invalid",
            "errors":[{"field":"event_type","detail":"must not be empty"}]}"#;
        assert_eq!(
            ApiProblem::read(body).line(422),
            "the server answered 422: Invalid; 1 field is invalid; event_type: must not be empty"
        );
    }

    #[test]
    fn nothing_is_said_twice() {
        let body = br#"{"title":"Invalid","detail":"a: bad","errors":[{"field":"a","detail":"bad"}]}"#;
        assert_eq!(ApiProblem::read(body).line(422), "the server answered 422: Invalid; a: bad");
    }

    #[test]
    fn an_answer_from_something_else_is_shown_by_its_beginning() {
        assert_eq!(
            ApiProblem::read(b"<h1>\nBad   Gateway</h1>").line(502),
            "the server answered 502: <h1> Bad Gateway</h1>"
        );
        assert_eq!(ApiProblem::read(b"").line(500), "the server answered 500");
    }
}
