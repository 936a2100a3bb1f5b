//! Guesses what a column is from its cells.

mod doubts;

pub(crate) use doubts::Doubt;
use doubts::Written;

use crate::category::key;
use crate::csv::Rows;
use crate::date::{Moment, Order, whole};
use crate::number::{Notation, grouped, is_ambiguous, is_currency, measured};
use crate::options::Kind;
use crate::schema::{is_gap, is_missing};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// What was guessed, with what a message needs.
#[derive(Clone, Debug)]
pub(crate) struct Guess {
    pub kind: Kind,
    /// Why, if it is ignored.
    pub why: String,
    /// Cells that are numbers, or dates of a column of dates.
    pub fitting: u64,
    /// How its numbers are written.
    pub notation: Notation,
    /// How its dates are written; none if nothing tells which of two numbers is the day.
    pub order: Option<Order>,
    /// Other cells of a column in which most are numbers, in words; empty if it is another column.
    pub spoilt: String,
    /// What its numbers may be instead.
    pub doubt: Option<Doubt>,
}

/// Most words in a column of numbers that count as mistakes, whatever its length; a guess.
const MISTAKES: u64 = 3;

/// Least numbers with marks, and least without, to tell that marks separate thousands; a guess.
const MARKED: u64 = 3;

/// Least different numbers such as 122024 that must all be dates for them to be dates. One in fifty numbers is, by chance; a guess.
const CODED: usize = 8;

/// Most distinct whole numbers of a target that are taken for classes, and the rows that each must have on average; a guess.
const CLASSES: usize = 20;
const CLASS_ROWS: usize = 5;

/// A text column has more different cells than this, and repeats each less than this often on average; guesses.
const TEXTS: usize = 20;
const REPEATS: usize = 2;

/// Texts with fewer words on average are names or numbers of something; a guess.
const WORDS: usize = 3;

/// Guesses the kind of each column, as an input and as a target.
pub(crate) struct Guesses<'a> {
    rows: &'a Rows,
    missing: &'a [String],
    /// Of each column, how many cells are numbers with a point and with a comma.
    tallies: Vec<[Tally<'a>; 2]>,
    /// Whether the file has commas before decimals, as far as can be told.
    comma: bool,
    /// The column by whose times the rows are divided.
    pub time: Option<usize>,
}

/// The cells of a column that are numbers in one notation.
#[derive(Default)]
struct Tally<'a> {
    numbers: u64,
    /// Those with a unit.
    units: BTreeMap<&'a str, u64>,
}

impl<'a> Tally<'a> {
    fn add(&mut self, measured: Option<(f64, &'a str)>) {
        if let Some((_, unit)) = measured {
            self.numbers += 1;
            if !unit.is_empty() {
                *self.units.entry(unit).or_default() += 1;
            }
        }
    }

    /// The unit that most cells have. A bare number may be an amount of a currency, but a weight or a percentage only if most of
    /// them say so.
    fn unit(&self) -> &'a str {
        let bare = self.numbers - self.units.values().sum::<u64>();
        let units = self
            .units
            .iter()
            .filter(|(unit, count)| **unit != "%" && is_currency(unit) || **count > bare);
        units
            .max_by_key(|(_, count)| **count)
            .map_or("", |(unit, _)| unit)
    }
}

impl<'a> Guesses<'a> {
    pub fn of(rows: &'a Rows, missing: &'a [String]) -> Self {
        let mut all = Self {
            rows,
            missing,
            tallies: Vec::new(),
            comma: false,
            time: None,
        };
        for column in 0..rows.header.len() {
            let mut tallies = [Tally::default(), Tally::default()];
            for cell in all.cells(column).filled() {
                tallies[0].add(measured(cell, false));
                tallies[1].add(measured(cell, true));
            }
            // A column of numbers, most of which are none with a point.
            all.comma |=
                tallies[1].numbers > tallies[0].numbers && 2 * tallies[1].numbers > rows.len() as u64;
            all.tallies.push(tallies);
        }
        all
    }

    fn cells(&self, column: usize) -> Cells<'a> {
        Cells {
            rows: self.rows,
            column,
            missing: self.missing,
        }
    }

    /// How a column writes its numbers.
    pub fn notation(&self, column: usize) -> Notation {
        let [point, comma] = &self.tallies[column];
        let either = || {
            let has_comma = || self.cells(column).filled().any(|cell| cell.contains(','));
            self.comma || self.rows.separator == b';' && comma.numbers > 0 && has_comma()
        };
        let is_comma = match self.thousands(column) {
            Some(mark) => mark == '.',
            None => comma.numbers > point.numbers || comma.numbers == point.numbers && either(),
        };
        let group = if is_comma { '.' } else { ',' };
        Notation {
            comma: is_comma,
            groups: self.cells(column).filled().any(|cell| cell.contains(group)),
            unit: if is_comma { comma } else { point }.unit().to_owned(),
        }
    }

    /// What separates thousands in a column where `1.000` could be one, too: below a thousand no number has a mark, and
    /// above it none has another one.
    pub fn thousands(&self, column: usize) -> Option<char> {
        let cells = || self.cells(column).there();
        let is_small = |cell: &str| {
            let digits = cell.strip_prefix('-').unwrap_or(cell);
            digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        ['.', ','].into_iter().find(|mark| {
            let (mut small, mut large) = (0, 0);
            let fit = cells().all(|cell| {
                let is_large = is_ambiguous(cell, *mark);
                large += u64::from(is_large);
                small += u64::from(!is_large);
                is_large || is_small(cell)
            });
            fit && small.min(large) >= MARKED
        })
    }

    /// What is to be told of a column's units.
    fn units_told(&self, column: usize, notation: &Notation, is_number: bool) -> Option<Doubt> {
        let tally = &self.tallies[column][usize::from(notation.comma)];
        let told = tally.units_told(self.cells(column), is_number)?;
        Some(Doubt {
            told,
            disordered: true,
            unread: true,
        })
    }

    /// The kind of an input.
    pub fn input(&self, column: usize) -> Guess {
        let cells = self.cells(column);
        let notation = self.notation(column);
        let seen = Seen::of(cells, &notation);
        // Some rows may say 1, and others true.
        let is_boolean =
            seen.numbers < seen.filled as u64 && cells.filled().all(|cell| matches!(&*key(cell), "0" | "1"));
        let is_date = seen.is_date(cells);
        let (kind, why) = match cells.distinct(2) {
            0 => (Kind::Ignore, "every cell is missing".into()),
            1 if seen.gaps == 0 => (Kind::Ignore, "the same value in every row".into()),
            _ if is_date && seen.order().is_none() => (
                Kind::Ignore,
                format!(
                    "dates whose day, month and year cannot be told apart: write columns.{name}=day-first, month-first or \
                     year-first",
                    name = self.rows.header[column]
                ),
            ),
            _ if is_date => (Kind::Date, String::new()),
            _ if is_boolean => (Kind::Category, String::new()),
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
        let name = &self.rows.header[column];
        let doubt = match kind {
            Kind::Date => None,
            _ => seen.doubt(cells, name, self.time == Some(column) || doubts::names_time(name)),
        };
        let units = self.units_told(column, &notation, kind == Kind::Number);
        let spoilt = match kind {
            _ if is_boolean || doubt.is_some() || units.is_some() => String::new(),
            Kind::Category | Kind::Ignore | Kind::Text if why.is_empty() || why.ends_with("texts") => {
                seen.spoilt(cells, &notation)
            }
            _ => String::new(),
        };
        Guess {
            kind,
            why,
            fitting: if kind == Kind::Date {
                seen.fitting_dates()
            } else {
                seen.numbers
            },
            notation,
            order: seen.order(),
            spoilt,
            doubt: doubt.or(units),
        }
    }

    /// Whether a target is a number or a class.
    pub fn target(&self, column: usize) -> Guess {
        let cells = self.cells(column);
        let notation = self.notation(column);
        let seen = Seen::of(cells, &notation);
        let kind = match seen.is_number() && !seen.are_classes(cells) {
            true => Kind::Number,
            false => Kind::Category,
        };
        let units = self.units_told(column, &notation, kind == Kind::Number);
        Guess {
            kind,
            why: String::new(),
            fitting: seen.numbers,
            notation,
            order: None,
            spoilt: String::new(),
            doubt: units,
        }
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

    /// Those of them that stand for no gap.
    fn there(self) -> impl Iterator<Item = &'a str> {
        self.filled().filter(|cell| !is_gap(cell))
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
    /// Of the filled ones, those that mean a gap if the others are numbers or dates.
    marks: u64,
    numbers: u64,
    /// Those that are dates if the day comes first, and if the month does.
    dates: [u64; 2],
    /// Those that begin with a year of two digits, and what stands first and last in dates of which each may be the year.
    years: u64,
    edges: [BTreeSet<String>; 2],
    /// Whether some are numbers that are dates only perhaps.
    perhaps: bool,
    /// Whether there are months such as 2020.1, 2020.10 and 2020.01.
    months: [bool; 3],
    /// Whether the order makes a difference.
    ordered: bool,
    /// Whether one is written with points.
    pointed: bool,
    /// Whether all numbers are whole.
    whole: bool,
    range: (f64, f64),
}

impl Seen {
    fn of(cells: Cells, notation: &Notation) -> Self {
        let mut seen = Self {
            filled: 0,
            gaps: 0,
            marks: 0,
            numbers: 0,
            dates: [0; 2],
            years: 0,
            edges: Default::default(),
            perhaps: false,
            months: [false; 3],
            ordered: false,
            pointed: false,
            whole: true,
            range: (f64::INFINITY, f64::NEG_INFINITY),
        };
        for cell in cells.filled() {
            seen.filled += 1;
            let number = notation.read(cell);
            if let Some(value) = number {
                seen.numbers += 1;
                seen.whole &= value.trunc() == value;
                seen.range = (seen.range.0.min(value), seen.range.1.max(value));
            } else if is_gap(cell) {
                seen.marks += 1;
                continue;
            }
            let written = number.and_then(|_| Written::of(cell));
            if number.is_none() || written.is_some() {
                seen.add_date(cell);
            }
            match written {
                Some(Written::Month(digits)) => {
                    let kinds = [digits.len() == 1, digits == "10", digits.starts_with('0')];
                    seen.months = std::array::from_fn(|at| seen.months[at] || kinds[at]);
                }
                Some(Written::Perhaps) => seen.perhaps = true,
                _ => {}
            }
        }
        seen.gaps = cells.rows.len() - seen.filled;
        seen
    }

    /// Counts a cell that may be a date.
    fn add_date(&mut self, cell: &str) {
        let of = |order| Moment::read(cell, order);
        let day_first = of(Order::DayFirst);
        // The order makes a difference only to a date of numbers.
        let month_first = match cell.starts_with(|letter: char| letter.is_ascii_digit()) {
            true => of(Order::MonthFirst),
            false => day_first,
        };
        self.dates[0] += u64::from(day_first.is_some());
        self.dates[1] += u64::from(month_first.is_some());
        // With points the day always comes first.
        let cell = whole(cell);
        let pointed = cell.bytes().find(|byte| !byte.is_ascii_digit()) == Some(b'.');
        self.ordered |= day_first != month_first && !pointed;
        self.pointed |= day_first != month_first && pointed;
        let year_first = of(Order::YearFirst);
        self.years += u64::from(year_first.is_some() && !pointed);
        if year_first != day_first || year_first != month_first {
            let mut numbers = cell.split(|letter: char| !letter.is_ascii_digit());
            for (edge, number) in self.edges.iter_mut().zip([numbers.next(), numbers.nth(1)]) {
                edge.extend(number.map(str::to_owned));
            }
        }
    }

    /// Whether a column with this many numbers, or dates, is a column of such: the other cells are gaps or a few mistakes.
    fn are(&self, fitting: u64) -> bool {
        let words = self.filled as u64 - self.marks - fitting;
        words <= MISTAKES.max(fitting / 100) && 10 * words < fitting
    }

    fn is_number(&self) -> bool {
        self.are(self.numbers)
    }

    fn is_date(&self, cells: Cells) -> bool {
        let dates = self.fitting_dates();
        // Numbers such as 20240305 are dates only if all of them are.
        let all = || self.filled as u64 - self.marks == dates;
        self.are(dates)
            && (self.numbers == 0 || all() && !self.has_doubtful_months() && self.are_certainly_dates(cells))
    }

    fn fitting_dates(&self) -> u64 {
        self.dates[0].max(self.dates[1]).max(self.years)
    }

    /// How dates are written, if that can be told.
    fn order(&self) -> Option<Order> {
        let [first, last] = self.edges.each_ref().map(BTreeSet::len);
        let others = self.dates[0].max(self.dates[1]);
        if self.years > others {
            return Some(Order::YearFirst);
        }
        // Two digits at each end may be the year. There are fewer years than days.
        if first > 0 && self.years == others && 2 * last >= first {
            return (2 * first < last).then_some(Order::YearFirst);
        }
        match self.dates[0].cmp(&self.dates[1]) {
            std::cmp::Ordering::Less => Some(Order::MonthFirst),
            std::cmp::Ordering::Greater => Some(Order::DayFirst),
            std::cmp::Ordering::Equal if self.ordered => None,
            std::cmp::Ordering::Equal if self.pointed => Some(Order::DayFirst),
            std::cmp::Ordering::Equal => Some(Order::Untold),
        }
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

    /// Of a column in which most cells are numbers, how many are, and what the others are.
    fn spoilt(&self, cells: Cells, notation: &Notation) -> String {
        let (fitting, what) = match self.fitting_dates() {
            dates if dates > self.numbers => (dates, "dates"),
            _ => (self.numbers, "numbers"),
        };
        if 2 * fitting <= self.filled as u64 {
            return String::new();
        }
        let order = self.order().unwrap_or_default();
        let fits = |cell: &str| match what {
            "dates" => Moment::read(cell, order).is_some(),
            _ => notation.read(cell).is_some(),
        };
        let mut others = BTreeMap::<&str, u64>::new();
        let words = cells.filled().filter(|cell| !fits(cell) && !is_gap(cell));
        words.for_each(|cell| *others.entry(cell).or_default() += 1);
        let (word, count) = others
            .iter()
            .max_by_key(|(_, count)| **count)
            .unwrap_or((&"", &0));
        let more = match others.len() {
            0 | 1 => String::new(),
            kinds => format!(" and {} others", grouped(kinds as u64 - 1)),
        };
        let shown: String = word.chars().take(24).collect();
        format!(
            "{} {what} and {} times {shown:?}{more}",
            grouped(fitting),
            grouped(*count)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(cells: &str) -> (Kind, Kind) {
        let (rows, _) = Rows::read("t.csv", format!("a,b\n{cells}").replace(' ', ",b\n").as_bytes()).unwrap();
        let missing = ["", "NA"].map(str::to_owned);
        let guesses = Guesses::of(&rows, &missing);
        (guesses.input(0).kind, guesses.target(0).kind)
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

    /// Two hundred days in a row, each written by `of` from its year, month and day.
    fn order(of: fn([i32; 3]) -> String) -> Option<Order> {
        let day = |at: i32| of([20 + at / 100, 1 + at / 20 % 12, 1 + at % 28]) + ",b\n";
        let cells: String = (0..200).map(day).collect();
        let (rows, _) = Rows::read("t.csv", format!("a,b\n{cells}").as_bytes()).unwrap();
        let guess = Guesses::of(&rows, &[]).input(0);
        (guess.kind == Kind::Date).then_some(guess.order).flatten()
    }

    #[test]
    fn years_of_two_digits_are_where_there_are_fewer_of_them() {
        assert_eq!(
            order(|[y, m, d]| format!("{y}-{m:02}-{d:02}")),
            Some(Order::YearFirst)
        );
        assert_eq!(
            order(|[y, m, d]| format!("{d:02}/{m:02}/{y}")),
            Some(Order::DayFirst)
        );
        assert_eq!(
            order(|[y, m, d]| format!("{m:02}/{d:02}/{y}")),
            Some(Order::MonthFirst)
        );
        assert_eq!(order(|[y, m, d]| format!("{d}.{m}.{y}")), Some(Order::DayFirst));
        assert_eq!(
            order(|[y, m, d]| format!("20{y}-{m:02}-{d:02}")),
            Some(Order::Untold)
        );
        // As many at each end.
        assert_eq!(order(|[_, m, d]| format!("{:02}-{m:02}-{d:02}", d)), None);
    }

    #[test]
    fn words_among_dates_are_told() {
        let cells: String = (0..100)
            .map(|at| match at % 5 {
                0 => "pending,b\n".to_owned(),
                _ => format!("2024-{:02}-{:02},b\n", 1 + at % 12, 1 + at % 28),
            })
            .collect();
        let (rows, _) = Rows::read("t.csv", format!("a,b\n{cells}").as_bytes()).unwrap();
        let guess = Guesses::of(&rows, &[]).input(0);
        assert_eq!(guess.spoilt, "80 dates and 20 times \"pending\"");
    }

    #[test]
    fn marks_above_a_thousand_alone_separate_thousands() {
        let notation = |cells: &str| {
            let (rows, _) =
                Rows::read("t.csv", format!("a;b\n{cells}").replace(' ', ";b\n").as_bytes()).unwrap();
            let notation = Guesses::of(&rows, &[]).notation(0);
            (notation.comma, notation.groups)
        };
        assert_eq!(notation("999 12 5 1.000 5.000 2.500 "), (true, true));
        assert_eq!(notation("999 12 5 1,000 5,000 2,500 "), (false, true));
        // Decimals, all of three digits.
        assert_eq!(notation("1.000 5.000 2.500 7.125 "), (false, false));
        assert_eq!(notation("999 12 5 1.000 5.000 2.5 "), (false, false));
        assert_eq!(notation("0.125 12 5 1.000 5.000 2.500 "), (false, false));
        assert_eq!(notation("1,5 12 5 1,000 5,000 2,500 "), (true, false));
    }
}
