//! Reads CSV and TSV as RFC 4180 describes it, and as spreadsheets write it: BOM, any line end, quotes over lines,
//! semicolons. Parses by itself because a fault needs the line on which its row begins, and an open quote must be noticed.

use crate::error::{Fault, FaultList, TableError};
use crate::gzip::packed;
use crate::number::grouped;
use std::collections::BTreeSet;

/// Whether a file is no text but Parquet, by its first bytes.
pub(crate) fn is_parquet(file: &[u8]) -> bool {
    file.starts_with(b"PAR1")
}

/// The rows of a file that have as many fields as its header, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// Names of the columns.
    pub header: Vec<String>,
    /// What stands between fields.
    pub separator: u8,
    text: String,
    /// Where each field ends in the text.
    ends: Vec<usize>,
    /// The line on which each row begins, or the largest number.
    lines: Vec<u32>,
    /// Rows of the file, bad ones too.
    pub seen: u64,
}

impl Rows {
    /// Reads a file. Rows that are no rows are told as faults and left out.
    pub fn read(name: &str, bytes: &[u8]) -> Result<(Self, FaultList), TableError> {
        let fail = |what: &str| Err(TableError::Other(format!("{name} {what}")));
        if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
            return fail("is UTF-16: save it as UTF-8");
        }
        if let Some(why) = packed(bytes) {
            return fail(why);
        }
        if is_parquet(bytes) {
            return fail(
                "is a Parquet file. The peer that founds a run converts it, if its name ends in .parquet; to take part in a \
                 run, leave it out or name the table.csv of the run's folder",
            );
        }
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let (separator, told) = match told_separator(bytes) {
            Some(told) => (told, true),
            None if name.to_lowercase().ends_with(".tsv") => (b'\t', false),
            None => (separator(bytes), false),
        };
        let mut records = Records {
            bytes,
            at: 0,
            line: 1,
            separator,
        };
        if told {
            records.at = "sep=;".len();
            records.end_line();
        }
        let mut record = Record::default();
        if !records.read(&mut record) {
            return fail("is empty: its first line must name the columns, and the rows follow");
        }
        if record.open {
            return fail("has a quote in its first line that never ends");
        }
        if record.text.contains(&0) {
            return fail(
                "is no text, or UTF-16: there are zero bytes in its first line. Save it as CSV in UTF-8",
            );
        }
        let Ok(names) = std::str::from_utf8(&record.text) else {
            return fail(
                "has a first line that is not UTF-8, so its columns have no names: save the table as CSV in UTF-8",
            );
        };
        let header = names_of(names, &record.ends);
        let mut known = BTreeSet::new();
        if let Some(twice) = header.iter().find(|name| !known.insert(*name)) {
            return fail(&format!("has two columns named {twice:?}: rename one of them"));
        }
        let mut rows = Self {
            header,
            separator,
            text: String::new(),
            ends: Vec::new(),
            lines: Vec::new(),
            seen: 0,
        };
        let mut faults = FaultList::default();
        while records.read(&mut record) {
            rows.seen += 1;
            if let Err((column, what)) = rows.add(&record) {
                let line = record.line;
                faults.push(Fault { line, column, what });
            }
        }
        Ok((rows, faults))
    }

    /// Takes a record as a row, or tells the column and what is wrong.
    fn add(&mut self, record: &Record) -> Result<(), (Option<String>, String)> {
        let (found, wanted) = (record.ends.len(), self.header.len());
        if record.open {
            let what = "a quote begins in this row and never ends";
            let lines = record.text.trim_ascii_end();
            let lines = lines.iter().filter(|byte| **byte == b'\n').count();
            return Err((
                None,
                match lines {
                    0 => what.to_owned(),
                    1 => format!("{what}, so it takes in the line that follows"),
                    _ => format!(
                        "{what}, so it takes in the {} lines that follow",
                        grouped(lines as u64)
                    ),
                },
            ));
        }
        if found != wanted {
            let fields = if found == 1 { "field" } else { "fields" };
            let (found, wanted) = (grouped(found as u64), grouped(wanted as u64));
            return Err((None, format!("{found} {fields} where the header has {wanted}")));
        }
        let fault = |at: usize, what: String| {
            let column = record.ends.partition_point(|end| *end <= at);
            (self.header.get(column).cloned(), what)
        };
        if let Some(at) = record.text.iter().position(|byte| *byte == 0) {
            return Err(fault(at, "a zero byte is no text".into()));
        }
        let text = std::str::from_utf8(&record.text).map_err(|error| {
            let at = error.valid_up_to();
            let byte = record.text[at];
            fault(
                at,
                format!("the byte 0x{byte:02X} is not UTF-8: save the file as UTF-8"),
            )
        })?;
        let start = self.text.len();
        self.text.push_str(text);
        self.ends.extend(record.ends.iter().map(|end| start + end));
        self.lines.push(u32::try_from(record.line).unwrap_or(u32::MAX));
        Ok(())
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// The line on which a row begins.
    pub fn line(&self, row: usize) -> u64 {
        self.lines[row].into()
    }

    /// A field as it is in the file, without its quotes.
    pub fn field(&self, row: usize, column: usize) -> &str {
        let index = row * self.header.len() + column;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[index]]
    }

    /// All fields of a row, one behind the other.
    pub fn record(&self, row: usize) -> &str {
        let width = self.header.len();
        let start = (row * width).checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[(row + 1) * width - 1]]
    }

    /// A field without the blanks around it.
    pub fn cell(&self, row: usize, column: usize) -> &str {
        self.field(row, column).trim()
    }

    /// The number of the column with this name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|known| known == name)
    }
}

/// The names in a header. A column without a name, as pandas writes for its index, is named after its place.
fn names_of(text: &str, ends: &[usize]) -> Vec<String> {
    let starts = std::iter::once(&0).chain(ends);
    let name = |(at, (start, end)): (usize, (&usize, &usize))| match text[*start..*end].trim() {
        "" => format!("column {}", at + 1),
        name => name.to_owned(),
    };
    starts.zip(ends).enumerate().map(name).collect()
}

/// Possible separators of fields. If several are equally frequent, the first counts.
const SEPARATORS: [u8; 4] = [b',', b'\t', b';', b'|'];

/// The separator in the line by which Excel tells it, such as `sep=;`.
fn told_separator(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [b's', b'e', b'p', b'=', separator, b'\n' | b'\r', ..] => Some(*separator),
        _ => None,
    }
}

/// The separator that occurs most in the first line, outside of quotes.
fn separator(bytes: &[u8]) -> u8 {
    let (mut quoted, mut counts) = (false, SEPARATORS.map(|_| 0));
    let is_end = |byte: &&u8| matches!(byte, b'\n' | b'\r');
    let first = bytes.iter().skip_while(is_end).take_while(|byte| !is_end(byte));
    for byte in first {
        quoted ^= *byte == b'"';
        if let Some(at) = SEPARATORS
            .iter()
            .position(|separator| separator == byte && !quoted)
        {
            counts[at] += 1;
        }
    }
    let most = counts.iter().max().copied().unwrap_or(0);
    let at = counts.iter().position(|count| *count == most);
    SEPARATORS[at.unwrap_or(0)]
}

/// One record: its fields' bytes without quotes, and where each ends.
#[derive(Default)]
struct Record {
    text: Vec<u8>,
    ends: Vec<usize>,
    line: u64,
    /// Whether the file ends inside a quote.
    open: bool,
}

struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u64,
    separator: u8,
}

impl Records<'_> {
    /// Reads the next record that is not an empty line.
    fn read(&mut self, record: &mut Record) -> bool {
        while let Some(first) = self.bytes.get(self.at) {
            if matches!(first, b'\n' | b'\r') {
                self.end_line();
                continue;
            }
            record.text.clear();
            record.ends.clear();
            (record.line, record.open) = (self.line, false);
            while self.field(record) {}
            return true;
        }
        false
    }

    /// Reads a field; whether another follows in this record.
    fn field(&mut self, record: &mut Record) -> bool {
        if self.bytes.get(self.at) == Some(&b'"') {
            self.quoted(record);
        }
        let rest = &self.bytes[self.at..];
        let ends = |byte: &u8| *byte == self.separator || matches!(byte, b'\n' | b'\r');
        let length = rest.iter().position(ends).unwrap_or(rest.len());
        record.text.extend_from_slice(&rest[..length]);
        record.ends.push(record.text.len());
        self.at += length;
        match self.bytes.get(self.at) {
            Some(byte) if *byte == self.separator => {
                self.at += 1;
                true
            }
            Some(_) => {
                self.end_line();
                false
            }
            None => false,
        }
    }

    /// Reads what stands in quotes. Two quotes mean one.
    fn quoted(&mut self, record: &mut Record) {
        self.at += 1;
        loop {
            match (self.bytes.get(self.at), self.bytes.get(self.at + 1)) {
                (None, _) => {
                    record.open = true;
                    return;
                }
                (Some(b'"'), Some(b'"')) => self.at += 1,
                (Some(b'"'), _) => {
                    self.at += 1;
                    return;
                }
                (Some(b'\n'), _) => self.line += 1,
                _ => {}
            }
            record.text.push(self.bytes[self.at]);
            self.at += 1;
        }
    }

    /// Goes over one line end: `\n`, `\r\n` or `\r`.
    fn end_line(&mut self) {
        let windows = self.bytes[self.at..].starts_with(b"\r\n");
        self.at += 1 + usize::from(windows);
        self.line += 1;
    }
}

/// Appends a field, in quotes if it needs them.
pub fn write_field(out: &mut String, field: &str, separator: u8) {
    let special = |c: char| matches!(c, '"' | '\n' | '\r') || c == char::from(separator);
    if field.contains(special) {
        out.push('"');
        out.push_str(&field.replace('"', "\"\""));
        out.push('"');
    } else {
        out.push_str(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> (Rows, Vec<String>) {
        let (rows, faults) = Rows::read("t.csv", text).unwrap();
        (rows, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_spreadsheets_write_is_read() {
        let plain = b"a,b\n1,x\n2,\"y, z\"\n".as_slice();
        for other in [
            b"\xef\xbb\xbfa,b\n1,x\n2,\"y, z\"\n".as_slice(),
            b"a,b\r\n1,x\r\n2,\"y, z\"\r\n",
            b"a,b\r1,x\r2,\"y, z\"",
            b"\n\na;b\n\n1;x\n2;y, z",
            b"a\tb\n1\tx\n2\ty, z\n",
            b"a|b\n1|x\n2|y, z\n",
            plain,
        ] {
            let (rows, faults) = read(other);
            assert_eq!((rows.header.join("|"), faults.len()), ("a|b".into(), 0));
            let cells = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(row, column)| rows.cell(row, column));
            assert_eq!(cells, ["1", "x", "2", "y, z"]);
        }
    }

    #[test]
    fn faults_name_the_line_on_which_the_row_begins() {
        let (rows, faults) =
            read(b"a,b\r\n1,\"two\nlines\"\r\n\r\n3\r\n4,\xff\r\n5,6,7\r\n8,9\r\n10,\"open\r\n");
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows.cell(0, 1), rows.line(0), rows.line(1)),
            ("two\nlines", 2, 8)
        );
        assert_eq!(
            faults,
            [
                "line 5: 1 field where the header has 2",
                "line 6, column b: the byte 0xFF is not UTF-8: save the file as UTF-8",
                "line 7: 3 fields where the header has 2",
                "line 9: a quote begins in this row and never ends",
            ]
        );
        assert_eq!(rows.seen, 6);
        let (_, faults) = read(b"a,b\n1,x\n2,\"open\n3,y\n4,z\n");
        let told =
            "line 3: a quote begins in this row and never ends, so it takes in the 2 lines that follow";
        assert_eq!(faults, [told]);
        let (rows, faults) = read(b"a,b\n1,x\n2,\0\n");
        assert_eq!(
            (rows.len(), faults),
            (1, vec!["line 3, column b: a zero byte is no text".to_owned()])
        );
    }

    #[test]
    fn a_line_of_excel_tells_the_separator() {
        let (rows, faults) = read(b"sep=;\r\na;b,c\r\n1;2,5\r\n3;x\r\n");
        assert_eq!(
            (rows.header.as_slice(), faults.len()),
            (["a", "b,c"].map(str::to_owned).as_slice(), 0)
        );
        assert_eq!((rows.cell(0, 1), rows.line(1)), ("2,5", 4));
    }

    #[test]
    fn files_without_a_usable_header_are_refused() {
        for (bytes, told) in [
            (b"".as_slice(), "is empty: its first line must name the columns"),
            (b"\n\n", "is empty: its first line must name the columns"),
            (b"a,\"b\n1,2\n", "a quote in its first line that never ends"),
            (b"a\0,\0b\0\n\0", "is no text, or UTF-16"),
            (b"a,b,a\n", "two columns named \"a\""),
            (b"\xff\xfea\0", "UTF-16"),
            (b"PK\x03\x04", "is a ZIP file, or an Excel workbook"),
            (b"\x1f\x8b\x08", "is a gzip file: give it a name that ends in .gz"),
            (b"\xffa,b\n", "not UTF-8"),
        ] {
            let told_of = Rows::read("t.csv", bytes).unwrap_err().to_string();
            assert!(told_of.contains(told), "{told_of}");
        }
        assert_eq!(read(b",a\n1,2\n").0.header, ["column 1", "a"]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(cells in prop::collection::vec("[a-c\",;\t\r\n ]{0,5}", 0..40), windows: bool) {
            let mut text = String::from("p,q,r");
            let rows: Vec<&[String]> = cells.chunks_exact(3).collect();
            for row in &rows {
                text.push_str(if windows { "\r\n" } else { "\n" });
                for (at, cell) in row.iter().enumerate() {
                    text.push_str(if at > 0 { "," } else { "" });
                    write_field(&mut text, cell, b',');
                }
            }
            let (found, faults) = read(text.as_bytes());
            prop_assert_eq!((found.len(), faults.len()), (rows.len(), 0));
            for (at, row) in rows.iter().enumerate() {
                for (column, cell) in row.iter().enumerate() {
                    prop_assert_eq!(found.field(at, column), cell);
                }
            }
        }
    }
}
