//! Data sets of images in memory.

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

    /// Splits the images: those before `at`, and the rest.
    pub(super) fn split_off(mut self, at: usize) -> (Self, Self) {
        let rest = Self {
            pixels: self.pixels.split_off(at * self.rows * self.columns),
            labels: self.labels.split_off(at),
            rows: self.rows,
            columns: self.columns,
        };
        (self, rest)
    }
}

/// A training set and a held-out set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Samples to train on.
    pub train: Images,
    /// Held-out samples.
    pub test: Images,
}
