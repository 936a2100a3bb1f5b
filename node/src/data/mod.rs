//! Where data lies, data sets in memory, readers for the formats they come in, and how a run's data reaches peers that
//! lack it.

pub mod files;
pub mod idx;
pub mod provision;
pub mod strokes;

#[cfg(feature = "native")]
pub(crate) mod cache;
#[cfg(feature = "native")]
pub(crate) mod fetch;
#[cfg(feature = "native")]
pub(crate) mod serve;

pub use files::{Contents, Data, DataFile};

use std::path::PathBuf;

/// Grey images of one size with a class label each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Pixels in row-major order, one image after the other; 0 is the background.
    pub pixels: Vec<u8>,
    /// One label per image.
    pub labels: Vec<u8>,
    /// Pixel rows of an image.
    pub rows: usize,
    /// Pixel columns of an image.
    pub columns: usize,
}

impl Images {
    /// How many images there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image at all.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The pixels of image `index`.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`len`](Self::len).
    pub fn pixels_of(&self, index: usize) -> &[u8] {
        let size = self.rows * self.columns;
        &self.pixels[index * size..(index + 1) * size]
    }

    /// Cuts the images in two: those before `at`, and the rest.
    fn split_off(mut self, at: usize) -> (Self, Self) {
        let rest = Self {
            pixels: self.pixels.split_off(at * self.rows * self.columns),
            labels: self.labels.split_off(at),
            rows: self.rows,
            columns: self.columns,
        };
        (self, rest)
    }
}

/// What to train on, and what to measure with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Samples that make gradients.
    pub train: Images,
    /// Held-out samples.
    pub test: Images,
}

/// Why data could not be read. No error leaves anything half loaded.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused to read a file or a folder.
    #[error("cannot read {path}: {source}; check the path given as data and its permissions", path = .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder holds none of the files that are looked for.
    #[error("{folder} holds no data set: it should hold {expected}", folder = .folder.display())]
    NothingFound {
        /// The folder.
        folder: PathBuf,
        /// The files it should hold.
        expected: &'static str,
    },
    /// A file is there, but what it holds is wrong.
    #[error("{path}: {problem}", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
}
