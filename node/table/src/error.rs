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
    pub list: Vec<Fault>,
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

/// Faults that a message lists; the rest are counted.
const SHOWN: usize = 20;

impl Display for Faults {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<u64> = self.list.iter().map(|fault| fault.line).collect();
        lines.dedup();
        let (bad, rows) = (grouped(lines.len() as u64), grouped(self.rows));
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
