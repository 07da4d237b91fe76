//! Aligned tables, and lists of facts.

use super::{Color, Painter, clean_line};

/// One cell: its text and what it means.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    color: Color,
}

impl Cell {
    /// Text from elsewhere: what could take over the terminal is taken out.
    pub(crate) fn new(color: Color, text: impl AsRef<str>) -> Self {
        Self { text: clean_line(text.as_ref()), color }
    }

    /// A status in its colour.
    pub(crate) fn status(text: &str) -> Self {
        Self::new(Color::of_status(text), text)
    }

    /// The same in other words.
    pub(crate) fn with_text(self, text: impl AsRef<str>) -> Self {
        Self::new(self.color, text)
    }

    /// A dash where there is nothing.
    pub(crate) fn optional(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::new(Color::Faint, "-"), |text| Self::new(Color::Plain, text))
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Color::Plain, text.to_string())
    }
}

/// A table with titles.
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(|title| Cell::new(Color::Faint, title)).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Its lines. A column without any value is left out.
    pub(crate) fn lines(&self, painter: Painter) -> Vec<String> {
        let (titles, rows) = self.rows.split_first().expect("a table has its titles");
        let used =
            |column: usize| rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.text.is_empty()));
        let used: Vec<bool> = (0..titles.len()).map(used).collect();
        let cut = |row: &Vec<Cell>| {
            row.iter().zip(&used).filter(|(_, used)| **used).map(|(cell, _)| cell.clone()).collect()
        };
        let rows: Vec<Vec<Cell>> = self.rows.iter().map(cut).collect();
        align(&rows, painter)
    }

    pub(crate) fn print(&self) {
        self.lines(Painter::for_stdout()).iter().for_each(super::line);
    }
}

/// Names and values below each other.
pub(crate) fn facts(facts: Vec<(&str, Cell)>) -> Vec<String> {
    let rows: Vec<_> =
        facts.into_iter().map(|(name, value)| vec![Cell::new(Color::Faint, name), value]).collect();
    align(&rows, Painter::for_stdout())
}

/// Columns of text, each as wide as its widest cell.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<Cell>> = rows.iter().map(|row| row.iter().map(Cell::from).collect()).collect();
    align(&rows, Painter::for_stdout())
}

fn align(rows: &[Vec<Cell>], painter: Painter) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(Cell::width).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let mut line = String::new();
            // How many blanks stand before the next cell: none at the end of a line.
            let mut blanks = 0;
            for (cell, width) in row.iter().zip(&widths) {
                if !cell.text.is_empty() {
                    line.extend(std::iter::repeat_n(' ', blanks));
                    line.push_str(&painter.paint(cell.color, &cell.text));
                    blanks = 0;
                }
                blanks += width - cell.width() + 2;
            }
            line
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["ID".into(), "NAME".into()], vec!["12345".into(), "x".into()]];
        assert_eq!(table(&rows), ["ID     NAME", "12345  x"]);
    }

    #[test]
    fn colours_and_empty_cells_do_not_shift_columns() {
        let mut table = Table::new(&["A", "STATUS", "C"]);
        table.row(vec![1.into(), Cell::status("Completed"), "x".into()]);
        table.row(vec![22.into(), "".into(), "é".into()]);
        table.row(vec![3.into(), Cell::optional(None::<String>), "".into()]);
        assert_eq!(
            table.lines(Painter::new(false)),
            ["A   STATUS     C", "1   Completed  x", "22             é", "3   -"]
        );
        let painted = table.lines(Painter::new(true));
        assert_eq!(painted[1], "1   \x1b[32mCompleted\x1b[0m  x");
    }

    #[test]
    fn a_column_with_nothing_in_it_is_left_out() {
        let mut table = Table::new(&["A", "EMPTY", "C"]);
        table.row(vec![1.into(), "".into(), "x".into()]);
        assert_eq!(table.lines(Painter::new(false)), ["A  C", "1  x"]);
    }

    #[test]
    fn a_cell_stays_on_its_line() {
        let mut table = Table::new(&["A", "B"]);
        table.row(vec!["a\nb".into(), "\x1b[2J".into()]);
        assert_eq!(table.lines(Painter::new(false))[1], "a\u{fffd}b  \u{fffd}[2J");
    }
}
