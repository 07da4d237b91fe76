//! Query strings.

use form_urlencoded::Serializer;

/// A path and its query, in the making.
pub(in crate::cli) struct QueryString {
    path: String,
    pairs: Vec<(&'static str, String)>,
}

impl QueryString {
    pub(in crate::cli) fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), pairs: Vec::new() }
    }

    /// Adds a parameter, if there is a value for it.
    pub(in crate::cli) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.pairs.extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// The same with another value for one parameter, or none.
    pub(in crate::cli) fn set(&mut self, name: &'static str, value: Option<String>) {
        self.pairs.retain(|(present, _)| *present != name);
        self.pairs.extend(value.map(|value| (name, value)));
    }

    pub(in crate::cli) fn has_filter(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Path and query, as they stand in a request.
    pub(in crate::cli) fn target(&self) -> String {
        if self.pairs.is_empty() {
            return self.path.clone();
        }
        let mut query = Serializer::new(String::new());
        query.extend_pairs(&self.pairs);
        format!("{}?{}", self.path, query.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_absent_ones_left_out() {
        let mut query =
            QueryString::new("/v1/x").with("a", Some("b&c=d é")).with("n", None::<i64>).with("i", Some(7));
        assert_eq!(query.target(), "/v1/x?a=b%26c%3Dd+%C3%A9&i=7");
        query.set("a", None);
        query.set("cursor", Some("Z".into()));
        query.set("cursor", Some("Y".into()));
        assert_eq!(query.target(), "/v1/x?i=7&cursor=Y");
        assert_eq!(QueryString::new("/v1/x").target(), "/v1/x");
    }
}
