//! How a batch is cut for a processor's cores.

use annulus_graph::Work;

/// Rows that a core multiplies by each matrix of weights at once. With fewer, preparing the weights costs more than multiplying
/// by them; with more, some cores are idle. Measured with nanoGPT's setting for processors.
const ROWS: u64 = 192;

/// Multiplications of a forward pass that are worth starting a thread. A guess: a tenth of a millisecond.
const PRODUCTS: u64 = 1 << 21;

/// Into how many pieces a batch of this size is divided, for a model that computes this much for a sample. It follows from the
/// model alone, so a model has the same pieces whether it comes as a file or is written in Rust.
pub fn pieces(samples: usize, work: Work) -> usize {
    let all = |own: u64| own.saturating_mul(samples as u64);
    let pieces = (all(work.rows) / ROWS).min(all(work.products) / PRODUCTS);
    usize::try_from(pieces).unwrap_or(usize::MAX)
}
