//! How much a model multiplies, so that batches can be cut into pieces that are worth a processor's core.

use crate::pass::Node;
use std::collections::BTreeSet;

/// The products with weights that a forward pass computes for a sample, and the memory that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Rows that each matrix of weights is multiplied by: tokens in a language model, places in a convolution. Their mean, by
    /// the sizes of the matrices.
    pub rows: u64,
    /// Multiplications.
    pub products: u64,
    /// Bytes of the results that a backward pass needs again.
    pub bytes: u64,
}

/// Operations whose backward pass does not need what they read: the others keep it. Views and sums.
const KEEP_NOTHING: [&str; 15] = [
    "Add",
    "Sub",
    "Neg",
    "Identity",
    "Reshape",
    "Transpose",
    "Expand",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Concat",
    "Slice",
    "Split",
    "ReduceMean",
    "ReduceSum",
];

impl Work {
    /// That of these nodes, in a pass of this many samples that had these shapes.
    pub(crate) fn of(nodes: &[Node], shapes: &[Option<Vec<usize>>], samples: usize) -> Self {
        let (mut products, mut weights) = (0u64, 0u64);
        for own in nodes.iter().filter_map(|node| Product::of(node, shapes)) {
            products =
                products.saturating_add(own.rows.saturating_mul(own.times).saturating_mul(own.weights));
            weights = weights.saturating_add(own.times.saturating_mul(own.weights));
        }
        let samples = samples.max(1) as u64;
        Self {
            rows: products.checked_div(weights).unwrap_or(0) / samples,
            products: products / samples,
            bytes: 0,
        }
    }

    /// The bytes, for the nodes that run in the end. Only results that grow with the samples count.
    pub(crate) fn with_bytes(self, nodes: &[Node], shapes: &[Option<Vec<usize>>], samples: usize) -> Self {
        let made: BTreeSet<usize> = nodes
            .iter()
            .flat_map(|node| node.outputs.iter().flatten().copied())
            .collect();
        let keeps = nodes
            .iter()
            .filter(|node| !KEEP_NOTHING.contains(&node.kind.name));
        let kept: BTreeSet<usize> = keeps
            .flat_map(|node| node.inputs.iter().flatten().copied())
            .collect();
        let shape = |slot: &usize| shapes.get(*slot)?.as_deref();
        let own = made
            .intersection(&kept)
            .filter_map(shape)
            .filter(|shape| shape.first() == Some(&samples));
        let all = own.fold(0u64, |sum, shape| sum.saturating_add(4 * elements(shape)));
        let bytes = all / samples.max(1) as u64;
        Self { bytes, ..self }
    }
}

/// Weights that are multiplied by some rows, so many times one after the other.
struct Product {
    weights: u64,
    rows: u64,
    times: u64,
}

impl Product {
    /// None if the node multiplies by no weights.
    fn of(node: &Node, shapes: &[Option<Vec<usize>>]) -> Option<Self> {
        let shape = |slot: Option<&Option<usize>>| shapes.get((*slot?)?)?.as_deref();
        let (input, made) = (shape(node.inputs.first()), shape(node.outputs.first()));
        let weights = shape(node.inputs.get(1))?;
        let (count, width) = (elements(weights), |shape: &[usize], axis: usize| {
            Some(*shape.get(axis)? as u64)
        });
        let (rows, times, weights) = match node.kind.name {
            // Matrices that follow from the batch have an axis more.
            "Linear" | "MatMul" | "Gemm" if weights.len() == 2 => {
                let made = made?;
                (elements(made) / (*made.last()? as u64).max(1), 1, count)
            }
            "Conv" => (elements(made?) / width(made?, 1)?.max(1), 1, count),
            "ConvTranspose" => (elements(input?) / width(input?, 1)?.max(1), 1, count),
            "Recurrent" => {
                let of_state = elements(shape(node.inputs.get(2))?);
                (
                    width(input?, 1)?,
                    width(input?, 0)?,
                    count.saturating_add(of_state),
                )
            }
            _ => return None,
        };
        Some(Self { weights, rows, times })
    }
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|side| *side as u64).fold(1, u64::saturating_mul)
}
