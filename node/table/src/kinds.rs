//! Guesses what a column is from its cells.

use crate::csv::Rows;
use crate::number::{grouped, parse};
use crate::options::Kind;
use crate::schema::is_missing;
use std::collections::HashSet;

/// What was guessed, with what a message needs.
#[derive(Debug)]
pub(crate) struct Guess {
    pub kind: Kind,
    /// Why, if it is ignored.
    pub why: String,
    /// Cells that are numbers.
    pub numbers: u64,
}

/// Most words in a column of numbers that count as mistakes, whatever its length; a guess.
const MISTAKES: u64 = 3;

/// Most distinct whole numbers of a target that are taken for classes, and the rows that each must have on average; a guess.
const CLASSES: usize = 20;
const CLASS_ROWS: usize = 5;

/// A text column has more different cells than this, and repeats each less than this often on average; guesses.
const TEXTS: usize = 20;
const REPEATS: usize = 2;

/// Texts with fewer words on average are names or numbers of something; a guess.
const WORDS: usize = 3;

/// Guesses the kind of an input.
pub(crate) fn input(rows: &Rows, column: usize, missing: &[String]) -> Guess {
    let cells = Cells {
        rows,
        column,
        missing,
    };
    let seen = Seen::of(cells);
    let (kind, why) = match cells.distinct(2) {
        0 => (Kind::Ignore, "every cell is missing".into()),
        1 if seen.gaps == 0 => (Kind::Ignore, "the same value in every row".into()),
        _ if seen.is_counter(cells) => (Kind::Ignore, "a different value in every row".into()),
        _ if seen.is_number() => (Kind::Number, String::new()),
        _ => match cells.distinct(usize::MAX) {
            distinct if distinct <= TEXTS || distinct * REPEATS <= seen.filled => {
                (Kind::Category, String::new())
            }
            _ if cells.words() >= WORDS * seen.filled => (Kind::Text, String::new()),
            distinct => {
                let distinct = grouped(distinct as u64);
                (Kind::Ignore, format!("{distinct} different texts"))
            }
        },
    };
    let numbers = seen.numbers;
    Guess { kind, why, numbers }
}

/// Guesses whether a target is a number or a class.
pub(crate) fn target(rows: &Rows, column: usize, missing: &[String]) -> Guess {
    let cells = Cells {
        rows,
        column,
        missing,
    };
    let seen = Seen::of(cells);
    let kind = match seen.is_number() && !seen.are_classes(cells) {
        true => Kind::Number,
        false => Kind::Category,
    };
    Guess {
        kind,
        why: String::new(),
        numbers: seen.numbers,
    }
}

/// The cells of a column.
#[derive(Clone, Copy)]
struct Cells<'a> {
    rows: &'a Rows,
    column: usize,
    missing: &'a [String],
}

impl<'a> Cells<'a> {
    /// Those that are there.
    fn filled(self) -> impl Iterator<Item = &'a str> {
        let cells = (0..self.rows.len()).map(move |row| self.rows.cell(row, self.column));
        cells.filter(move |cell| !is_missing(cell, self.missing))
    }

    /// How many of them differ, counted up to `most`: a set of a million measurements would take seconds.
    fn distinct(self, most: usize) -> usize {
        let mut distinct = HashSet::new();
        let added = self.filled().filter(|cell| distinct.insert(*cell));
        added.take(most).count()
    }

    /// How many words they have together.
    fn words(self) -> usize {
        self.filled().map(|cell| cell.split_whitespace().count()).sum()
    }
}

/// Counts over a column's cells.
struct Seen {
    filled: usize,
    gaps: usize,
    numbers: u64,
    /// Whether all numbers are whole.
    whole: bool,
    range: (f64, f64),
}

impl Seen {
    fn of(cells: Cells) -> Self {
        let mut seen = Self {
            filled: 0,
            gaps: 0,
            numbers: 0,
            whole: true,
            range: (f64::INFINITY, f64::NEG_INFINITY),
        };
        for cell in cells.filled() {
            seen.filled += 1;
            if let Some(value) = parse(cell) {
                seen.numbers += 1;
                seen.whole &= value.trunc() == value;
                seen.range = (seen.range.0.min(value), seen.range.1.max(value));
            }
        }
        seen.gaps = cells.rows.len() - seen.filled;
        seen
    }

    /// Whether the cells are numbers, but for a few mistakes.
    fn is_number(&self) -> bool {
        let words = self.filled as u64 - self.numbers;
        words <= MISTAKES.max(self.numbers / 100) && 10 * words < self.numbers
    }

    /// Whether the numbers are few and whole, so that they name classes.
    fn are_classes(&self, cells: Cells) -> bool {
        let distinct = cells.distinct(CLASSES + 1);
        self.whole && distinct <= CLASSES && distinct * CLASS_ROWS <= self.filled
    }

    /// Whether it numbers the rows: whole numbers without a gap or a repetition.
    fn is_counter(&self, cells: Cells) -> bool {
        let (least, most) = self.range;
        let all = self.gaps == 0 && self.numbers as usize == self.filled && self.whole;
        let fits = all && self.filled > 2 && most - least == (self.filled - 1) as f64;
        fits && cells.distinct(usize::MAX) == self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(cells: &str) -> (Kind, Kind) {
        let (rows, _) = Rows::read("t.csv", format!("a,b\n{cells}").replace(' ', ",b\n").as_bytes()).unwrap();
        let missing = ["", "NA"].map(str::to_owned);
        (input(&rows, 0, &missing).kind, target(&rows, 0, &missing).kind)
    }

    #[test]
    fn kinds_are_guessed_from_cells() {
        use Kind::{Category, Ignore, Number, Text};
        let many = |of: fn(usize) -> String| (0..200).map(|at| of(at) + " ").collect::<String>();
        for (cells, wanted) in [
            ("1.5 2.5 2.5 NA ", (Number, Number)),
            ("3 3 5 9 ", (Number, Number)),
            ("7 5 6 8 ", (Ignore, Number)),
            ("yes no no yes ", (Category, Category)),
            ("4 4 4 ", (Ignore, Number)),
            ("4 4 NA ", (Number, Number)),
            ("NA NA ", (Ignore, Category)),
            (&many(|at| format!("{}", at % 3)), (Number, Category)),
            (&many(|at| format!("name{at}")), (Ignore, Category)),
            (
                &many(|at| format!("the_{at}_th_row").replace('_', "\u{3000}")),
                (Text, Category),
            ),
            (&many(|at| format!("town{}", at % 9)), (Category, Category)),
            (&many(|at| format!("{}", at * at)), (Number, Number)),
            // A few mistakes in a column of numbers; a column in which words are common.
            (
                &many(|at| {
                    if at == 7 {
                        "five".into()
                    } else {
                        format!("{}", at * 3)
                    }
                }),
                (Number, Number),
            ),
            (
                &many(|at| {
                    if at % 9 == 7 {
                        "x".into()
                    } else {
                        format!("{}", at % 30)
                    }
                }),
                (Category, Category),
            ),
        ] {
            assert_eq!(guess(cells), wanted, "{cells:.60}");
        }
    }
}
