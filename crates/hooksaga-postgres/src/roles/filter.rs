//! WHERE clauses that are put together at run time. Their texts are constants of this program; what a caller gives
//! is always a parameter.

use crate::time::SqlTime;
use hooksaga_saga::Timestamp;
use hooksaga_store::{Conditions, PageRequest, TenantScope};
use std::{fmt::Write as _, ops::Range};
use tokio_postgres::types::ToSql;

/// Conditions that must all hold, and their parameters.
#[derive(Default)]
pub(crate) struct Filter {
    sql: String,
    parameters: Vec<Box<dyn ToSql + Sync + Send>>,
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
    pub(crate) fn add(&mut self, condition: &'static str, parameter: impl ToSql + Sync + Send + 'static) {
        self.add_around(condition, parameter, "");
    }

    /// The parameter stands between the two parts of the condition.
    pub(crate) fn add_around(
        &mut self,
        before: &'static str,
        parameter: impl ToSql + Sync + Send + 'static,
        behind: &'static str,
    ) {
        self.parameters.push(Box::new(parameter));
        let number = self.parameters.len();
        self.join();
        write!(self.sql, "{before}${number}{behind}").expect("writing to a String cannot fail");
    }

    /// The same, if there is a parameter.
    pub(crate) fn add_some(
        &mut self,
        condition: &'static str,
        parameter: Option<impl ToSql + Sync + Send + 'static>,
    ) {
        if let Some(parameter) = parameter {
            self.add(condition, parameter);
        }
    }

    /// What is true of rows whose `id` is in a range, and their order, newest first. `leading`: a column of which an index has
    /// the ids of each value in order, and its value. They become a range of that index, not an equality: where all rows of
    /// the value are old, the planner would go by the primary key, and pass everybody's since then.
    pub(crate) fn range(
        &mut self,
        id: &str,
        leading: Option<&(&'static str, String)>,
        ids: Range<i64>,
    ) -> (String, String) {
        let (start, end) = (self.number(ids.start), self.number(ids.end));
        match leading {
            Some((column, value)) => (
                format!("({column}, {id}) >= ({value}, {start}) AND ({column}, {id}) < ({value}, {end})"),
                format!("{column} DESC, {id} DESC"),
            ),
            None => (format!("{id} >= {start} AND {id} < {end}"), format!("{id} DESC")),
        }
    }

    fn compare(
        &mut self,
        column: &str,
        comparison: &str,
        parameter: Option<impl ToSql + Sync + Send + 'static>,
    ) {
        if let Some(parameter) = parameter {
            let number = self.number(parameter);
            self.add_fixed(&format!("{column} {comparison} {number}"));
        }
    }

    /// A parameter for a condition that is put together elsewhere: how to write it there.
    pub(crate) fn number(&mut self, parameter: impl ToSql + Sync + Send + 'static) -> String {
        self.parameters.push(Box::new(parameter));
        format!("${}", self.parameters.len())
    }

    fn join(&mut self) {
        self.sql.push_str(if self.sql.is_empty() { "WHERE " } else { " AND " });
    }

    /// Empty without conditions.
    pub(crate) fn where_clause(&self) -> &str {
        &self.sql
    }

    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect()
    }
}

impl Conditions for Filter {
    fn add_text(&mut self, column: &str, text: Option<impl AsRef<str>>) {
        self.compare(column, "=", text.map(|text| text.as_ref().to_owned()));
    }

    fn add_flag(&mut self, column: &str, flag: Option<bool>) {
        self.compare(column, "=", flag);
    }

    fn add_period(&mut self, column: &str, from: Option<Timestamp>, before: Option<Timestamp>) {
        self.compare(column, ">=", from.map(SqlTime));
        self.compare(column, "<", before.map(SqlTime));
    }

    fn add_fixed(&mut self, condition: &str) {
        self.join();
        self.sql.push_str(condition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_joined_and_numbered() {
        let mut filter = Filter::new();
        assert_eq!(filter.where_clause(), "");
        filter.add_some("a = ", Some(1_i64));
        filter.add_some("b = ", None::<i64>);
        filter.add_fixed("c");
        filter.add("d < ", "x".to_owned());
        filter.add_around("e IN (", 2_i64, ")");
        assert_eq!(filter.where_clause(), "WHERE a = $1 AND c AND d < $2 AND e IN ($3)");
        assert_eq!(filter.parameters().len(), 3);
        let mut ranges = Filter::new();
        let leading = ("t", ranges.number("x".to_owned()));
        let (condition, order) = ranges.range("i", Some(&leading), 0..9);
        assert_eq!((&*condition, &*order), ("(t, i) >= ($1, $2) AND (t, i) < ($1, $3)", "t DESC, i DESC"));
        let (condition, order) = ranges.range("i", None, 0..9);
        assert_eq!((&*condition, &*order), ("i >= $4 AND i < $5", "i DESC"));
        filter.add("f = ", 3_i64);
        let time = Timestamp::from_micros(1);
        filter.add_period("g", Some(time), Some(time));
        filter.add_period("h", None, Some(time));
        filter.add_period("i", None, None);
        assert_eq!(
            filter.where_clause(),
            "WHERE a = $1 AND c AND d < $2 AND e IN ($3) AND f = $4 AND g >= $5 AND g < $6 AND h < $7"
        );
    }
}
