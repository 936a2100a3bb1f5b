//! A table that a model can learn from: read, checked, divided and measured.

mod columns;
mod describe;
mod divide;
mod notes;
mod refusals;

use self::columns::Input;
use self::divide::Divider;
use crate::category::{Case, Places};
use crate::cells::{Cells, Found, Reader};
use crate::csv::Rows;
use crate::error::{Fault, FaultList, Faults, TableError};
use crate::kinds::Guesses;
use crate::measure;
use crate::number::Notation;
use crate::options::{BadRows, ClassWeights, Kind, Options};
use crate::row::Row;
use crate::schema::{Column, Schema, Target, is_gap, is_missing};
use crate::split::{Part, Split};

/// A table's good rows as numbers, its schema, and its parts.
#[derive(Clone, Debug)]
pub struct Table {
    /// Columns and target.
    pub schema: Schema,
    /// The rows of each part.
    pub rows: Split,
    /// Rows that are left out because they cannot be used.
    pub skipped: FaultList,
    /// How the rows were divided, in words.
    pub divided: String,
    /// Columns that may not be what they look like.
    notes: Vec<String>,
    name: String,
    /// Of each ignored column a cell, for a person to see what it is; the schema does not carry it along.
    examples: Vec<String>,
    cells: Cells,
    targets: Vec<f64>,
    /// How much each row counts in the loss; empty: all alike.
    weights: Vec<f64>,
}

/// Why a column is ignored that nobody need look at.
const AS_SAID: &str = "as you said";
const DIVIDES: &str = "it divides the rows";
const WEIGHS: &str = "it weighs the rows";

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

    /// How much a row counts in the loss.
    pub fn weight(&self, row: usize) -> f64 {
        self.weights.get(row).copied().unwrap_or(1.0)
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
        for value in self.targets.iter().chain(&self.weights) {
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

impl Reading<'_> {
    fn is_missing(&self, cell: &str) -> bool {
        is_missing(cell, &self.options.missing)
    }

    fn table(&self, mut faults: FaultList) -> Result<Table, TableError> {
        let target = self.named("target", &self.options.target)?;
        for name in self.options.columns.keys() {
            self.named(&format!("columns.{name}"), name)?;
        }
        self.can_be_target()?;
        let mut guesses = Guesses::of(self.rows, &self.options.missing);
        guesses.time = self.rows.column(&self.options.split_time);
        let divider = self.divider(&guesses)?;
        let weights = self.weights(&guesses)?;
        let of_target = self.target(&guesses, target);
        let (inputs, ignored) = self.inputs(&guesses, target, (&divider, weights.as_ref()))?;
        let good = self.good(&of_target, (&inputs, &divider, weights.as_ref()), &mut faults);
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
        let notes = self.notes(&guesses, &of_target, (&inputs, &ignored, &divider), &good);
        let (target, targets, classes) = self.targets(&of_target, &good)?;
        // Before hours of training, not after them.
        self.options.asked_threshold(&target)?;
        let (split, divided) = self.divide(&divider, &good, &classes);
        if split.train.is_empty() || split.validation.is_empty() || split.test.is_empty() {
            return self.fail(
                "leaves a part without rows. Use more rows, with at least five of each class; or more groups, at least three; or \
                 a split column with train, validation and test",
            );
        }
        let measured = inputs.iter().flat_map(|input| {
            let columns = self.measured(input, &good, &split);
            columns.into_iter().map(|column| (input.column, column))
        });
        let (sources, columns): (Vec<usize>, Vec<Column>) = measured.unzip();
        let mut schema = Schema {
            columns,
            target,
            ignored,
            missing: self.options.missing.clone(),
        };
        let (reader, mut cells) = (Reader::of(&schema), Cells::default());
        for row in &good {
            for (at, column) in sources.iter().enumerate() {
                let found = reader.read(at, self.rows.cell(*row, *column), &mut cells);
                assert!(found != Found::Wrong, "rows with words for numbers are left out");
            }
        }
        self.measure_target(&mut schema, (&targets, &cells), &split)?;
        let weigh = |by: Weigher| {
            let cells = good.iter().map(|row| self.rows.cell(*row, by.column));
            cells.filter_map(|cell| by.weight(cell)).collect()
        };
        Ok(Table {
            cells,
            rows: split,
            skipped: faults,
            divided,
            notes,
            name: self.name.to_owned(),
            examples: schema.ignored.iter().map(|column| self.example(column)).collect(),
            targets,
            weights: weights.map(weigh).unwrap_or_default(),
            schema,
        })
    }

    /// The column with the weight of each row.
    fn weights(&self, guesses: &Guesses) -> Result<Option<Weigher>, TableError> {
        match self.options.weight.as_str() {
            "" => Ok(None),
            name if name == self.options.target => self.fail(&format!(
                "cannot weigh rows by {name}, which is to be predicted: name another column after weight"
            )),
            name => self.named("weight", name).map(|column| {
                let notation = guesses.notation(column);
                Some(Weigher { column, notation })
            }),
        }
    }

    /// The rows without a fault. Faults are added in the order of lines.
    fn good(
        &self,
        target: &Input,
        (inputs, divider, weights): (&[Input], &Divider, Option<&Weigher>),
        faults: &mut FaultList,
    ) -> Vec<usize> {
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
            let of = |column: usize| self.rows.cell(row, column);
            let shown = |column: usize| of(column).chars().take(40).collect::<String>();
            let cell = of(target.column);
            if self.is_missing(cell) || target.kind == Kind::Number && is_gap(cell) {
                add(
                    None,
                    format!("the target {} is empty", self.rows.header[target.column]),
                );
            } else if !target.fits(cell) {
                add(Some(target.column), target.fault(cell));
            }
            for input in inputs {
                let cell = of(input.column);
                if !self.is_missing(cell) && !input.fits(cell) {
                    add(Some(input.column), input.fault(cell));
                }
            }
            match divider {
                Divider::Parts(column) if Part::named(of(*column)).is_none() => add(
                    Some(*column),
                    format!("{:?} is none of train, validation and test", shown(*column)),
                ),
                Divider::Time(column, clock) if clock.read(of(*column)).is_none() => add(
                    Some(*column),
                    format!(
                        "{:?} is no time by which the rows could be ordered",
                        shown(*column)
                    ),
                ),
                _ => {}
            }
            if let Some(by) = weights.filter(|by| by.weight(of(by.column)).is_none()) {
                let column = by.column;
                add(
                    Some(column),
                    format!("{:?} is no weight: give a number of at least 0", shown(column)),
                );
            }
            if faults.len() == before {
                good.push(row);
            }
        }
        faults.sort();
        good
    }

    /// The target without its statistics, each good row's, and each good row's class (0 for all if it is a number).
    fn targets(&self, of: &Input, good: &[usize]) -> Result<(Target, Vec<f64>, Vec<usize>), TableError> {
        let name = self.rows.header[of.column].clone();
        let cells = good.iter().map(|row| self.rows.cell(*row, of.column));
        self.varies(of, good)?;
        if of.kind == Kind::Number {
            let values: Vec<f64> = cells.filter_map(|cell| of.guess.notation.read(cell)).collect();
            let (mean, deviation) = (0.0, 1.0);
            return Ok((
                Target::Number {
                    name,
                    mean,
                    deviation,
                    learnt: None,
                    notation: of.guess.notation.clone(),
                },
                values,
                vec![0; good.len()],
            ));
        }
        let any_case = of.kind == Kind::AnyCase;
        let classes = measure::classes_in(cells.clone(), Case::any(any_case));
        self.are_classes(of.column, good, classes.len())?;
        let known = Places::of(&classes, Case::any(any_case));
        let places: Vec<usize> = cells
            .map(|cell| known.of_cell(cell).expect("the classes are those of the cells"))
            .collect();
        let values = places.iter().map(|place| *place as f64).collect();
        let counts = vec![0; classes.len()];
        drop(known);
        let target = Target::Class {
            name,
            counts,
            positive: 0,
            any_case,
            classes,
        };
        Ok((target, values, places))
    }
}

/// The column that says how much each row counts.
struct Weigher {
    column: usize,
    notation: Notation,
}

impl Weigher {
    /// What a cell says of its row's weight.
    fn weight(&self, cell: &str) -> Option<f64> {
        self.notation.read(cell).filter(|weight| *weight >= 0.0)
    }
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
