//! What can be wrong with a table.

use crate::number::grouped;
use std::fmt::{self, Display, Formatter};

/// Why a table cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Some rows cannot be used.
    #[error("{0}")]
    Rows(Faults),
    /// The file as a whole, or the options.
    #[error("{0}")]
    Other(String),
}

/// All rows of a file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The file's name.
    pub file: String,
    /// Its rows, good and bad.
    pub rows: u64,
    /// What is wrong, by line.
    pub list: FaultList,
    /// How to go on without these rows, if that is possible.
    pub remedy: &'static str,
}

/// What is wrong with one row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The line on which the row begins, from 1.
    pub line: u64,
    /// The column, if one is to blame.
    pub column: Option<String>,
    /// The problem.
    pub what: String,
}

/// Faults of some rows, of which only the first are kept, so that bad rows take no more memory than good ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultList {
    kept: Vec<Fault>,
    /// How many there are.
    count: u64,
    /// How many rows they are in.
    rows: u64,
    /// The line of the last one.
    last: Option<u64>,
}

impl FaultList {
    /// Most faults that are kept: fifty times what a message lists.
    const KEPT: usize = 1_000;

    /// Adds a fault. Those of one row come one after the other.
    pub(crate) fn push(&mut self, fault: Fault) {
        self.count += 1;
        self.rows += u64::from(self.last.replace(fault.line) != Some(fault.line));
        if self.kept.len() < Self::KEPT {
            self.kept.push(fault);
        }
    }

    /// Orders those that are kept by line.
    pub(crate) fn sort(&mut self) {
        self.kept.sort_by_key(|fault| fault.line);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many rows they are in.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The first ones.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.kept.iter()
    }
}

/// Faults that a message lists; the rest are counted.
const SHOWN: usize = 20;

impl Display for Faults {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (bad, rows) = (grouped(self.list.rows()), grouped(self.rows));
        writeln!(f, "{}: {bad} of {rows} rows cannot be used:", self.file)?;
        for fault in self.list.iter().take(SHOWN) {
            writeln!(f, "  {fault}")?;
        }
        if let Some(more) = self.list.len().checked_sub(SHOWN + 1) {
            writeln!(f, "  and {} more faults", grouped(more as u64 + 1))?;
        }
        f.write_str(self.remedy)
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", grouped(self.line))?;
        if let Some(column) = &self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": {}", self.what)
    }
}
