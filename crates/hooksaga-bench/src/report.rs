//! What was measured, against what must be reached (bars) and what is aimed at (goals).

use crate::{error::BenchError, machine::Watch, targets::Yardstick};
use serde::Serialize;
use std::sync::Arc;

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    pub(crate) fn is_reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("≥ {}", number(least)),
            Self::AtMost(most) => format!("≤ {}", number(most)),
        }
    }
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// Whether the bar is reached; true where there is none.
    pub reached: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Bar>,
    /// Whether the goal is reached; true where there is none.
    pub goal_reached: bool,
    /// The part of the machine's CPU time that others used meanwhile.
    pub others: f64,
}

/// A measurement that gave no figures.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub name: String,
    pub reason: String,
}

/// A table of the database, as the server's statistics have it.
#[derive(Clone, Debug, Serialize)]
pub struct TableState {
    pub name: String,
    pub rows: i64,
    /// Row versions that vacuum has still to remove.
    pub dead_rows: i64,
    /// With its indexes.
    pub bytes: i64,
}

/// The tables at the end of a minute of sustained load.
#[derive(Clone, Debug, Serialize)]
pub struct TablesOfMinute {
    pub minute: u32,
    pub database_bytes: u64,
    pub tables: Vec<TableState>,
}

/// All figures of one run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub database: &'static str,
    pub figures: Vec<Figure>,
    pub failures: Vec<Failure>,
    /// Where the server has such statistics.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TablesOfMinute>,
    #[serde(skip)]
    watch: Option<Arc<Watch>>,
}

impl Report {
    pub(crate) fn new(watch: &Arc<Watch>) -> Self {
        Self { watch: Some(Arc::clone(watch)), ..Self::default() }
    }

    /// Adds a figure that has a bar, or nothing to be held against.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, bar: Option<Bar>) {
        self.hold(name, value, unit, Yardstick { bar, goal: None });
    }

    /// Adds a figure, and what it is held against.
    pub(crate) fn hold(
        &mut self,
        name: impl Into<String>,
        value: f64,
        unit: &'static str,
        target: Yardstick,
    ) {
        let is_reached = |bar: Option<Bar>| bar.is_none_or(|bar| bar.is_reached(value));
        self.figures.push(Figure {
            name: name.into(),
            value,
            unit,
            bar: target.bar,
            reached: is_reached(target.bar),
            goal: target.goal,
            goal_reached: is_reached(target.goal),
            others: self.watch.as_ref().map_or(0.0, |watch| watch.others_lately()),
        });
    }

    /// Notes that a measurement gave no figures; the others go on.
    pub(crate) fn fail(&mut self, name: &str, error: &BenchError) {
        self.failures.push(Failure { name: name.to_owned(), reason: error.to_string() });
    }

    /// Adds how busy the machine was with other things.
    pub(crate) fn close(&mut self) {
        let Some((others, stolen)) = self.watch.as_ref().map(|watch| watch.whole()) else { return };
        self.add("CPU used by other processes, whole run", others * 100.0, "% of the machine", None);
        self.add("CPU taken by the host, whole run", stolen * 100.0, "% of the machine", None);
    }

    /// The names of the bars that are missed, and of the measurements that gave no figures.
    pub fn missed(&self) -> Vec<&str> {
        let missed = self.figures.iter().filter(|figure| !figure.reached).map(|figure| figure.name.as_str());
        missed.chain(self.failures.iter().map(|failure| failure.name.as_str())).collect()
    }

    /// The names of the goals that are missed.
    pub fn missed_goals(&self) -> Vec<&str> {
        self.figures.iter().filter(|figure| !figure.goal_reached).map(|figure| figure.name.as_str()).collect()
    }

    /// As the rows of a table for people.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let verdict = |bar: Option<Bar>, reached: bool, missed: &str| match (bar, reached) {
            (None, _) => String::new(),
            (_, true) => "ok".to_owned(),
            (_, false) => missed.to_owned(),
        };
        let text = |bar: Option<Bar>| bar.map(Bar::text).unwrap_or_default();
        let mut rows =
            vec![["", "measured", "", "bar", "", "goal", "", "others"].map(str::to_owned).to_vec()];
        rows.extend(self.figures.iter().map(|figure| {
            vec![
                figure.name.clone(),
                number(figure.value),
                figure.unit.to_owned(),
                text(figure.bar),
                verdict(figure.bar, figure.reached, "MISSED"),
                text(figure.goal),
                verdict(figure.goal, figure.goal_reached, "missed"),
                format!("{:.0} %", figure.others * 100.0),
            ]
        }));
        rows
    }
}

/// The tables of each minute, as the rows of a table for people; nothing if there are none.
pub fn rows_of_tables(minutes: &[TablesOfMinute]) -> Vec<Vec<String>> {
    let Some(first) = minutes.first() else { return Vec::new() };
    let mebibytes = |bytes: u64| (bytes >> 20).to_string();
    let mut titles = vec!["rows/dead/MiB".to_owned(), "all MiB".to_owned()];
    titles.extend(first.tables.iter().map(|table| table.name.clone()));
    let mut rows = vec![titles];
    rows.extend(minutes.iter().map(|of| {
        let mut row = vec![format!("minute {}", of.minute), mebibytes(of.database_bytes)];
        row.extend(of.tables.iter().map(|table| {
            let bytes = u64::try_from(table.bytes).unwrap_or(0);
            format!("{}/{}/{}", table.rows, table.dead_rows, mebibytes(bytes))
        }));
        row
    }));
    rows
}

/// Three significant digits, or whole where that is more.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        small if small >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bar_is_named() {
        let mut report = Report::default();
        report.add("fast enough", 0.2, "", Some(Bar::AtLeast(0.1)));
        report.add("too slow", 3.0, "ms", Some(Bar::AtMost(2.5)));
        report.add("for information", 1.0, "", None);
        assert_eq!(report.missed(), ["too slow"]);
        let table = report.rows().concat().join("\n");
        assert!(table.contains("MISSED") && table.contains("≤ 2.50"), "{table}");
    }

    #[test]
    fn a_missed_goal_is_not_a_missed_bar() {
        let mut report = Report::default();
        let target = Yardstick { bar: Some(Bar::AtMost(10.0)), goal: Some(Bar::AtMost(2.0)) };
        report.hold("within both", 1.0, "ms", target);
        report.hold("within the bar", 5.0, "ms", target);
        report.hold("in neither", 11.0, "ms", target);
        assert_eq!(report.missed(), ["in neither"]);
        assert_eq!(report.missed_goals(), ["within the bar", "in neither"]);
        let row = &report.rows()[2];
        assert_eq!([&row[4], &row[6]], ["ok", "missed"]);
    }

    #[test]
    fn a_measurement_without_figures_counts_as_missed() {
        let mut report = Report::default();
        report.add("fine", 1.0, "", Some(Bar::AtMost(2.0)));
        report.fail("copies", &BenchError::new("only 3 of 4 deliveries arrived"));
        assert_eq!(report.missed(), ["copies"]);
    }

    #[test]
    fn the_tables_of_a_minute_are_one_row() {
        let table =
            |name: &str, dead_rows| TableState { name: name.to_owned(), rows: 10, dead_rows, bytes: 3 << 20 };
        let of = |minute, dead| TablesOfMinute {
            minute,
            database_bytes: 70 << 20,
            tables: vec![table("events", dead), table("removals", 0)],
        };
        let rows = rows_of_tables(&[of(1, 5), of(2, 7)]);
        assert_eq!(rows[0], ["rows/dead/MiB", "all MiB", "events", "removals"]);
        assert_eq!(rows[2], ["minute 2", "70", "10/7/3", "10/0/3"]);
        assert!(rows_of_tables(&[]).is_empty());
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            ["0.123", "1.50", "12.3", "12346"],
            [0.1234, 1.5, 12.34, 12345.6].map(number).each_ref().map(String::as_str)
        );
    }
}
