//! Files that other programs packed.

use crate::error::TableError;
use flate2::read::GzDecoder;
use std::borrow::Cow;
use std::io::Read;

/// How files of these formats begin.
const GZIP: &[u8] = b"\x1f\x8b";
const ZIP: &[u8] = b"PK\x03\x04";

/// Names the format of a file that must be unpacked before it can be read as a table.
pub(crate) fn packed(file: &[u8]) -> Option<&'static str> {
    match file {
        _ if file.starts_with(ZIP) => {
            Some("is a ZIP file, or an Excel workbook: unpack it, or save the sheet as CSV in UTF-8")
        }
        _ if file.starts_with(GZIP) => Some("is a gzip file: give it a name that ends in .gz, or unpack it"),
        _ => None,
    }
}

/// A file as it is, or what is in it if it is a gzip file: at most `most` bytes.
///
/// # Errors
///
/// If a gzip file is damaged or holds more, or the file is a ZIP file.
pub fn unpacked<'a>(name: &str, file: &'a [u8], most: usize) -> Result<Cow<'a, [u8]>, TableError> {
    let fail = |what: String| Err(TableError::Other(format!("{name} {what}")));
    if file.starts_with(ZIP) {
        return fail(
            "is a ZIP file, or an Excel workbook: unpack it, or save the sheet as CSV in UTF-8".into(),
        );
    }
    if !file.starts_with(GZIP) {
        return Ok(Cow::Borrowed(file));
    }
    let mut inner = Vec::new();
    match GzDecoder::new(file).take(most as u64 + 1).read_to_end(&mut inner) {
        Ok(length) if length > most => fail(format!("unpacks to more than {} MB: divide it", most >> 20)),
        Ok(_) => Ok(Cow::Owned(inner)),
        Err(error) => fail(format!("is a damaged gzip file: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    #[test]
    fn gzip_is_unpacked_up_to_a_limit_and_zip_is_named() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(b"a,b\n1,2\n").unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(unpacked("t.gz", &packed, 8).unwrap().as_ref(), b"a,b\n1,2\n");
        assert_eq!(unpacked("t.csv", b"a,b\n", 0).unwrap().as_ref(), b"a,b\n");
        for (file, most, told) in [
            (packed.as_slice(), 7, "unpacks to more than"),
            (&packed[..packed.len() - 9], 8, "is a damaged gzip file"),
            (b"PK\x03\x04", 8, "is a ZIP file, or an Excel workbook"),
        ] {
            let error = unpacked("t.x", file, most).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
