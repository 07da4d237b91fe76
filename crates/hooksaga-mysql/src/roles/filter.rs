//! WHERE clauses that are put together at run time. Their texts are constants of this program; what a caller gives is
//! always a parameter.

use mysql_async::{Params, Value};

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

    /// A condition without a parameter.
    pub(crate) fn add_fixed(&mut self, condition: &'static str) {
        self.sql.push_str(if self.sql.is_empty() { "WHERE " } else { " AND " });
        self.sql.push_str(condition);
    }

    /// Empty without conditions.
    pub(crate) fn where_clause(&self) -> &str {
        &self.sql
    }

    pub(crate) fn parameters(&self) -> Params {
        match self.parameters.is_empty() {
            true => Params::Empty,
            false => Params::Positional(self.parameters.clone()),
        }
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
        assert_eq!(filter.where_clause(), "WHERE a = ? AND c AND d < ?");
        assert_eq!(filter.parameters(), Params::Positional(vec![Value::from(1), Value::from("x")]));
    }
}
