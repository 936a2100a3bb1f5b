//! Why a table cannot be learnt from, in words that say what to do.

use super::columns::Input;
use super::{AS_SAID, DIVIDES, LEAST_ROWS, Reading, WEIGHS};
use crate::category::Case;
use crate::error::TableError;
use crate::number::{grouped, listed, not_a_number, parse};
use crate::options::Kind;
use crate::schema::Ignored;

/// More classes than this are no classes; a guess.
const MOST_CLASSES: usize = 1_000;

/// Longest cell that is shown whole as an example.
const EXAMPLE: usize = 24;

/// Letters that a name must share with the beginning of another to be taken for it.
const LIKE: usize = 3;

impl Reading<'_> {
    pub(super) fn fail<T>(&self, what: &str) -> Result<T, TableError> {
        Err(TableError::Other(format!("{} {what}", self.name)))
    }

    /// The column that a setting names.
    pub(super) fn named(&self, setting: &str, name: &str) -> Result<usize, TableError> {
        let header = &self.rows.header;
        if let Some(column) = self.rows.column(name) {
            return Ok(column);
        }
        let names = listed(header);
        if name.is_empty() && setting == "target" {
            return self.fail(&format!(
                "needs a column to predict: {setting}=NAME. Its columns: {names}"
            ));
        }
        let asked = name.to_lowercase();
        let is_like = |known: &&String| {
            let known = known.to_lowercase();
            let part = known.starts_with(&asked) || asked.starts_with(&known);
            known == asked || (part && known.len().min(asked.len()) >= LIKE)
        };
        let like = header.iter().find(is_like);
        let hint = match like {
            Some(like) => format!(". Do you mean {like:?}?"),
            // Names are seldom numbers.
            None if header.iter().any(|name| parse(name).is_some()) => {
                ". The first line must name the columns; this one looks like a row".to_owned()
            }
            None => String::new(),
        };
        self.fail(&format!(
            "has no column {name:?} ({setting}). Its columns: {names}{hint}"
        ))
    }

    /// Fewer rows than can be divided.
    pub(super) fn too_few<T>(&self, rows: usize) -> Result<T, TableError> {
        let told = match rows {
            0 => "no usable rows".to_owned(),
            1 => "1 usable row".to_owned(),
            rows => format!("{rows} usable rows"),
        };
        self.fail(&format!(
            "has {told} below its first line, and at least {LEAST_ROWS} are needed"
        ))
    }

    /// Nothing but the target is left.
    pub(super) fn no_input<T>(&self, target: usize, ignored: &[Ignored]) -> Result<T, TableError> {
        let target = &self.rows.header[target];
        if ignored.is_empty() {
            return self.fail(&format!(
                "has only the column {target}, which is to be predicted: it needs others to predict it from"
            ));
        }
        let each: Vec<String> = ignored
            .iter()
            .map(|column| {
                format!(
                    "{} ({}{})",
                    column.name,
                    column.why,
                    such_as(&self.example(column))
                )
            })
            .collect();
        self.fail(&format!(
            "has no column to predict {target} from. Ignored: {}. To read one all the same, write columns.NAME=number, \
             columns.NAME=category or columns.NAME=text",
            listed(&each)
        ))
    }

    /// A cell of an ignored column, by which a person sees what the column is; empty if that is known.
    pub(super) fn example(&self, of: &Ignored) -> String {
        if [AS_SAID, DIVIDES, WEIGHS].contains(&of.why.as_str()) {
            return String::new();
        }
        let column = self.rows.column(&of.name).unwrap_or(0);
        let cells = (0..self.rows.len()).map(|row| self.rows.cell(row, column));
        let cell = cells
            .into_iter()
            .find(|cell| !self.is_missing(cell))
            .unwrap_or("");
        match cell.chars().count() {
            0..=EXAMPLE => cell.to_owned(),
            _ => cell.chars().take(EXAMPLE).chain(['\u{2026}']).collect(),
        }
    }

    /// Refuses a target of a kind that cannot be predicted.
    pub(super) fn can_be_target(&self) -> Result<(), TableError> {
        let name = &self.options.target;
        match self.options.columns.get(name) {
            None | Some(Kind::Number | Kind::Category | Kind::AnyCase) => Ok(()),
            Some(Kind::Ignore) => self.fail(&format!(
                "cannot ignore {name}, which is to be predicted: leave out columns.{name}=ignore, or name another target"
            )),
            Some(Kind::Text) => self.fail(&format!(
                "cannot predict a text: write columns.{name}=category if {name} has classes, or name another target"
            )),
            Some(_) => self.fail(&format!(
                "cannot predict a date: write the days until {name} into a column of numbers, and name that as the target"
            )),
        }
    }

    /// Refuses a target that is the same everywhere.
    pub(super) fn varies(&self, of: &Input, good: &[usize]) -> Result<(), TableError> {
        let mut cells = good.iter().map(|row| self.rows.cell(*row, of.column));
        let first = cells.next().unwrap_or("");
        let same = |cell: &str| match of.kind {
            Kind::Number => of.guess.notation.read(cell) == of.guess.notation.read(first),
            kind => {
                let case = Case::any(kind == Kind::AnyCase);
                case.key(cell) == case.key(first)
            }
        };
        if cells.any(|cell| !same(cell)) {
            return Ok(());
        }
        let name = &self.rows.header[of.column];
        self.fail(&format!(
            "has {first:?} as the {name} of every usable row: there is nothing to tell apart, so name another target"
        ))
    }

    /// Refuses a target that has too many different values for classes.
    pub(super) fn are_classes(&self, target: usize, good: &[usize], count: usize) -> Result<(), TableError> {
        if count <= MOST_CLASSES && 2 * count <= good.len() {
            return Ok(());
        }
        let name = &self.rows.header[target];
        let example = self.rows.cell(good[0], target);
        let (count, rows) = (grouped(count as u64), grouped(good.len() as u64));
        let advice = match parse(example).is_some() {
            true => format!("To predict a number, write columns.{name}=number"),
            false => format!(
                "{}; numbers, such as 1234.5, are predicted with columns.{name}=number",
                not_a_number(example)
            ),
        };
        self.fail(&format!(
            "has {count} different values of the target {name} in {rows} rows, too many for classes: there may be half as many as \
             rows, and at most {}. {advice}",
            grouped(MOST_CLASSES as u64)
        ))
    }
}

/// An example as part of a sentence.
pub(super) fn such_as(example: &str) -> String {
    match example.is_empty() {
        true => String::new(),
        false => format!(", such as {example:?}"),
    }
}
