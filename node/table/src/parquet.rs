//! Parquet files as CSV. The peer that founds a run converts its file once, so that all others learn from the same text, also
//! tabs and programs that read no Parquet.

use crate::csv::is_parquet;
use crate::error::TableError;
use std::borrow::Cow;

/// A table's text: a Parquet file as CSV, any other file as it is. `tell` hears how many of how many rows are done.
///
/// The CSV is the one that pandas writes of the same file, except that booleans are `true` and `false`. A struct, a list or a map
/// becomes JSON.
///
/// # Errors
///
/// If the file is damaged, has bytes that are no text, is too large, or is Parquet and this program was built without the
/// feature `parquet`.
pub fn as_csv<'a>(
    name: &str,
    file: &'a [u8],
    tell: &mut dyn FnMut(u64, u64),
) -> Result<Cow<'a, [u8]>, TableError> {
    if !is_parquet(file) {
        return Ok(Cow::Borrowed(file));
    }
    match converted(file, tell) {
        Ok(csv) => Ok(Cow::Owned(csv.into_bytes())),
        Err(error) => Err(TableError::Other(format!("{name} {error}"))),
    }
}

#[cfg(not(feature = "parquet"))]
fn converted(_: &[u8], _: &mut dyn FnMut(u64, u64)) -> Result<String, &'static str> {
    Err(
        "is a Parquet file, and this program was built without Parquet. Save the table as CSV, or build with --features parquet",
    )
}

#[cfg(feature = "parquet")]
use reader::converted;

#[cfg(feature = "parquet")]
mod reader {
    use crate::csv::write_field;
    use ::parquet::basic::{LogicalType, TimeUnit};
    use ::parquet::errors::ParquetError;
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::Field;
    use ::parquet::schema::types::Type;
    use bytes::Bytes;
    use chrono::DateTime;
    use std::fmt::Write;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// More text than this is refused: a small file may hold one value billions of times.
    const LIMIT: usize = 4 << 30;

    /// Rows between two words about how many are done.
    const TOLD: u64 = 10_000;

    #[derive(Debug, thiserror::Error)]
    pub(super) enum Error {
        #[error("cannot be read as Parquet: {0}")]
        Parquet(#[from] ParquetError),
        #[error("is damaged: write it again")]
        Damaged,
        #[error("has bytes that are no text in column {0}: write the table without it")]
        Bytes(String),
        #[error("takes more than 4 GiB as CSV: write a table with fewer rows or columns")]
        Large,
    }

    pub(super) fn converted(file: &[u8], tell: &mut dyn FnMut(u64, u64)) -> Result<String, Error> {
        // The library panics at some kinds of damage.
        catch_unwind(AssertUnwindSafe(|| rows(file, tell))).unwrap_or(Err(Error::Damaged))
    }

    fn rows(file: &[u8], tell: &mut dyn FnMut(u64, u64)) -> Result<String, Error> {
        let reader = SerializedFileReader::new(Bytes::copy_from_slice(file))?;
        let facts = reader.metadata().file_metadata();
        let columns = facts.schema_descr().root_schema().get_fields();
        let total = u64::try_from(facts.num_rows()).unwrap_or(0);
        let mut csv = String::new();
        // In quotes, so that no sign in a name can pass for what stands between columns.
        let names: Vec<String> = columns.iter().map(|column| quoted(column.name())).collect();
        csv += &names.join(",");
        let in_nanoseconds: Vec<bool> = columns.iter().map(|column| counts_nanoseconds(column)).collect();
        for (row, done) in reader.get_row_iter(None)?.zip(0..) {
            csv.push('\n');
            for (at, (name, value)) in row?.get_column_iter().enumerate() {
                if at > 0 {
                    csv.push(',');
                }
                let start = csv.len();
                write_value(&mut csv, value, in_nanoseconds[at]).map_err(|()| Error::Bytes(name.clone()))?;
                // An empty line would be no row.
                if columns.len() == 1 && csv.len() == start {
                    csv += "\"\"";
                }
            }
            if csv.len() > LIMIT {
                return Err(Error::Large);
            }
            if done % TOLD == 0 {
                tell(done, total);
            }
        }
        csv.push('\n');
        Ok(csv)
    }

    fn quoted(name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }

    /// Whether its whole numbers are points in time, in a unit that the library hands on as plain numbers.
    fn counts_nanoseconds(column: &Type) -> bool {
        matches!(
            column.get_basic_info().logical_type_ref(),
            Some(LogicalType::Timestamp(kind)) if kind.unit == TimeUnit::NANOS
        )
    }

    /// Appends a value as a cell; an error if it is bytes that are no text.
    fn write_value(csv: &mut String, value: &Field, in_nanoseconds: bool) -> Result<(), ()> {
        let _ = match value {
            Field::Null => Ok(()),
            // pandas writes both for a number that is not known.
            Field::Float(value) if value.is_nan() => Ok(()),
            Field::Double(value) if value.is_nan() => Ok(()),
            // With an exponent where that is shorter.
            Field::Float(value) => write!(csv, "{value:?}"),
            Field::Double(value) => write!(csv, "{value:?}"),
            Field::Str(text) => {
                write_field(csv, text, b',');
                Ok(())
            }
            Field::Bytes(bytes) => {
                write_field(csv, std::str::from_utf8(bytes.data()).map_err(drop)?, b',');
                Ok(())
            }
            Field::Date(days) => {
                let day = i64::from(*days) * 24 * 60 * 60;
                write_time(
                    csv,
                    DateTime::from_timestamp(day, 0),
                    "%Y-%m-%d",
                    i64::from(*days),
                )
            }
            Field::Long(count) if in_nanoseconds => {
                let time = DateTime::from_timestamp_nanos(*count);
                write_time(csv, Some(time), TIME, *count)
            }
            Field::TimestampMillis(count) => {
                write_time(csv, DateTime::from_timestamp_millis(*count), TIME, *count)
            }
            Field::TimestampMicros(count) => {
                write_time(csv, DateTime::from_timestamp_micros(*count), TIME, *count)
            }
            Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_) => {
                write_field(csv, &value.to_json_value().to_string(), b',');
                Ok(())
            }
            // Whole numbers, booleans, decimals and times of day: none needs quotes.
            other => write!(csv, "{other}"),
        };
        Ok(())
    }

    /// As texts, times are in the same order as themselves. Fractions only where there are some.
    const TIME: &str = "%Y-%m-%d %H:%M:%S%.f";

    /// Appends a time, or the number that stands for it where that is no time.
    fn write_time(
        csv: &mut String,
        time: Option<DateTime<chrono::Utc>>,
        form: &str,
        number: i64,
    ) -> std::fmt::Result {
        match time {
            Some(time) => write!(csv, "{}", time.format(form)),
            None => write!(csv, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../tests/fixtures/", $name, ".parquet")).as_slice()
        };
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let csv = as_csv("t.csv", b"a,b\n1,2\n", &mut |_, _| {}).unwrap();
        assert!(matches!(csv, Cow::Borrowed(b"a,b\n1,2\n")));
    }

    #[test]
    #[cfg(not(feature = "parquet"))]
    fn a_program_without_parquet_says_so() {
        let error = as_csv("t.parquet", fixture!("none"), &mut |_, _| {}).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("t.parquet is a Parquet file, and this program was built without Parquet"),
            "{error}"
        );
    }

    #[cfg(feature = "parquet")]
    mod with_parquet {
        use super::*;
        use crate::FaultList;
        use crate::csv::Rows;
        use ::parquet::data_type::DoubleType;
        use ::parquet::file::writer::SerializedFileWriter;
        use ::parquet::schema::parser::parse_message_type;
        use proptest::prelude::*;
        use std::sync::Arc;

        fn converted(file: &[u8]) -> Result<String, TableError> {
            let csv = as_csv("t.parquet", file, &mut |_, _| {})?;
            Ok(String::from_utf8(csv.into_owned()).unwrap())
        }

        /// The cells of a table, as pandas writes them.
        fn cells(csv: &[u8]) -> Vec<Vec<String>> {
            let (rows, faults) = Rows::read("t.csv", csv).unwrap();
            assert_eq!(faults, FaultList::default());
            let row = |row| {
                (0..rows.header.len())
                    .map(|at| rows.field(row, at).to_owned())
                    .collect()
            };
            std::iter::once(rows.header.clone())
                .chain((0..rows.len()).map(row))
                .collect()
        }

        #[test]
        fn every_compression_gives_what_pandas_writes() {
            let text = include_str!("../tests/fixtures/pandas.csv");
            let text = text.replace("True", "true").replace("False", "false");
            // Both write the digits that tell a number from all others, with exponents of different forms.
            let cells = |csv: &[u8]| {
                let mut cells = cells(csv);
                for row in &mut cells[1..] {
                    row[4] = row[4].parse::<f64>().unwrap().to_string();
                }
                cells
            };
            let expected = cells(text.as_bytes());
            assert_eq!(expected.len(), 61);
            let mut told = Vec::new();
            for file in [
                fixture!("none"),
                fixture!("snappy"),
                fixture!("gzip"),
                fixture!("lz4"),
                fixture!("zstd"),
            ] {
                let csv = as_csv("t.parquet", file, &mut |done, total| told.push((done, total))).unwrap();
                assert_eq!(cells(&csv), expected);
            }
            assert_eq!(told, [(0, 60); 5]);
        }

        #[test]
        fn nested_values_become_json() {
            let expected = [
                ["point", "tags", "label"],
                [r#"{"x":1.5,"y":null}"#, r#"["a","b"]"#, "p"],
                [r#"{"x":2.0,"y":"north"}"#, "[]", "q"],
            ];
            assert_eq!(cells(converted(fixture!("nested")).unwrap().as_bytes()), expected);
        }

        #[test]
        fn what_is_no_table_is_refused() {
            let error = converted(fixture!("bytes")).unwrap_err().to_string();
            let told = "t.parquet has bytes that are no text in column picture: write the table without it";
            assert_eq!(error, told);
            let cut = &fixture!("none")[..9_000];
            let error = converted(cut).unwrap_err().to_string();
            assert!(
                error.starts_with("t.parquet cannot be read as Parquet: "),
                "{error}"
            );
        }

        /// A file with one column of numbers; those that are not finite are missing.
        fn of_numbers(name: &str, values: &[f64]) -> Vec<u8> {
            let schema = format!("message table {{ OPTIONAL DOUBLE {name}; }}");
            let mut file = Vec::new();
            let schema = Arc::new(parse_message_type(&schema).unwrap());
            let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::default()).unwrap();
            let mut rows = writer.next_row_group().unwrap();
            let mut column = rows.next_column().unwrap().unwrap();
            let present: Vec<i16> = values.iter().map(|value| i16::from(value.is_finite())).collect();
            let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
            let typed = column.typed::<DoubleType>();
            typed.write_batch(&finite, Some(&present), None).unwrap();
            column.close().unwrap();
            rows.close().unwrap();
            writer.close().unwrap();
            file
        }

        #[test]
        fn an_empty_cell_of_a_single_column_is_a_row() {
            let csv = converted(&of_numbers("x", &[1.0, f64::NAN, 3.0])).unwrap();
            assert_eq!(csv, "\"x\"\n1.0\n\"\"\n3.0\n");
            assert_eq!(cells(csv.as_bytes()).len(), 4);
        }

        proptest! {
            #[test]
            fn numbers_keep_their_bits(values in prop::collection::vec(any::<f64>(), 1..40)) {
                let csv = converted(&of_numbers("x", &values)).unwrap();
                let read: Vec<f64> = cells(csv.as_bytes())[1..]
                    .iter()
                    .map(|row| row[0].parse().unwrap_or(f64::NAN))
                    .collect();
                let bits = |values: &[f64]| -> Vec<Option<u64>> {
                    values.iter().map(|value| value.is_finite().then_some(value.to_bits())).collect()
                };
                prop_assert_eq!(bits(&read), bits(&values));
            }

            /// A damaged file is an error, or another table, but ends nothing.
            #[test]
            fn damage_does_no_harm(at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
                let mut file = fixture!("zstd").to_vec();
                for (at, byte) in at {
                    let length = file.len();
                    file[4 + at.index(length - 4)] ^= byte;
                }
                let _ = converted(&file);
            }
        }
    }
}
