//! Reads images and labels from IDX files, the format of MNIST and its relatives, plain or gzipped.
//!
//! An IDX file has two zero bytes, a type byte, the number of dimensions, each dimension as a big-endian `u32`, and the
//! elements. Only unsigned bytes are supported, which images and labels use. See <https://yann.lecun.org/exdb/mnist/>.
//!
//! A header is never trusted: memory grows with the bytes that arrive, up to a bound.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::{Data, DataError, DataFile, Images, Split};

/// Most elements of a file. EMNIST's largest split, the largest common relative of MNIST, has 0.64 billion.
const MAX_ELEMENTS: u64 = 1 << 30;

/// How many times its size a packed file may unpack to, beyond [`SMALL`]. MNIST unpacks to five times its size. Gzip can
/// reach a thousand times, with which a small file would fill the memory.
const UNPACKED: u64 = 64;

/// Every packed file may unpack to this many bytes.
const SMALL: u64 = 1 << 20;

/// The type byte of unsigned bytes.
const UNSIGNED_BYTE: u8 = 0x08;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The usual names of one set's images and labels, without `.gz`.
struct Names {
    images: &'static [&'static str],
    labels: &'static [&'static str],
}

const TRAIN: Names = Names {
    images: &[
        "train-images-idx3-ubyte",
        "train-images.idx3-ubyte",
        "images-idx3-ubyte",
        "images",
    ],
    labels: &[
        "train-labels-idx1-ubyte",
        "train-labels.idx1-ubyte",
        "labels-idx1-ubyte",
        "labels",
    ],
};

const TEST: Names = Names {
    images: &["t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"],
    labels: &["t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte"],
};

const EXPECTED: &str = "IDX files such as train-images-idx3-ubyte.gz and \
     train-labels-idx1-ubyte.gz, with t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz \
     as the test set (each with or without .gz). For a model of pictures, \
     it should have a folder of PNG or JPEG files for each class; a table is named by its file";

/// Reads the images and labels in a folder. If `size` names rows and columns, images of another size are refused before they
/// are unpacked.
///
/// A folder may have a training set (`train-*`) and a test set (`t10k-*`). With only one of them, its last fifth is
/// held out: the 10,000 images of `t10k-*` become 8,000 and 2,000.
///
/// # Errors
///
/// If no set is found, or a file is unreadable, truncated, too long, or does not fit the others.
pub fn read_folder(data: &Data, size: Option<(usize, usize)>) -> Result<Split, DataError> {
    let train = read_set(data, &TRAIN, size)?;
    let test = read_set(data, &TEST, size)?;
    match (train, test) {
        (Some((_, train)), Some((test_images, test))) => {
            if (train.rows, train.columns) != (test.rows, test.columns) {
                return Err(malformed(
                    &test_images.path(),
                    format!(
                        "its images are {} x {} pixels, but the training images are {} x {}; \
                         both sets must come from one source",
                        test.rows, test.columns, train.rows, train.columns
                    ),
                ));
            }
            Ok(Split { train, test })
        }
        (Some((file, only)), None) | (None, Some((file, only))) => hold_out_last_fifth(&file.path(), only),
        (None, None) => Err(DataError::NothingFound {
            folder: data.path().to_owned(),
            expected: EXPECTED,
        }),
    }
}

fn hold_out_last_fifth(path: &Path, images: Images) -> Result<Split, DataError> {
    let held_out = images.len() / 5;
    if held_out == 0 {
        return Err(malformed(
            path,
            format!(
                "it holds {} images, too few to train on and to hold some out; at least 5 are \
                 needed",
                images.len()
            ),
        ));
    }
    let at = images.len() - held_out;
    let (train, test) = images.split_off(at);
    Ok(Split { train, test })
}

/// Reads one set if any of its files exists; also returns the file of its images.
fn read_set(
    data: &Data,
    names: &Names,
    size: Option<(usize, usize)>,
) -> Result<Option<(DataFile, Images)>, DataError> {
    let images_file = find(data, names.images)?;
    let labels_file = find(data, names.labels)?;
    let (images_file, labels_file) = match (images_file, labels_file) {
        (None, None) => return Ok(None),
        (Some(images), Some(labels)) => (images, labels),
        (Some(images), None) => {
            return Err(malformed(
                &images.path(),
                format!("its labels are missing; put {} beside it", names.labels[0]),
            ));
        }
        (None, Some(labels)) => {
            return Err(malformed(
                &labels.path(),
                format!("its images are missing; put {} beside it", names.images[0]),
            ));
        }
    };
    let (images, labels) = (Opened::<3>::new(&images_file)?, Opened::<1>::new(&labels_file)?);
    let ([count, rows, columns], [label_count]) = (images.dimensions, labels.dimensions);
    if let Some((wanted_rows, wanted_columns)) = size
        && (rows, columns) != (wanted_rows, wanted_columns)
    {
        return Err(malformed(
            &images_file.path(),
            format!("its images are {rows} x {columns} pixels, not {wanted_rows} x {wanted_columns}"),
        ));
    }
    if count != label_count {
        return Err(malformed(
            &labels_file.path(),
            format!(
                "it holds {label_count} labels, but {} holds {count} images; take both files \
                 from one source",
                images_file.path().display()
            ),
        ));
    }
    let images = Images {
        pixels: images.elements()?,
        labels: labels.elements()?,
        rows,
        columns,
    };
    Ok(Some((images_file, images)))
}

/// The first of `names` in the folder, plain or with `.gz`.
fn find(data: &Data, names: &[&str]) -> Result<Option<DataFile>, DataError> {
    for name in names {
        for name in [(*name).to_owned(), format!("{name}.gz")] {
            let file = data.file(&name)?;
            if file.is_some() {
                return Ok(file);
            }
        }
    }
    Ok(None)
}

/// A file with `D` dimensions whose header has been read.
struct Opened<const D: usize> {
    path: PathBuf,
    dimensions: [usize; D],
    /// Continues with the elements.
    reader: Box<dyn Read>,
    /// Number of elements that the header announces.
    count: u64,
}

impl<const D: usize> Opened<D> {
    /// Reads and checks the header.
    fn new(file: &DataFile) -> Result<Self, DataError> {
        let path = file.path();
        let mut magic = Vec::with_capacity(2);
        file.reader()?
            .take(2)
            .read_to_end(&mut magic)
            .map_err(|source| DataError::of(&path, source))?;
        let reader = BufReader::new(file.reader()?);
        let (mut reader, most): (Box<dyn Read>, _) = match magic == GZIP_MAGIC {
            true => (
                Box::new(MultiGzDecoder::new(reader)),
                SMALL.saturating_add(UNPACKED.saturating_mul(file.size()?)),
            ),
            false => (Box::new(reader), MAX_ELEMENTS),
        };
        let mut head = [0; 4];
        read_header(&path, &mut reader, &mut head)?;
        if head != [0, 0, UNSIGNED_BYTE, D as u8] {
            return Err(malformed(
                &path,
                format!(
                    "it starts with {head:02x?}, where an IDX file of bytes in {D} dimension(s) \
                     starts with [00, 00, 08, {D:02x}]; it is another kind of file or damaged, download \
                     it again"
                ),
            ));
        }
        let mut dimensions = [0; D];
        let mut count = 1u64;
        for dimension in &mut dimensions {
            let mut bytes = [0; 4];
            read_header(&path, &mut reader, &mut bytes)?;
            let size = u32::from_be_bytes(bytes);
            count = count.saturating_mul(u64::from(size));
            *dimension = size as usize;
        }
        if count == 0 || count > MAX_ELEMENTS {
            return Err(malformed(
                &path,
                format!(
                    "its header claims the dimensions {dimensions:?}, which is not between 1 and \
                     {MAX_ELEMENTS} bytes; the file is damaged, download it again"
                ),
            ));
        }
        if count > most {
            return Err(malformed(
                &path,
                format!(
                    "its header claims {count} bytes, more than {UNPACKED} times what the packed file has; unpack it \
                     (`gunzip`) if that is right"
                ),
            ));
        }
        Ok(Self {
            path,
            dimensions,
            reader,
            count,
        })
    }

    /// Reads the elements and checks that nothing is missing or left over.
    fn elements(self) -> Result<Vec<u8>, DataError> {
        let Self {
            path, reader, count, ..
        } = self;
        // Reads one byte more, to see whether anything is left over.
        let mut data = Vec::new();
        reader
            .take(count + 1)
            .read_to_end(&mut data)
            .map_err(|source| damaged(&path, &source))?;
        let found = data.len() as u64;
        if found == count {
            return Ok(data);
        }
        let problem = if found < count {
            format!("it ends after {found} of the {count} bytes that its header announces")
        } else {
            format!("it goes on after the {count} bytes that its header announces")
        };
        Err(malformed(
            &path,
            format!("{problem}; the file is damaged, download it again"),
        ))
    }
}

fn read_header(path: &Path, reader: &mut impl Read, bytes: &mut [u8]) -> Result<(), DataError> {
    reader.read_exact(bytes).map_err(|source| damaged(path, &source))
}

/// An error while reading the content: a truncated file, or a gzip stream that is not one.
fn damaged(path: &Path, source: &std::io::Error) -> DataError {
    malformed(
        path,
        format!("its content cannot be read ({source}); the file is damaged, download it again"),
    )
}

fn malformed(path: &Path, problem: String) -> DataError {
    DataError::Malformed {
        path: path.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// A folder that is removed with its files.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("annulus-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn put(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.0.join(name), bytes).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // A folder that stays in the temporary directory does no harm.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn read_folder(path: &Path) -> Result<Split, DataError> {
        super::read_folder(&Data::open(path)?, None)
    }

    fn idx(dimensions: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, UNSIGNED_BYTE, dimensions.len() as u8];
        for dimension in dimensions {
            bytes.extend(dimension.to_be_bytes());
        }
        bytes.extend(data);
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn problem(folder: &Folder) -> String {
        let message = read_folder(&folder.0).unwrap_err().to_string();
        assert!(
            message.contains(&*folder.0.to_string_lossy()),
            "the message must name the file: {message}"
        );
        message
    }

    #[test]
    fn a_training_and_a_test_set_are_read_plain_and_gzipped() {
        let folder = Folder::new("both");
        folder.put("train-images-idx3-ubyte", &idx(&[2, 2, 1], &[1, 2, 3, 4]));
        folder.put("train-labels.idx1-ubyte", &idx(&[2], &[7, 8]));
        folder.put("t10k-images-idx3-ubyte.gz", &gzip(&idx(&[1, 2, 1], &[5, 6])));
        folder.put("t10k-labels-idx1-ubyte.gz", &gzip(&idx(&[1], &[9])));
        let split = read_folder(&folder.0).unwrap();
        assert_eq!(split.train.labels, [7, 8]);
        assert_eq!(split.train.pixels_of(1), [3, 4]);
        assert_eq!((split.train.rows, split.train.columns), (2, 1));
        assert_eq!(split.test.pixels, [5, 6]);
        assert_eq!(split.test.labels, [9]);
    }

    #[test]
    fn the_last_fifth_of_a_single_set_is_held_out() {
        let folder = Folder::new("single");
        let data: Vec<u8> = (0..11).collect();
        folder.put("images", &idx(&[11, 1, 1], &data));
        folder.put("labels.gz", &gzip(&idx(&[11], &data)));
        let split = read_folder(&folder.0).unwrap();
        assert_eq!(split.train.labels, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(split.test.labels, [9, 10]);
        assert_eq!(split.test.pixels, [9, 10]);
    }

    #[test]
    fn a_missing_or_empty_folder_says_what_it_should_hold() {
        let folder = Folder::new("empty");
        assert!(problem(&folder).contains("train-images-idx3-ubyte.gz"));
        folder.put("file", b"");
        let error = read_folder(&folder.0.join("file")).unwrap_err();
        assert!(error.to_string().contains("give the folder"));
        let error = read_folder(&folder.0.join("absent")).unwrap_err();
        assert!(matches!(error, DataError::Read { .. }));
    }

    #[test]
    fn images_without_labels_are_refused() {
        let folder = Folder::new("unlabelled");
        folder.put("images", &idx(&[5, 1, 1], &[0; 5]));
        assert!(problem(&folder).contains("its labels are missing"));
    }

    #[test]
    fn counts_that_differ_are_refused() {
        let folder = Folder::new("counts");
        folder.put("images", &idx(&[5, 1, 1], &[0; 5]));
        folder.put("labels", &idx(&[6], &[0; 6]));
        assert!(problem(&folder).contains("6 labels"));
    }

    #[test]
    fn sets_of_different_size_are_refused() {
        let folder = Folder::new("sizes");
        folder.put("train-images-idx3-ubyte", &idx(&[1, 2, 2], &[0; 4]));
        folder.put("train-labels-idx1-ubyte", &idx(&[1], &[0]));
        folder.put("t10k-images-idx3-ubyte", &idx(&[1, 2, 3], &[0; 6]));
        folder.put("t10k-labels-idx1-ubyte", &idx(&[1], &[0]));
        assert!(problem(&folder).contains("2 x 3"));
    }

    #[test]
    fn every_truncation_is_refused() {
        let folder = Folder::new("truncated");
        folder.put("labels", &idx(&[5], &[0; 5]));
        let whole = idx(&[5, 1, 2], &[3; 10]);
        for length in 0..whole.len() {
            folder.put("images", &whole[..length]);
            problem(&folder);
        }
        let packed = gzip(&whole);
        std::fs::remove_file(folder.0.join("images")).unwrap();
        for length in 0..packed.len() {
            folder.put("images.gz", &packed[..length]);
            problem(&folder);
        }
        folder.put("images.gz", &packed);
        assert!(read_folder(&folder.0).is_ok());
    }

    #[test]
    fn every_flipped_bit_in_a_gzipped_file_is_refused_or_harmless() {
        let folder = Folder::new("flipped");
        folder.put("labels", &idx(&[5], &[0; 5]));
        let whole = idx(&[5, 1, 2], &[3; 10]);
        let packed = gzip(&whole);
        for bit in 0..packed.len() * 8 {
            let mut damaged = packed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            folder.put("images.gz", &damaged);
            // Flipping bits of gzip's header that carry no data does no harm.
            if let Ok(split) = read_folder(&folder.0) {
                assert_eq!(split.train.pixels, [3; 8]);
            }
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let folder = Folder::new("trailing");
        folder.put("images", &idx(&[5, 1, 1], &[0; 6]));
        folder.put("labels", &idx(&[5], &[0; 5]));
        assert!(problem(&folder).contains("goes on after"));
    }

    #[test]
    fn hostile_headers_allocate_nothing() {
        let folder = Folder::new("hostile");
        folder.put("labels", &idx(&[5], &[0; 5]));
        for dimensions in [[u32::MAX, u32::MAX, u32::MAX], [1 << 30, 1, 1 << 1], [0, 28, 28]] {
            folder.put("images", &idx(&dimensions, &[]));
            assert!(problem(&folder).contains("its header claims"));
        }
        // Within the bound, but without data: only what arrives is allocated.
        folder.put("labels", &idx(&[1 << 20], &[]));
        folder.put("images", &idx(&[1 << 20, 1, 1 << 10], &[0; 9]));
        assert!(problem(&folder).contains("ends after 9"));
    }

    #[test]
    fn other_kinds_of_file_are_refused() {
        let folder = Folder::new("kinds");
        folder.put("labels", &idx(&[5], &[0; 5]));
        folder.put("images", b"\x89PNG\r\n\x1a\n0000000000000");
        assert!(problem(&folder).contains("another kind of file"));
        folder.put("images", &idx(&[5], &[0; 5]));
        assert!(problem(&folder).contains("3 dimension(s)"));
    }
}
