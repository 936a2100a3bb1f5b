//! Columns of a safetensors file whose tensors have one row for each sample, read row by row.

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorView};
use std::collections::HashMap;
use std::ops::Range;

use crate::blocks::Packing;
use crate::error::GraphError;
use crate::host::HostTensor;
use crate::weights::tensor;

/// Bytes before a safetensors file's header, which say how long that is.
pub const HEADER_LENGTH: u64 = 8;

/// Longest header: some hundred thousand columns.
const MOST: u64 = 16 << 20;

/// A tensor of such a file, of which any rows can be read.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// How many rows it has.
    pub rows: u64,
    /// The shape of a row.
    shape: Vec<usize>,
    element: Dtype,
    /// Where its first row begins in the file.
    start: u64,
    /// Bytes of a row.
    length: u64,
}

/// The place of the header, from the first [`HEADER_LENGTH`] bytes of a file of this length.
///
/// # Errors
///
/// If it is no safetensors file.
pub fn header(first: [u8; HEADER_LENGTH as usize], file: u64) -> Result<Range<u64>, GraphError> {
    let length = u64::from_le_bytes(first);
    let end = HEADER_LENGTH.checked_add(length);
    match end.filter(|end| length <= MOST && *end <= file) {
        Some(end) => Ok(HEADER_LENGTH..end),
        None => Err(GraphError::weights("it is no safetensors file".to_owned())),
    }
}

/// The columns that a header of these bytes names in a file of this length, and the file's metadata.
///
/// # Errors
///
/// If it is damaged, or a tensor is packed in blocks or has no rows.
pub fn columns(header: &[u8], file: u64) -> Result<(Vec<Column>, HashMap<String, String>), GraphError> {
    let fault = |problem: String| GraphError::weights(problem);
    let read: Metadata = serde_json::from_slice(header).map_err(|error| fault(error.to_string()))?;
    let facts = read.metadata().clone().unwrap_or_default();
    let data = HEADER_LENGTH + header.len() as u64;
    let mut found = Vec::new();
    for (name, info) in read.tensors() {
        let wrong = |problem: &str| fault(format!("`{name}` {problem}"));
        if facts.contains_key(&Packing::key(&name)) {
            return Err(wrong("is packed in blocks, of which no rows can be read"));
        }
        let (begin, end) = info.data_offsets;
        let (rows, shape) = info.shape.split_first().ok_or_else(|| wrong("has no rows"))?;
        let bytes = end
            .checked_sub(begin)
            .ok_or_else(|| wrong("ends before it begins"))? as u64;
        let rows = *rows as u64;
        if rows > 0 && !bytes.is_multiple_of(rows) || data + end as u64 > file {
            return Err(wrong("is cut off"));
        }
        found.push(Column {
            length: bytes.checked_div(rows).unwrap_or(0),
            name,
            rows,
            shape: shape.to_vec(),
            element: info.dtype,
            start: data + begin as u64,
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((found, facts))
}

impl Column {
    /// The bytes of a row in the file.
    pub fn row(&self, row: u64) -> Range<u64> {
        let start = self.start + row * self.length;
        start..start + self.length
    }

    /// Bytes of a row.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Some rows, from their bytes one after the other.
    ///
    /// # Errors
    ///
    /// If the elements are of a type that no model takes, or the bytes are not of this many rows.
    pub fn tensor(&self, rows: usize, bytes: &[u8]) -> Result<HostTensor, GraphError> {
        let shape = [&[rows], &self.shape[..]].concat();
        let view = TensorView::new(self.element, shape, bytes);
        let read = view
            .map_err(|error| error.to_string())
            .and_then(|view| tensor(&view));
        read.map_err(|problem| GraphError::weights(format!("`{}`: {problem}", self.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Numbers;
    use std::collections::HashMap;

    fn file() -> Vec<u8> {
        let pixels: Vec<u8> = (0..24).collect();
        let labels: Vec<u8> = (0..4i64).flat_map(|label| (10 * label).to_le_bytes()).collect();
        let tensors = [
            ("x", TensorView::new(Dtype::U8, vec![4, 2, 3], &pixels).unwrap()),
            ("y", TensorView::new(Dtype::I64, vec![4], &labels).unwrap()),
        ];
        let facts = HashMap::from([("evaluated".to_owned(), "1".to_owned())]);
        safetensors::serialize(tensors, Some(facts)).unwrap()
    }

    fn read(file: &[u8]) -> Result<(Vec<Column>, HashMap<String, String>), GraphError> {
        let first = file[..8].try_into().unwrap();
        let Range { start, end } = header(first, file.len() as u64)?;
        columns(&file[start as usize..end as usize], file.len() as u64)
    }

    #[test]
    fn rows_are_read_where_they_lie() {
        let file = file();
        let (columns, facts) = read(&file).unwrap();
        assert_eq!(facts["evaluated"], "1");
        let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
        assert_eq!(names, ["x", "y"]);
        let rows = |column: &Column, rows: &[u64]| {
            let bytes = |row: &u64| {
                let Range { start, end } = column.row(*row);
                file[start as usize..end as usize].to_vec()
            };
            let bytes: Vec<u8> = rows.iter().flat_map(bytes).collect();
            column.tensor(rows.len(), &bytes).unwrap()
        };
        let x = rows(&columns[0], &[3, 0]);
        assert_eq!(x.shape(), [2, 2, 3]);
        assert_eq!(
            *x.numbers(),
            Numbers::Integers([18..24, 0..6].into_iter().flatten().collect())
        );
        let y = rows(&columns[1], &[2]);
        assert_eq!((y.shape(), y.numbers()), (&[1][..], &Numbers::Integers(vec![20])));
        assert!(columns[1].tensor(2, &[0; 8]).is_err());
    }

    #[test]
    fn damaged_files_are_an_error() {
        let good = file();
        for len in 8..good.len() {
            assert!(read(&good[..len]).is_err(), "{len}");
        }
        for at in 0..good.len() - 56 {
            for change in [1, 0x80] {
                let mut bad = good.clone();
                bad[at] ^= change;
                // It is an error or another sound file.
                if let Ok((columns, _)) = read(&bad) {
                    for column in columns.iter().filter(|column| column.rows > 0) {
                        assert!(column.row(column.rows - 1).end <= bad.len() as u64);
                    }
                }
            }
        }
    }
}
