//! A flat vector longer than a kernel can see at once, in several buffers.
//!
//! An adapter says how much of a buffer a kernel may bind; WebGPU promises 128 MiB, 33 million numbers.
//! A longer vector is cut between two of its tensors, as rarely as possible. Each part is a
//! [`FlatVector`]; where all fits there is one, and nothing is different.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use crate::flat::{ALIGNMENT, FlatLayout, FlatVector};
use crate::launch::raw;

/// How many numbers a kernel can see in one buffer of a GPU; nothing if `device` is none.
pub fn largest(device: &Device) -> Option<usize> {
    let probe = raw(Tensor::<1>::zeros([1], &device.clone().without_autodiff()))?;
    let bytes = probe.client.properties().memory.max_page_size;
    Some(usize::try_from(bytes / size_of::<f32>() as u64).unwrap_or(usize::MAX))
}

/// A tensor that no buffer can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor {index} has {len} numbers, and this device takes {largest} in one")]
pub struct TooLong {
    /// Which one, counted from 0.
    pub index: usize,
    /// How many numbers it has.
    pub len: usize,
    /// How many a kernel can see in one buffer.
    pub largest: usize,
}

/// Where each of several tensors lies in a vector of several parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitLayout {
    parts: Vec<Arc<FlatLayout>>,
}

impl SplitLayout {
    /// Tensors of these lengths, in this order, in parts of at most `largest` numbers.
    ///
    /// # Errors
    ///
    /// If a tensor alone is longer.
    pub fn new(lengths: impl IntoIterator<Item = usize>, largest: usize) -> Result<Self, TooLong> {
        let mut parts = Vec::new();
        let mut part: Vec<usize> = Vec::new();
        let mut used = 0;
        for (index, len) in lengths.into_iter().enumerate() {
            // Nothing follows a part's last tensor but the rest of its place.
            let padded = len.next_multiple_of(ALIGNMENT);
            if padded > largest {
                return Err(TooLong { index, len, largest });
            }
            if used + padded > largest {
                parts.push(Arc::new(FlatLayout::new(part.drain(..))));
                used = 0;
            }
            part.push(len);
            used += padded;
        }
        parts.push(Arc::new(FlatLayout::new(part)));
        Ok(Self { parts })
    }

    /// The parts, in order; at least one.
    pub fn parts(&self) -> &[Arc<FlatLayout>] {
        &self.parts
    }

    /// Elements of all tensors, without gaps.
    pub fn dense_len(&self) -> usize {
        self.parts.iter().map(|part| part.dense_len()).sum()
    }

    /// Each part with the numbers of its tensors, among those of all of them.
    fn ranges(&self) -> impl Iterator<Item = (&Arc<FlatLayout>, Range<usize>)> {
        self.parts.iter().scan(0, |end, part| {
            let start = *end;
            *end += part.dense_len();
            Some((part, start..*end))
        })
    }

    /// Each part with its share of something that there is for each tensor.
    pub(crate) fn shares<'a, T>(
        &'a self,
        of_tensors: &'a [T],
    ) -> impl Iterator<Item = (&'a Arc<FlatLayout>, &'a [T])> {
        let count: usize = self.parts.iter().map(|part| part.places().len()).sum();
        assert_eq!(of_tensors.len(), count, "one for each tensor");
        self.parts.iter().scan(of_tensors, |rest, part| {
            let (share, behind) = rest.split_at(part.places().len());
            *rest = behind;
            Some((part, share))
        })
    }
}

/// A vector of [`SplitLayout`] on a GPU.
#[derive(Clone, Debug)]
pub struct SplitVector {
    layout: Arc<SplitLayout>,
    parts: Vec<FlatVector>,
}

impl SplitVector {
    /// Numbers without gaps, sent to a GPU part by part; nothing if `device` is no GPU.
    ///
    /// # Panics
    ///
    /// If there are not as many as the tensors have elements.
    pub fn upload(layout: &Arc<SplitLayout>, dense: &[f32], device: &Device) -> Option<Self> {
        assert_eq!(dense.len(), layout.dense_len(), "elements of all tensors");
        let parts = layout
            .ranges()
            .map(|(part, range)| FlatVector::upload(part, &dense[range], device));
        Some(Self {
            parts: parts.collect::<Option<_>>()?,
            layout: Arc::clone(layout),
        })
    }

    /// A vector of `scale` times these tensors, one per place in order; where there is none, 0.
    ///
    /// # Panics
    ///
    /// If they are not as many as the layout's places, or not as long, or not on one GPU, or all
    /// missing.
    pub fn packed(layout: &Arc<SplitLayout>, tensors: &[Option<Tensor<1>>], scale: f32) -> Self {
        let any = tensors.iter().flatten().next().expect("at least one tensor");
        let device = any.device();
        let parts = layout.shares(tensors).map(|(part, tensors)| {
            if tensors.iter().any(Option::is_some) {
                FlatVector::packed(part, tensors, scale)
            } else {
                FlatVector::zeros(part, &device).expect("a tensor on a GPU")
            }
        });
        Self {
            parts: parts.collect(),
            layout: Arc::clone(layout),
        }
    }

    /// Adds `scale` times these tensors, as [`packed`](Self::packed) has them, in place: all that
    /// shares the vector sees it.
    ///
    /// # Panics
    ///
    /// As [`packed`](Self::packed), but all may be missing.
    pub fn add(&mut self, tensors: &[Option<Tensor<1>>], scale: f32) {
        let shares = self.layout.shares(tensors);
        for (part, (_, tensors)) in self.parts.iter_mut().zip(shares) {
            part.add(tensors, scale);
        }
    }

    /// A tensor of the vector: no copy, it sees what is written to the vector later.
    ///
    /// # Panics
    ///
    /// If there is no such tensor or it has not as many elements as the shape.
    pub fn view<const D: usize>(&self, index: usize, shape: [usize; D]) -> Tensor<D> {
        let mut index = index;
        for part in &self.parts {
            let count = part.layout().places().len();
            if index < count {
                return part.view(index, shape);
            }
            index -= count;
        }
        panic!("the vector has {index} tensors less");
    }

    /// Where each tensor lies.
    pub fn layout(&self) -> &Arc<SplitLayout> {
        &self.layout
    }

    /// Its parts.
    pub fn parts(&self) -> &[FlatVector] {
        &self.parts
    }
}
