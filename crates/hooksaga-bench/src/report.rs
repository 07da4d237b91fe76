//! What was measured, against what must be reached.

use serde::Serialize;

/// What a figure must reach.
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
}

/// All figures of one run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub database: &'static str,
    pub figures: Vec<Figure>,
}

impl Report {
    /// Adds a figure, and shows it at once unless it goes into JSON.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, bar: Option<Bar>) {
        let reached = bar.is_none_or(|bar| bar.is_reached(value));
        self.figures.push(Figure { name: name.into(), value, unit, bar, reached });
    }

    /// The names of the bars that are missed.
    pub fn missed(&self) -> Vec<&str> {
        self.figures.iter().filter(|figure| !figure.reached).map(|figure| figure.name.as_str()).collect()
    }

    /// As the rows of a table for people.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["", "measured", "", "bar", ""].map(str::to_owned).to_vec()];
        rows.extend(self.figures.iter().map(|figure| {
            let bar = match figure.bar {
                Some(Bar::AtLeast(least)) => format!("≥ {}", number(least)),
                Some(Bar::AtMost(most)) => format!("≤ {}", number(most)),
                None => String::new(),
            };
            let verdict = match (figure.bar, figure.reached) {
                (None, _) => "",
                (_, true) => "ok",
                (_, false) => "MISSED",
            };
            vec![figure.name.clone(), number(figure.value), figure.unit.to_owned(), bar, verdict.to_owned()]
        }));
        rows
    }
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
    fn numbers_are_short() {
        assert_eq!(
            ["0.123", "1.50", "12.3", "12346"],
            [0.1234, 1.5, 12.34, 12345.6].map(number).each_ref().map(String::as_str)
        );
    }
}
