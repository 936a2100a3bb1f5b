//! What a person should look at before trusting a model of this table: columns and rows that may not be what they look like.

use super::Reading;
use super::columns::Input;
use super::divide::Divider;
use crate::category::{Case, counted};
use crate::date::Moment;
use crate::kinds::Guesses;
use crate::number::grouped;
use crate::options::Kind;
use crate::schema::{Ignored, is_gap};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Numbers that programs write for a missing one.
const SENTINELS: [f64; 11] = [
    -9.0, -99.0, -999.0, -9999.0, -99_999.0, 999.0, 9999.0, 99_999.0, 999_999.0, -1e6, -1.0,
];

/// A mark lies this many times as far from the nearest number as those spread; a guess.
const FAR: f64 = 2.0;

/// Days since 1970 that programs write for a missing date: 1900-01-01, 1970-01-01, 1899-12-30, 1899-12-31, 2099-12-31 and 2999-12-31.
const EARLIEST: [f64; 6] = [-25_567.0, 0.0, -25_569.0, -25_568.0, 47_481.0, 376_199.0];

/// One row in this many must be a copy to be told, and a column of names must have this many, or more; guesses.
const COPIES: usize = 20;
const THINGS: usize = 20;

/// Most different texts among which versions are looked for; a guess.
const VERSIONS: usize = 200;

/// Spellings of one value that a line shows.
const SPELLINGS: usize = 3;

impl Reading<'_> {
    /// A line for each thing to look at.
    pub(super) fn notes(
        &self,
        guesses: &Guesses,
        target: &Input,
        (inputs, ignored, divider): (&[Input], &[Ignored], &Divider),
        good: &[usize],
    ) -> Vec<String> {
        let mut notes = Vec::new();
        for input in inputs {
            let name = &self.rows.header[input.column];
            let spoilt = &input.guess.spoilt;
            if !spoilt.is_empty() {
                let kind = if spoilt.contains(" dates and ") {
                    "date"
                } else {
                    "number"
                };
                notes.push(format!(
                    "column {name} has {spoilt}: if these mean that it is missing, name them, such as 'missing=[\"\",\"-\"]', and \
                     columns.{name}={kind}"
                ));
            }
        }
        // Of an ignored column the guess is not kept.
        let ignored = ignored.iter().filter(|column| column.why.contains("different"));
        let ignored = ignored.filter_map(|column| {
            let place = self.rows.column(&column.name)?;
            Some((place, guesses.input(place).doubt))
        });
        let known = inputs.iter().chain([target]);
        let known = known.map(|input| (input.column, input.guess.doubt.clone()));
        notes.extend(known.chain(ignored).filter_map(|(column, doubt)| {
            let name = &self.rows.header[column];
            let given = self.options.columns.contains_key(name);
            Some(format!("column {name}: {}", doubt.filter(|_| !given)?.told))
        }));
        for input in inputs.iter().filter(|input| input.kind == Kind::Number) {
            notes.extend(self.thousands(guesses, input));
            notes.extend(self.sentinel(input, good));
            notes.extend(self.names_rows(input, good));
        }
        for input in inputs
            .iter()
            .chain([target])
            .filter(|input| input.kind == Kind::Category)
        {
            notes.extend(self.spellings(input, good));
        }
        for input in inputs.iter().filter(|input| input.kind == Kind::Date) {
            notes.extend(self.far_date(input, good));
        }
        if matches!(divider, Divider::Number) {
            notes.extend(self.repeated(good));
            notes.extend(
                (0..self.rows.header.len()).find_map(|column| self.several_rows(column, target, good)),
            );
        }
        notes.extend(self.total(target, inputs, good));
        notes
    }

    fn thousands(&self, guesses: &Guesses, input: &Input) -> Option<String> {
        let mark = guesses.thousands(input.column)?;
        let name = &self.rows.header[input.column];
        Some(format!(
            "{name}: 1{mark}000 is read as a thousand. If it is one, write its numbers without marks where they have no decimals"
        ))
    }

    /// The numbers of a column over the good rows.
    fn numbers(&self, input: &Input, good: &[usize]) -> Vec<f64> {
        let cells = good.iter().map(|row| self.rows.cell(*row, input.column));
        cells.filter_map(|cell| input.guess.notation.read(cell)).collect()
    }

    /// A number far from all others that may stand for a missing one.
    fn sentinel(&self, input: &Input, good: &[usize]) -> Option<String> {
        let name = &self.rows.header[input.column];
        let numbers = self.numbers(input, good);
        SENTINELS.iter().find_map(|mark| {
            let count = grouped(far(&numbers, *mark)? as u64);
            Some(format!(
                "column {name} has {count} times {mark}, far from its other numbers: if this means that it is missing, write \
                 'missing=[\"\",\"{mark}\"]'"
            ))
        })
    }

    /// Tells of dates that are far from the others, and often the same.
    fn far_date(&self, input: &Input, good: &[usize]) -> Option<String> {
        let name = &self.rows.header[input.column];
        let order = input.guess.order.unwrap_or_default();
        let days: Vec<f64> = good
            .iter()
            .filter_map(|row| {
                Some(
                    Moment::read(self.rows.cell(*row, input.column), order)?
                        .days()
                        .floor(),
                )
            })
            .collect();
        EARLIEST.iter().find_map(|mark| {
            let count = grouped(far(&days, *mark)? as u64);
            let date = Moment::told(*mark);
            Some(format!(
                "column {name} has {count} times the date {date}, far from its other dates: if this means that it is missing, name \
                 it in missing, as the file writes it"
            ))
        })
    }

    /// How many cells of a column differ, counted up to `most`.
    fn distinct(&self, column: usize, good: &[usize], most: usize) -> usize {
        let mut found = HashSet::new();
        let cells = good.iter().map(|row| self.rows.cell(*row, column));
        cells.filter(|cell| found.insert(*cell)).take(most).count()
    }

    /// Rows that are copies of others, in a table whose rows would otherwise differ.
    fn repeated(&self, good: &[usize]) -> Option<String> {
        let mut rows = HashMap::new();
        let is_copy = |row: &&usize| {
            let first = *rows.entry(self.rows.record(**row)).or_insert(**row);
            // The same letters may be cut into other fields.
            let same = |column| self.rows.field(first, column) == self.rows.field(**row, column);
            first != **row && (0..self.rows.header.len()).all(same)
        };
        let copies = good.iter().filter(is_copy).count();
        let differ = |column: usize| self.distinct(column, good, usize::MAX) * 10 >= rows.len() * 9;
        (COPIES * copies >= good.len() && (0..self.rows.header.len()).any(differ)).then(|| {
            format!(
                "{} of the rows are copies of others, so the test has rows of training and its scores are too good: keep one of each",
                grouped(copies as u64)
            )
        })
    }

    /// A column that names what has several rows each.
    fn several_rows(&self, column: usize, target: &Input, good: &[usize]) -> Option<String> {
        let name = &self.rows.header[column];
        if column == target.column || !names_id(name) || self.options.columns.contains_key(name) {
            return None;
        }
        let found = self.distinct(column, good, usize::MAX);
        (THINGS..=good.len() / 2).contains(&found).then(|| {
            format!(
                "{} values of {name} have {} rows, some in training and some in the test: if the model is for new ones, write \
                 split_by={name}",
                grouped(found as u64),
                grouped(good.len() as u64)
            )
        })
    }

    /// Numbers that may only name rows, or places.
    fn names_rows(&self, input: &Input, good: &[usize]) -> Option<String> {
        let name = &self.rows.header[input.column];
        if self.options.columns.contains_key(name) {
            return None;
        }
        let cells = || {
            good.iter()
                .map(|row| self.rows.cell(*row, input.column))
                .filter(|cell| !is_gap(cell))
        };
        let digits = |cell: &str| cell.bytes().all(|byte| byte.is_ascii_digit());
        let zeros = cells()
            .filter(|cell| cell.len() > 1 && cell.starts_with('0') && digits(cell))
            .count();
        let width = cells().next()?.len();
        if zeros > 0 && cells().all(|cell| cell.len() == width && digits(cell)) {
            return Some(format!(
                "column {name} has numbers that begin with 0: if they are codes, such as postal codes, write columns.{name}=category"
            ));
        }
        let is_id = names_id(name);
        let are_few = self.distinct(input.column, good, VERSIONS) < VERSIONS;
        let texts: HashSet<&str> = match are_few {
            true => cells().filter(|cell| cell.contains('.')).collect(),
            false => HashSet::new(),
        };
        let short = |text: &&str| {
            let short = text.trim_end_matches('0');
            short.len() < text.len() && !short.ends_with('.') && texts.contains(short)
        };
        if let Some(text) = texts.iter().filter(|text| short(text)).min() {
            let short = text.trim_end_matches('0');
            return Some(format!(
                "column {name} has {short} and {text}, which are one number: if they are versions or chapters, write \
                 columns.{name}=category"
            ));
        }
        let mut found = HashSet::new();
        (is_id && good.len() > 2 && cells().count() == good.len() && cells().all(|cell| found.insert(cell))).then(|| {
            format!("column {name} has another value in every row: if it only names the rows, write columns.{name}=ignore")
        })
    }

    /// Values that differ only in the case of letters.
    fn spellings(&self, input: &Input, good: &[usize]) -> Option<String> {
        let cells = good.iter().map(|row| self.rows.cell(*row, input.column));
        let counts = counted(cells.filter(|cell| !self.is_missing(cell)), Case::Matters);
        let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
        counts.sort_unstable();
        let mut alike = BTreeMap::<_, Vec<(&str, u64)>>::new();
        for (key, count) in &counts {
            alike.entry(Case::Any.key(key)).or_default().push((key, *count));
        }
        alike.retain(|_, spellings| spellings.len() > 1);
        let (_, first) = alike
            .iter()
            .max_by_key(|(_, spellings)| spellings.iter().map(|(_, count)| count).sum::<u64>())?;
        let shown: Vec<String> = first
            .iter()
            .take(SPELLINGS)
            .map(|(key, count)| format!("{key:?} ({})", grouped(*count)))
            .collect();
        let more = match alike.len() {
            1 => String::new(),
            2 => ", and so do those of another value".to_owned(),
            kinds => format!(", and so do those of {} other values", grouped(kinds as u64 - 1)),
        };
        let name = &self.rows.header[input.column];
        Some(format!(
            "column {name}: {} differ only in the case of letters{more}, and count as different. If they are the same, write \
             columns.{name}=any-case",
            shown.join(", ")
        ))
    }

    /// A last row that sums up the others.
    fn total(&self, target: &Input, inputs: &[Input], good: &[usize]) -> Option<String> {
        const WORDS: [&str; 8] = [
            "total",
            "totals",
            "grand total",
            "sum",
            "summe",
            "gesamt",
            "insgesamt",
            "somme",
        ];
        let (last, others) = good.split_last()?;
        let says = (0..self.rows.header.len()).any(|column| {
            let cell = self.rows.cell(*last, column).trim_end_matches(':').to_lowercase();
            let is_word = |row: &usize| self.rows.cell(*row, column).to_lowercase().starts_with(&cell);
            WORDS.contains(&cell.as_str()) && !others.iter().any(is_word)
        });
        let numbers = inputs
            .iter()
            .chain([target])
            .filter(|input| input.kind == Kind::Number);
        let sums = |input: &Input| {
            let sum: f64 = self.numbers(input, others).iter().sum();
            let own = input.guess.notation.read(self.rows.cell(*last, input.column));
            own.is_some_and(|own| sum != 0.0 && (own - sum).abs() <= 1e-9 * sum.abs())
        };
        (says || numbers.into_iter().any(sums)).then(|| {
            let line = grouped(self.rows.line(*last));
            format!("the last row, line {line}, looks like the total of the others: if it is, take it out of the file")
        })
    }
}

/// Whether a column's name says that it names something.
fn names_id(name: &str) -> bool {
    let lower = name.to_lowercase();
    let mut words = lower.split(|letter: char| !letter.is_alphanumeric());
    words.any(|word| ["id", "nr", "no", "uuid", "key"].contains(&word))
        || name.ends_with("Id")
        || name.ends_with("ID")
}

/// How often a number occurs, if it does so more than once and lies far from all others.
fn far(numbers: &[f64], mark: f64) -> Option<usize> {
    let others = || numbers.iter().filter(|number| **number != mark);
    let count = numbers.len() - others().count();
    if count < 2 {
        return None;
    }
    let (least, most) = others().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), number| {
        (least.min(*number), most.max(*number))
    });
    let distance = (least - mark).max(mark - most);
    (most > least && distance > FAR * (most - least)).then_some(count)
}
