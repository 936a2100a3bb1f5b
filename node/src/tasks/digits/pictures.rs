//! The data of the digits task: small grey images with labels, drawn by the program or read from files.
//!
//! It knows nothing of models.

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::data::{Images, Split, idx, strokes};
use crate::task::{Data, Dataset, TaskError};
use annulus_core::Digest;

/// Pixels per row and per column.
pub(super) const SIDE: usize = strokes::SIDE;
pub(super) const PIXELS: usize = SIDE * SIDE;
pub(super) const CLASSES: usize = 10;

/// Seed of the drawn digits: part of the data set, not of the run.
const STROKES_SEED: u64 = 1;

/// Training images, and held-out images.
#[derive(Debug)]
pub struct Pictures {
    split: Split,
    digest: Digest,
}

/// Images and their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    /// Values from 0 to 1, 784 per image.
    pub pixels: Vec<f32>,
    /// One per image.
    pub labels: Vec<i32>,
}

impl Labelled {
    /// Images `[n, 784]` and labels `[n]` on a device.
    pub fn into_tensors(self, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let count = self.labels.len();
        (
            Tensor::from_data(TensorData::new(self.pixels, [count, PIXELS]), device),
            Tensor::from_data(TensorData::new(self.labels, [count]), device),
        )
    }
}

impl Pictures {
    /// Draws this many images.
    pub fn drawn(train: usize, test: usize) -> Self {
        Self::of(strokes::draw(STROKES_SEED, train, test))
    }

    /// Reads MNIST, or a similar set, from a folder.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or has other images.
    pub fn read_from(folder: &Data) -> Result<Self, TaskError> {
        let split = idx::read_folder(folder, Some((SIDE, SIDE)))?;
        check(&split.train)
            .and_then(|()| check(&split.test))
            .map_err(|problem| {
                format!(
                    "{} holds {problem}; use MNIST or a set like it",
                    folder.path().display()
                )
            })?;
        Ok(Self::of(split))
    }

    fn of(split: Split) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [&split.train, &split.test] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(&part.labels).update(&part.pixels);
        }
        let digest = Digest(*hasher.finalize().as_bytes());
        Self { split, digest }
    }

    /// Makes the digest cover these bytes too, as another part of the run's data.
    pub fn cover(&mut self, bytes: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.digest.0).update(bytes);
        self.digest = Digest(*hasher.finalize().as_bytes());
    }

    /// How many images are held out.
    pub fn held_out(&self) -> usize {
        self.split.test.len()
    }

    /// Some of the held-out images.
    pub fn test(&self, indices: std::ops::Range<usize>) -> Labelled {
        labelled(&self.split.test, indices)
    }
}

impl Dataset for Pictures {
    type Batch = Labelled;

    fn len(&self) -> u64 {
        self.split.train.len() as u64
    }

    /// Covers both sets, since moving the border between them changes the training data.
    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Labelled {
        labelled(&self.split.train, samples.iter().map(|sample| *sample as usize))
    }
}

/// Whether the images suit the models; otherwise what is wrong.
fn check(images: &Images) -> Result<(), String> {
    if (images.rows, images.columns) != (SIDE, SIDE) {
        let (rows, columns) = (images.rows, images.columns);
        return Err(format!("images of {rows} x {columns} pixels, not 28 x 28"));
    }
    match images.labels.iter().find(|label| usize::from(**label) >= CLASSES) {
        Some(label) => Err(format!("the label {label}, which is no digit")),
        None => Ok(()),
    }
}

fn labelled(images: &Images, indices: impl ExactSizeIterator<Item = usize>) -> Labelled {
    let mut pixels = Vec::with_capacity(indices.len() * PIXELS);
    let mut labels = Vec::with_capacity(indices.len());
    for index in indices {
        let image = images.pixels_of(index);
        pixels.extend(image.iter().map(|pixel| f32::from(*pixel) / 255.0));
        labels.push(i32::from(images.labels[index]));
    }
    Labelled { pixels, labels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_are_no_digits_are_refused() {
        let images = |rows, label| Images {
            pixels: vec![0; rows * 28],
            labels: vec![label],
            rows,
            columns: 28,
        };
        assert_eq!(check(&images(28, 9)), Ok(()));
        assert!(check(&images(27, 9)).unwrap_err().contains("27 x 28"));
        assert!(check(&images(28, 10)).unwrap_err().contains("label 10"));
    }
}
