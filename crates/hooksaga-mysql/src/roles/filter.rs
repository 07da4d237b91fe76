//! WHERE clauses that are put together at run time. Their texts are constants of this program; what a caller gives is
//! always a parameter.

use crate::time::SqlTime;
use hooksaga_saga::Timestamp;
use hooksaga_store::{Conditions, PageRequest, TenantScope};
use mysql_async::{Params, Value};
use std::ops::Range;

/// Conditions that must all hold, and their parameters.
#[derive(Default)]
pub(crate) struct Filter {
    sql: String,
    parameters: Vec<Value>,
}

impl Filter {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The rows of a page, in a table whose rows have an id and a tenant.
    pub(crate) fn of_page(scope: &TenantScope, page: PageRequest) -> Self {
        let mut filter = Self::new();
        filter.add_some("id < ", page.before);
        filter.add_text("tenant", scope.tenant());
        filter
    }

    /// `condition` ends where its parameter stands, such as `id < `.
    pub(crate) fn add(&mut self, condition: &'static str, parameter: impl Into<Value>) {
        self.add_fixed(condition);
        self.sql.push('?');
        self.parameters.push(parameter.into());
    }

    /// The same, if there is a parameter.
    pub(crate) fn add_some(&mut self, condition: &'static str, parameter: Option<impl Into<Value>>) {
        if let Some(parameter) = parameter {
            self.add(condition, parameter);
        }
    }

    fn compare(&mut self, column: &str, comparison: &str, parameter: Option<impl Into<Value>>) {
        if let Some(parameter) = parameter {
            self.add_fixed(column);
            self.sql.push_str(comparison);
            self.parameters.push(parameter.into());
        }
    }

    /// Any of these constants of this program.
    pub(crate) fn add_any(&mut self, column: &'static str, values: &[&'static str]) {
        if values.is_empty() {
            return;
        }
        self.add_fixed(column);
        self.sql.push_str(" IN (");
        for (i, value) in values.iter().enumerate() {
            self.sql.push_str(if i == 0 { "?" } else { ",?" });
            self.parameters.push((*value).into());
        }
        self.sql.push(')');
    }

    /// `column` is in one of these ranges.
    pub(crate) fn add_ranges(&mut self, column: &str, ranges: impl Iterator<Item = Range<i64>>) {
        let mut alternatives = Vec::new();
        for ids in ranges {
            alternatives.push(format!("{column} >= ? AND {column} < ?"));
            self.parameters.extend([Value::from(ids.start), Value::from(ids.end)]);
        }
        self.add_fixed(&format!("({})", alternatives.join(" OR ")));
    }

    /// Closes a parenthesis that a condition opened.
    pub(crate) fn close(&mut self) {
        self.sql.push(')');
    }

    /// Empty without conditions.
    pub(crate) fn where_clause(&self) -> &str {
        &self.sql
    }

    /// With one that stands before the conditions.
    pub(crate) fn parameters_after(&self, first: impl Into<Value>) -> Params {
        Params::Positional(std::iter::once(first.into()).chain(self.parameters.iter().cloned()).collect())
    }

    /// The parameters, to stand among others.
    pub(crate) fn values(&self) -> &[Value] {
        &self.parameters
    }

    pub(crate) fn parameters(&self) -> Params {
        match self.parameters.is_empty() {
            true => Params::Empty,
            false => Params::Positional(self.parameters.clone()),
        }
    }
}

impl Conditions for Filter {
    /// The server would refuse to compare the column with what is not ASCII.
    fn add_text(&mut self, column: &str, text: Option<impl AsRef<str>>) {
        self.compare(column, " = ?", text.as_ref().map(AsRef::as_ref));
    }

    fn add_flag(&mut self, column: &str, flag: Option<bool>) {
        self.compare(column, " = ?", flag);
    }

    fn add_period(&mut self, column: &str, from: Option<Timestamp>, before: Option<Timestamp>) {
        self.compare(column, " >= ?", from.map(SqlTime));
        self.compare(column, " < ?", before.map(SqlTime));
    }

    fn add_fixed(&mut self, condition: &str) {
        self.sql.push_str(if self.sql.is_empty() { "WHERE " } else { " AND " });
        self.sql.push_str(condition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_joined_in_the_order_of_their_parameters() {
        let mut filter = Filter::new();
        assert_eq!((filter.where_clause(), filter.parameters()), ("", Params::Empty));
        filter.add_some("a = ", Some(1_i64));
        filter.add_some("b = ", None::<i64>);
        filter.add_fixed("c");
        filter.add("d < ", "x");
        filter.add_any("e", &["y", "z"]);
        filter.add_any("f", &[]);
        assert_eq!(filter.where_clause(), "WHERE a = ? AND c AND d < ? AND e IN (?,?)");
        let values = vec![Value::from(1), Value::from("x"), Value::from("y"), Value::from("z")];
        assert_eq!(filter.parameters(), Params::Positional(values));
    }

    #[test]
    fn a_period_has_the_ends_that_are_given() {
        let mut filter = Filter::new();
        filter.add_period("a", Some(Timestamp::from_micros(1)), Some(Timestamp::from_micros(2)));
        filter.add_period("b", None, Some(Timestamp::from_micros(3)));
        filter.add_period("c", None, None);
        assert_eq!(filter.where_clause(), "WHERE a >= ? AND a < ? AND b < ?");
        let values = [1, 2, 3].map(|micros| Value::from(SqlTime(Timestamp::from_micros(micros))));
        assert_eq!(filter.parameters(), Params::Positional(values.into()));
    }
}
