//! A table that a model can learn from: read, checked, divided and measured.

mod describe;
mod refusals;

use crate::cells::{Cells, Reader, Row};
use crate::csv::Rows;
use crate::error::{Fault, Faults, TableError};
use crate::kinds::{self, Guess};
use crate::measure;
use crate::number::{grouped, not_a_number, parse};
use crate::options::{BadRows, ClassWeights, Kind, Options};
use crate::schema::{Column, ColumnKind, Ignored, Numbers, Schema, Target, is_missing};
use crate::split::{Part, Split};
use crate::text::Words;
use std::collections::HashSet;

/// A table's good rows as numbers, its schema, and its parts.
#[derive(Clone, Debug)]
pub struct Table {
    /// Columns and target.
    pub schema: Schema,
    /// The rows of each part.
    pub rows: Split,
    /// Rows that are left out because they cannot be used.
    pub skipped: Vec<Fault>,
    /// How the rows were divided, in words.
    pub divided: String,
    name: String,
    /// Of each ignored column a cell, for a person to see what it is; the schema does not carry it along.
    examples: Vec<String>,
    cells: Cells,
    targets: Vec<f64>,
}

/// Why a column is ignored that nobody need look at.
const AS_SAID: &str = "as you said";
const DIVIDES: &str = "it divides the rows";

/// Fewer rows than this cannot be divided into three parts.
const LEAST_ROWS: usize = 10;

impl Table {
    /// Reads a CSV or TSV file. `name` is for messages, and its ending tells the separator.
    ///
    /// # Errors
    ///
    /// If the options do not fit the file, or some rows cannot be used and the options do not say to skip them.
    pub fn read(name: &str, bytes: &[u8], options: &Options) -> Result<Self, TableError> {
        let (rows, faults) = Rows::read(name, bytes)?;
        let reading = Reading {
            name,
            rows: &rows,
            options,
        };
        reading.table(faults)
    }

    /// A row's cells, as the schema reads them.
    pub fn cells(&self, row: usize) -> Row<'_> {
        self.cells.row(row, self.schema.columns.len())
    }

    /// A row's target: the number, or the place of its class.
    pub fn target(&self, row: usize) -> f64 {
        self.targets[row]
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many good rows there are.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there are none; never so of a table that was read.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Bytes that differ where tables, their parts or their targets do.
    pub fn identity(&self, mut take: impl FnMut(&[u8])) {
        self.cells.identity(&mut take);
        for value in &self.targets {
            take(&value.to_bits().to_le_bytes());
        }
        for part in [&self.rows.train, &self.rows.validation, &self.rows.test] {
            take(&(part.len() as u64).to_le_bytes());
            part.iter().for_each(|row| take(&(*row as u64).to_le_bytes()));
        }
    }
}

/// A file on its way to a table.
struct Reading<'a> {
    name: &'a str,
    rows: &'a Rows,
    options: &'a Options,
}

/// The columns that divide the rows, if any do.
#[derive(Clone, Copy)]
enum Divider {
    Number,
    Parts(usize),
    Group(usize),
    Time(usize),
}

impl Reading<'_> {
    fn is_missing(&self, cell: &str) -> bool {
        is_missing(cell, &self.options.missing)
    }

    fn table(&self, mut faults: Vec<Fault>) -> Result<Table, TableError> {
        let target = self.named("target", &self.options.target)?;
        for name in self.options.columns.keys() {
            self.named(&format!("columns.{name}"), name)?;
        }
        let name = &self.options.target;
        match self.options.columns.get(name) {
            Some(Kind::Ignore) => {
                return self.fail(&format!(
                    "cannot ignore {name}, which is to be predicted: leave out columns.{name}=ignore, or name another target"
                ));
            }
            Some(Kind::Text) => {
                return self.fail(&format!(
                    "cannot predict a text: write columns.{name}=category if {name} has classes, or name another target"
                ));
            }
            _ => {}
        }
        let divider = self.divider()?;
        let guess = self.target(target);
        let (inputs, ignored) = self.inputs(target, divider);
        let good = self.good((target, &guess), (&inputs, divider), &mut faults);
        if !faults.is_empty() && self.options.bad_rows == BadRows::Fail {
            return Err(TableError::Rows(Faults {
                file: self.name.to_owned(),
                rows: self.rows.seen,
                list: faults,
                remedy: match good.len() {
                    0 => "Fix them: no row is left without them",
                    _ => "Fix them, or continue without them: bad_rows=skip",
                },
            }));
        }
        if good.len() < LEAST_ROWS {
            return self.too_few(good.len());
        }
        if inputs.is_empty() {
            return self.no_input(target, &ignored);
        }
        let (target, targets, classes) = self.targets(target, guess.kind, &good)?;
        let (split, divided) = self.divide(divider, &good, &classes);
        if split.train.is_empty() || split.validation.is_empty() || split.test.is_empty() {
            return self.fail(
                "leaves a part without rows. Use more rows, with at least five of each class; or more groups, at least three; or \
                 a split column with train, validation and test",
            );
        }
        let mut schema = Schema {
            columns: inputs
                .iter()
                .map(|(column, kind)| self.measured(*column, *kind, &good, &split))
                .collect(),
            target,
            ignored,
            missing: self.options.missing.clone(),
        };
        measure_target(&mut schema.target, &targets, &split, &self.options.positive)?;
        let (reader, mut cells) = (Reader::of(&schema), Cells::default());
        for row in &good {
            for (at, (column, _)) in inputs.iter().enumerate() {
                let known = reader.read(at, self.rows.cell(*row, *column), &mut cells);
                assert!(known, "rows with words for numbers are left out");
            }
        }
        Ok(Table {
            cells,
            rows: split,
            skipped: faults,
            divided,
            name: self.name.to_owned(),
            examples: schema.ignored.iter().map(|column| self.example(column)).collect(),
            targets,
            schema,
        })
    }

    fn divider(&self) -> Result<Divider, TableError> {
        let Options {
            split_column,
            split_by,
            split_time,
            ..
        } = self.options;
        let given = [
            ("split_column", split_column),
            ("split_by", split_by),
            ("split_time", split_time),
        ];
        let mut given = given.iter().filter(|(_, name)| !name.is_empty());
        let first = given.next();
        if given.next().is_some() {
            return self
                .fail("can be divided in one way only: give one of split_column, split_by and split_time");
        }
        match first {
            Some((setting, name)) => {
                let column = self.named(setting, name)?;
                if *name == &self.options.target {
                    return self.fail(&format!(
                        "cannot be divided by {name}, which is to be predicted: the test would hold what training never saw. \
                         Name another column after {setting}"
                    ));
                }
                Ok(match *setting {
                    "split_column" => Divider::Parts(column),
                    "split_by" => Divider::Group(column),
                    _ => Divider::Time(column),
                })
            }
            None => {
                let parts = (0..self.rows.header.len()).find(|column| {
                    self.rows.header[*column] != self.options.target && self.names_parts(*column)
                });
                Ok(parts.map_or(Divider::Number, Divider::Parts))
            }
        }
    }

    /// Whether a column holds the names of parts, and nothing else.
    fn names_parts(&self, column: usize) -> bool {
        let mut found = HashSet::new();
        let all = (0..self.rows.len()).all(|row| {
            let part = Part::named(self.rows.cell(row, column));
            part.is_some_and(|part| {
                found.insert(part as u8);
                true
            })
        });
        all && found.contains(&(Part::Train as u8)) && found.contains(&(Part::Test as u8))
    }

    fn target(&self, column: usize) -> Guess {
        let guess = kinds::target(self.rows, column, &self.options.missing);
        match self.options.columns.get(&self.rows.header[column]) {
            Some(kind) => Guess { kind: *kind, ..guess },
            None => guess,
        }
    }

    /// The columns to read and how, and those to ignore.
    fn inputs(&self, target: usize, divider: Divider) -> (Vec<(usize, Input)>, Vec<Ignored>) {
        let (mut inputs, mut ignored) = (Vec::new(), Vec::new());
        for (column, name) in self.rows.header.iter().enumerate() {
            let given = self.options.columns.get(name).copied();
            let divides = match divider {
                Divider::Number => false,
                Divider::Parts(by) | Divider::Group(by) | Divider::Time(by) => by == column,
            };
            if column == target {
                continue;
            }
            let guess = kinds::input(self.rows, column, &self.options.missing);
            let (kind, why) = match given {
                Some(Kind::Ignore) => (Kind::Ignore, AS_SAID.to_owned()),
                Some(kind) => (kind, String::new()),
                None if divides => (Kind::Ignore, DIVIDES.to_owned()),
                None => (guess.kind, guess.why),
            };
            let name = name.clone();
            match kind {
                Kind::Ignore => ignored.push(Ignored { name, why }),
                kind => inputs.push((
                    column,
                    Input {
                        kind,
                        numbers: guess.numbers,
                    },
                )),
            }
        }
        (inputs, ignored)
    }

    /// The rows without a fault. Faults are added in the order of lines.
    fn good(
        &self,
        (target, guess): (usize, &Guess),
        (inputs, divider): (&[(usize, Input)], Divider),
        faults: &mut Vec<Fault>,
    ) -> Vec<usize> {
        let word = |cell: &str, numbers: u64| {
            format!("{} ({} other values are)", not_a_number(cell), grouped(numbers))
        };
        let is_word = |cell: &str| !self.is_missing(cell) && parse(cell).is_none();
        let mut good = Vec::new();
        for row in 0..self.rows.len() {
            let before = faults.len();
            let mut add = |column: Option<usize>, what: String| {
                let column = column.map(|column| self.rows.header[column].clone());
                faults.push(Fault {
                    line: self.rows.line(row),
                    column,
                    what,
                });
            };
            let cell = self.rows.cell(row, target);
            if self.is_missing(cell) {
                add(None, format!("the target {} is empty", self.rows.header[target]));
            } else if guess.kind == Kind::Number && is_word(cell) {
                add(Some(target), word(cell, guess.numbers));
            }
            for (column, of) in inputs {
                let cell = self.rows.cell(row, *column);
                if of.kind == Kind::Number && is_word(cell) {
                    add(Some(*column), word(cell, of.numbers));
                }
            }
            if let Divider::Parts(column) = divider
                && Part::named(self.rows.cell(row, column)).is_none()
            {
                let cell: String = self.rows.cell(row, column).chars().take(40).collect();
                add(
                    Some(column),
                    format!("{cell:?} is none of train, validation and test"),
                );
            }
            if faults.len() == before {
                good.push(row);
            }
        }
        faults.sort_by_key(|fault| fault.line);
        good
    }

    /// The target without its statistics, each good row's, and each good row's class (0 for all if it is a number).
    fn targets(
        &self,
        column: usize,
        kind: Kind,
        good: &[usize],
    ) -> Result<(Target, Vec<f64>, Vec<usize>), TableError> {
        let name = self.rows.header[column].clone();
        let cells = good.iter().map(|row| self.rows.cell(*row, column));
        self.varies(column, good)?;
        if kind == Kind::Number {
            let values: Vec<f64> = cells.filter_map(parse).collect();
            let (mean, deviation) = (0.0, 1.0);
            return Ok((
                Target::Number {
                    name,
                    mean,
                    deviation,
                },
                values,
                vec![0; good.len()],
            ));
        }
        let classes = measure::classes(cells.clone());
        self.are_classes(column, good, classes.len())?;
        let place = |cell: &str| classes.iter().position(|class| class == cell).unwrap_or(0);
        let places: Vec<usize> = cells.map(place).collect();
        let target = Target::Class {
            name,
            counts: vec![0; classes.len()],
            positive: 0,
            classes,
        };
        Ok((target, places.iter().map(|place| *place as f64).collect(), places))
    }

    /// Divides the good rows, and tells how.
    fn divide(&self, divider: Divider, good: &[usize], classes: &[usize]) -> (Split, String) {
        let cell = |row: &usize, column: usize| self.rows.cell(*row, column);
        let name = |column: usize| &self.rows.header[column];
        match divider {
            Divider::Number => (Split::by_row(classes), "split by row".into()),
            Divider::Parts(column) => {
                let part = |row: &usize| Part::named(cell(row, column)).expect("other rows are left out");
                let parts = good.iter().map(part).collect();
                (
                    Split::given(parts, classes),
                    format!("split by the column {}", name(column)),
                )
            }
            Divider::Group(column) => {
                let groups: Vec<&str> = good.iter().map(|row| cell(row, column)).collect();
                (
                    Split::by_group(&groups),
                    format!("split by {}, of which no value is in two parts", name(column)),
                )
            }
            Divider::Time(column) => {
                let mut order: Vec<usize> = (0..good.len()).collect();
                // Numbers by size, dates and other texts by bytes.
                let when = |at: &usize| cell(&good[*at], column);
                order.sort_by(|a, b| match (parse(when(a)), parse(when(b))) {
                    (Some(of_a), Some(of_b)) => of_a.total_cmp(&of_b),
                    (None, None) => when(a).cmp(when(b)),
                    (of_a, of_b) => of_a.is_none().cmp(&of_b.is_none()),
                });
                (
                    Split::by_order(&order),
                    format!("split by {}, the latest rows to test", name(column)),
                )
            }
        }
    }

    /// A column with its statistics over the training rows.
    fn measured(&self, column: usize, guess: Input, good: &[usize], split: &Split) -> Column {
        let cells = split.train.iter().map(|row| self.rows.cell(good[*row], column));
        let there = cells.filter(|cell| !self.is_missing(cell));
        let missing = (split.train.len() - there.clone().count()) as u64;
        let kind = match guess.kind {
            Kind::Number => {
                let values: Vec<f64> = there.filter_map(parse).collect();
                ColumnKind::Number(match values.is_empty() {
                    true => Numbers {
                        mean: 0.0,
                        deviation: 0.0,
                        octiles: [0.0; 9],
                    },
                    false => measure::numbers(values),
                })
            }
            Kind::Text => ColumnKind::Text(Words::of(there)),
            Kind::Category | Kind::Ignore => ColumnKind::Category(measure::categories(there)),
        };
        Column {
            name: self.rows.header[column].clone(),
            kind,
            missing,
        }
    }
}

/// How to read an input.
#[derive(Clone, Copy)]
struct Input {
    kind: Kind,
    numbers: u64,
}

/// Fills in a target's statistics over the training rows.
fn measure_target(
    target: &mut Target,
    targets: &[f64],
    split: &Split,
    wanted: &str,
) -> Result<(), TableError> {
    let train: Vec<f64> = split.train.iter().map(|row| targets[*row]).collect();
    match target {
        Target::Number { mean, deviation, .. } => {
            let (found, spread) = measure::mean_and_deviation(&train);
            (*mean, *deviation) = (found as f32, if spread > 0.0 { spread as f32 } else { 1.0 });
        }
        Target::Class {
            classes,
            counts,
            positive,
            ..
        } => {
            train.iter().for_each(|class| counts[*class as usize] += 1);
            *positive = match classes.iter().position(|class| class == wanted) {
                Some(class) => class,
                None if wanted.is_empty() => measure::positive(classes, counts),
                None => {
                    let classes = classes.join(", ");
                    return Err(TableError::Other(format!(
                        "positive={wanted} is not a class: choose one of {classes}"
                    )));
                }
            };
        }
    }
    Ok(())
}

impl Options {
    /// The weight of each class in the loss; empty: all weigh the same.
    pub fn weights(&self, target: &Target) -> Vec<f32> {
        match self.class_weights {
            ClassWeights::Off => Vec::new(),
            ClassWeights::Balanced => target.balanced(),
        }
    }
}

#[cfg(test)]
mod tests;
