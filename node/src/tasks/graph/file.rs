//! Samples in a file that may be larger than memory and, where it is streamed, than the disk: rows are read when they are
//! needed.
//!
//! It knows nothing of models.

use crate::data::{Contents, DataError, DataFile, PIECE};
use crate::task::TaskError;
use annulus_core::Digest;
use annulus_graph::{Column, HEADER_LENGTH, HostTensor, columns, header};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

/// Bytes of the longest column in a chunk. Rows lie across the borders of pieces, so of each chunk one piece more is read.
const CHUNK: u64 = 4 * PIECE;

/// A file of samples.
#[derive(Debug)]
pub struct SampleFile {
    contents: Contents,
    columns: Vec<Column>,
    digest: Digest,
    /// Why the file cannot be read any more.
    lost: OnceLock<String>,
}

impl SampleFile {
    /// Reads what the file says of itself. Also returns its metadata.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is no safetensors file.
    pub fn open(file: &DataFile) -> Result<(Self, HashMap<String, String>), TaskError> {
        let contents = file.contents()?;
        let digest = match contents.known_digest() {
            Some(known) => known,
            None => contents.read_all(|_| {})?,
        };
        let length = contents.len();
        // Of streamed data the first piece is here.
        let first = contents.part(0..HEADER_LENGTH.min(length))?.into_owned();
        let first = first
            .try_into()
            .map_err(|_| format!("{} is cut off", file.name()))?;
        let (columns, facts) = columns(&contents.part(header(first, length)?)?, length)?;
        // Elements that no model takes are told of before training begins.
        columns
            .iter()
            .try_for_each(|column| column.tensor(0, &[]).map(drop))?;
        let lost = OnceLock::new();
        let file = Self {
            contents,
            columns,
            digest,
            lost,
        };
        Ok((file, facts))
    }

    /// Its columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Leaves out all columns but these.
    pub fn keep(&mut self, names: &[String]) {
        self.columns.retain(|column| names.contains(&column.name));
    }

    /// The hash of its bytes.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Rows of a chunk, of which there are at least two.
    pub fn chunk(&self) -> NonZeroU32 {
        let longest = self.columns.iter().map(Column::length).max().unwrap_or(0);
        let rows = (CHUNK / longest.max(1)).clamp(2, u32::MAX.into()) as u32;
        NonZeroU32::new(rows).expect("at least two")
    }

    /// Of a streamed file: asks for these rows, and waits for so long at most. Returns whether all are here.
    pub fn have(&self, rows: &[u64], wait: Duration) -> bool {
        self.contents.have(self.ranges(rows), wait)
    }

    /// Of a streamed file: asks for these rows, and keeps them from then on.
    pub fn pin(&self, rows: &[u64]) {
        self.contents.pin(self.ranges(rows));
    }

    fn ranges(&self, rows: &[u64]) -> impl Iterator<Item = Range<u64>> {
        let columns = self.columns.iter();
        columns.flat_map(|column| rows.iter().map(|row| column.row(*row)))
    }

    /// These rows of each column. If the file has changed or cannot be read, they are zeros, and [`intact`](Self::intact) fails
    /// from then on.
    pub fn rows(&self, rows: &[u64]) -> Vec<(String, HostTensor)> {
        let read = |column: &Column| {
            let mut bytes = Vec::with_capacity(rows.len() * column.length() as usize);
            for row in rows {
                let Range { start, end } = column.row(*row);
                match self.contents.part(start..end) {
                    Ok(part) => bytes.extend_from_slice(&part),
                    Err(error) => {
                        // What is elsewhere may come; `have` tells.
                        if !matches!(error, DataError::Elsewhere) {
                            self.lost.get_or_init(|| error.to_string());
                        }
                        bytes.resize(bytes.len() + column.length() as usize, 0);
                    }
                }
            }
            let tensor = column.tensor(rows.len(), &bytes);
            (
                column.name.clone(),
                tensor.expect("as many bytes as the rows have"),
            )
        };
        self.columns.iter().map(read).collect()
    }

    /// Whether all that was read so far belongs to the file with this [`digest`](Self::digest).
    ///
    /// # Errors
    ///
    /// If not, what happened to the file.
    pub fn intact(&self) -> Result<(), TaskError> {
        match self.lost.get() {
            None => Ok(()),
            Some(why) => Err(why.clone().into()),
        }
    }
}
