//! WHERE clauses that are put together at run time. Their texts are constants of this program; what a caller gives
//! is always a parameter.

use hooksaga_saga::Timestamp;
use hooksaga_store::Conditions;
use rusqlite::types::Value;

/// Conditions that must all hold, and their values.
#[derive(Default)]
pub(crate) struct Filter {
    sql: String,
    values: Vec<Value>,
}

impl Filter {
    /// Adds `condition`, which has one `?`, if there is a value for it.
    pub(crate) fn add_some(&mut self, condition: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.add_fixed(condition);
            self.values.push(value.into());
        }
    }

    /// Adds `condition`, which has one `?`, for any of the values.
    pub(crate) fn add_any<V: Into<Value>>(&mut self, condition: &str, values: impl Iterator<Item = V>) {
        let first = self.values.len();
        self.values.extend(values.map(Into::into));
        let alternatives = vec![condition; self.values.len() - first];
        self.add_fixed(&format!("({})", alternatives.join(" OR ")));
    }

    /// Adds `condition`, which has a `?` for each of the values.
    pub(crate) fn add_with(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.add_fixed(condition);
        self.values.extend(values);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sql.is_empty()
    }

    /// Every condition with AND before it, to stand after another one.
    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    pub(crate) fn values(&self) -> Vec<Value> {
        self.values.clone()
    }
}

impl Conditions for Filter {
    fn add_text(&mut self, column: &str, text: Option<impl AsRef<str>>) {
        self.add_some(&format!("{column} = ?"), text.map(|text| text.as_ref().to_owned()));
    }

    fn add_flag(&mut self, column: &str, flag: Option<bool>) {
        self.add_some(&format!("{column} = ?"), flag);
    }

    fn add_period(&mut self, column: &str, from: Option<Timestamp>, before: Option<Timestamp>) {
        self.add_some(&format!("{column} >= ?"), from.map(Timestamp::as_micros));
        self.add_some(&format!("{column} < ?"), before.map(Timestamp::as_micros));
    }

    fn add_fixed(&mut self, condition: &str) {
        self.sql.push_str(" AND ");
        self.sql.push_str(condition);
    }
}
