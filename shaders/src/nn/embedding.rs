//! Rows of a table for whole numbers, and the way back.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Int, Tensor};

use crate::ops::embedding::{TableRows, embedding_in_part};
use crate::ops::linear::{WeightLayout, linear};
use crate::ops::linear_cross_entropy::{LossOptions, MOST_PIECES, linear_cross_entropy};

/// Numbers in a part of a table, at most: those of the 128 MiB that WebGPU promises to bind.
const LARGEST_PART: usize = 1 << 25;

/// How an [`Embedding`] is made.
#[derive(Clone, Debug)]
pub struct EmbeddingConfig {
    inner: burn::nn::EmbeddingConfig,
    largest_part: usize,
}

impl EmbeddingConfig {
    /// A table of `count` rows of `width` numbers, initialized as Burn's.
    pub fn new(count: usize, width: usize) -> Self {
        Self {
            inner: burn::nn::EmbeddingConfig::new(count, width),
            largest_part: LARGEST_PART,
        }
    }

    /// With other initial numbers.
    pub fn with_initializer(self, initializer: Initializer) -> Self {
        Self {
            inner: self.inner.with_initializer(initializer),
            ..self
        }
    }

    /// With parts of at most this many numbers. But there are at most [`MOST_PIECES`] parts, of at least 64 rows each.
    pub fn with_largest_part(self, largest_part: usize) -> Self {
        Self { largest_part, ..self }
    }

    /// The layer with its initial numbers.
    pub fn init(&self, device: &Device) -> Embedding {
        let (count, width) = (self.inner.n_embedding, self.inner.d_model);
        let rows = rows_of_a_part(count, width, self.largest_part);
        let part = |first: usize| {
            let mut config = self.inner.clone();
            config.n_embedding = rows.min(count - first);
            config.init(device).weight
        };
        Embedding {
            weight: part(0),
            rest: (rows..count).step_by(rows.max(1)).map(part).collect(),
        }
    }
}

/// How many of `count` rows each part has: all of them, or a multiple of 64 that makes the parts even.
fn rows_of_a_part(count: usize, width: usize, largest_part: usize) -> usize {
    if count * width <= largest_part {
        return count;
    }
    let most = largest_part / width / 64 * 64;
    let parts = count.div_ceil(most.max(64)).min(MOST_PIECES);
    count.div_ceil(parts).next_multiple_of(64)
}

/// A row of a table for each token.
///
/// A table that is larger than what every GPU binds lies in several parts.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[count, width]`, or the first rows of it.
    pub weight: Param<Tensor<2>>,
    /// The other rows, in parts.
    pub rest: Vec<Param<Tensor<2>>>,
}

impl Embedding {
    /// Tokens `[windows, length]` to `[windows, length, width]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.rows(tokens, None)
    }

    /// The same, plus the row of `positions` for each token's place in its window, in one launch.
    pub fn forward_at(&self, tokens: Tensor<2, Int>, positions: &Self) -> Tensor<3> {
        self.rows(tokens, Some(positions.weight.val()))
    }

    fn rows(&self, tokens: Tensor<2, Int>, mut positions: Option<Tensor<2>>) -> Tensor<3> {
        let parts = self.parts();
        let of = parts.iter().map(|part| part.dims()[0]).sum();
        let mut first = 0;
        let rows = parts.into_iter().map(|part| {
            let rows = TableRows { first, of };
            first += part.dims()[0];
            embedding_in_part(tokens.clone(), part, rows, positions.take())
        });
        rows.reduce(|sum, rows| sum + rows).expect("at least one part")
    }

    /// Features `[.., width]` to one score for each row, `[.., count]`: the output layer that shares
    /// the table (Press and Wolf, 2017).
    pub fn scores<const D: usize>(&self, features: Tensor<D>) -> Tensor<D> {
        let scores = self
            .parts()
            .into_iter()
            .map(|part| linear(features.clone(), part, None, None, WeightLayout::OutputsFirst));
        let mut scores: Vec<Tensor<D>> = scores.collect();
        match scores.len() {
            1 => scores.remove(0),
            _ => Tensor::cat(scores, D - 1),
        }
    }

    /// Features `[rows, width]` and the row of the table that each is to score highest, to the mean cross-entropy of their
    /// scores. Of a large table not all scores exist at once.
    pub fn cross_entropy(&self, features: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        let options = LossOptions {
            layout: WeightLayout::OutputsFirst,
            ..LossOptions::default()
        };
        linear_cross_entropy(features, &self.parts(), targets, options)
    }

    fn parts(&self) -> Vec<Tensor<2>> {
        let parts = std::iter::once(&self.weight).chain(&self.rest);
        parts.map(Param::val).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_cut_only_where_it_must_be_and_evenly() {
        for (count, width, expected) in [
            (256, 512, 256),
            (50_304, 512, 50_304),
            (50_304, 768, 25_152),
            (65_536, 1024, 32_768),
            (1 << 20, 16_384, 1 << 17),
        ] {
            assert_eq!(
                rows_of_a_part(count, width, LARGEST_PART),
                expected,
                "{count} {width}"
            );
        }
    }
}
